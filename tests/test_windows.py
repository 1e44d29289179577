import numpy as np
import pytest
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
    n_tokens = sum(sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    split = Split(np.zeros(n_tokens, np.uint16), starts, 1)
    first = max(longest, n_tokens // 2 + stride)  # past the part by which settings are chosen
    candidates = np.arange(first, n_tokens, stride)
    if len(candidates) < n:
        with pytest.raises(ValueError, match="--lengths"):
            choose_blocks(split, longest, stride, n, seed)
        return
    blocks = choose_blocks(split, longest, stride, n, seed)
    chosen = np.isin(candidates, blocks.ends)
    assert len(blocks.ends) == n == chosen.sum()
    begins = np.array([starts[starts <= end].max() for end in candidates])  # of their documents
    assert starts[blocks.documents].tolist() == begins[chosen].tolist()
    fits = candidates - longest >= begins
    assert blocks.crossing == pytest.approx(1 - fits[chosen].mean())
    if blocks.crossing:
        assert not fits[~chosen].any()


def text(n, *documents):
    """n tokens that are their own positions, and a function for the window of `length` predictions that ends at `end`."""
    split = Split(np.arange(n, dtype=np.uint16), np.array(documents), n)
    return split, lambda end, length: split.windows(np.array([end - length]), length)


@pytest.mark.parametrize("kind", ["foreign", "shuffled"])
@pytest.mark.parametrize("i", [0, 2])
def test_a_changed_context_is_foreign_or_shuffled_and_the_rest_is_kept(kind, i):
    split, window_before = text(600, 0, 200, 400)
    blocks = Blocks(np.array([150, 190, 350, 550]), np.array([0, 0, 1, 2]))
    change = foreign(split, blocks, 30) if kind == "foreign" else shuffled(30, seed=0)
    row = window_before(blocks.ends[i], 100)[0]
    before = row.tolist()
    change(row, i)
    after = row.tolist()
    assert after[70:] == before[70:] and after[:70] != before[:70]
    if kind == "foreign":
        assert np.searchsorted(split.docs, after[69], side="right") - 1 != blocks.documents[i]
    else:
        assert sorted(after) == before


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 250, would bring tokens 100 … 209: the window's own."""
    split, window_before = text(700, 0, 220, 240)
    blocks = Blocks(np.array([180, 620, 250]), np.array([0, 2, 2]))
    row = window_before(180, 150)[0]
    foreign(split, blocks, 40)(row, 0)
    assert row[:110].tolist() == list(range(470, 580))
    blocks = Blocks(np.array([260, 330]), np.array([2, 2]))
    row = window_before(260, 150)[0]  # crosses documents: 110 … 219 belong to the first
    with pytest.raises(ValueError, match="--lengths"):
        foreign(split, blocks, 40)(row, 0)  # 330 brings 180 … 289
