import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data import Split
from evaluation.windows import Blocks, choose_blocks, foreign, shuffled


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(4, 64),
    st.integers(1, 8),
    st.integers(2, 20),
    st.integers(0, 9),
)
def test_blocks_do_not_overlap_and_stay_in_their_document_where_they_can(sizes, longest, stride, n, seed):
    starts = np.cumsum([0, *sizes[:-1]])
    split = Split(np.zeros(sum(sizes), np.uint16), starts, 1)
    first = max(longest, sum(sizes) // 2 + stride)  # past the part by which settings are chosen
    candidates = np.arange(first, sum(sizes), stride)
    if len(candidates) < n:
        with pytest.raises(ValueError, match="--lengths"):
            choose_blocks(split, longest, stride, n, seed)
        return
    blocks = choose_blocks(split, longest, stride, n, seed)
    ends = blocks.ends
    assert len(ends) == n and (np.diff(ends) >= stride).all() and ends[0] >= first and ends[-1] < sum(sizes)
    assert [int(np.flatnonzero(starts <= end)[-1]) for end in ends] == list(blocks.documents)

    def inside(end):
        return end - longest >= starts[starts <= end].max()

    assert blocks.crossing == pytest.approx(1 - np.mean([inside(end) for end in ends]))
    if blocks.crossing:
        assert sum(map(inside, ends)) == sum(map(inside, candidates))  # none was left out


def text(n, *documents):
    """n tokens that are their own positions, and a function for the window of `length` predictions that ends at `end`."""
    split = Split(np.arange(n, dtype=np.uint16), np.array(documents), n)
    return split, lambda end, length: split.windows(np.array([end - length]), length)


def test_foreign_context_is_of_another_document_and_the_rest_is_kept():
    split, window_before = text(600, 0, 200, 400)
    blocks = Blocks(np.array([150, 190, 350, 550]), np.array([0, 0, 1, 2]))
    for change, is_shuffled in ((foreign(split, blocks, 30), False), (shuffled(30, seed=0), True)):
        for i in (0, 2):
            window = window_before(blocks.ends[i], 100)
            before = window.clone()
            change(window[0], i)
            assert torch.equal(window[0, 70:], before[0, 70:]) and not torch.equal(window[0, :70], before[0, :70])
            same_tokens = torch.equal(window[0, :70].sort().values, before[0, :70])
            document = np.searchsorted(split.docs, window[0, 69].item(), side="right") - 1
            assert same_tokens if is_shuffled else document != blocks.documents[i]


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 250, would bring tokens 100 … 209: the window's own."""
    split, window_before = text(700, 0, 220, 240)
    window = window_before(180, 150)
    foreign(split, Blocks(np.array([180, 620, 250]), np.array([0, 2, 2])), 40)(window[0], 0)
    assert window[0, :110].tolist() == list(range(470, 580))
    window = window_before(260, 150)  # crosses documents: 110 … 219 belong to the first
    with pytest.raises(ValueError, match="--lengths"):
        foreign(split, Blocks(np.array([260, 330]), np.array([2, 2])), 40)(window[0], 0)  # 330 brings 180 … 289
