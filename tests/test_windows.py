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
    windows = torch.cat([window_before(end, 100) for end in blocks.ends])
    changed = foreign(windows, split, blocks, 30) if kind == "foreign" else shuffled(windows, 30, seed=0)
    before = windows[i].tolist()
    after = changed[i].tolist()
    assert after[70:] == before[70:] and after[:70] != before[:70]
    if kind == "foreign":
        assert np.searchsorted(split.docs, after[69], side="right") - 1 != blocks.documents[i]
    else:
        assert sorted(after) == before


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 120, would bring tokens 70 … 99: the window's own."""
    split, window_before = text(400, 0, 100, 110)
    blocks = Blocks(np.array([80, 300, 120, 60]), np.array([0, 2, 2, 0]))
    windows = torch.cat([window_before(end, 50) for end in blocks.ends])
    assert foreign(windows, split, blocks, 20)[0, :30].tolist() == list(range(250, 280))
    blocks = Blocks(np.array([130, 165]), np.array([2, 2]))
    windows = torch.cat([window_before(end, 50) for end in blocks.ends])  # 80 … 109 belong to other documents
    with pytest.raises(ValueError, match="--lengths"):
        foreign(windows, split, blocks, 20)  # 165 brings 115 … 144
