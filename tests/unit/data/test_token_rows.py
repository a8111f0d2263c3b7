"""Rows, windows and masks of a task."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import VOCABULARY, TextOnly

from headscope.data.token_rows import Row, encode_rows, mask_row, pad_rows, window_rows
from headscope.errors import CorpusError


def test_pairs_are_one_row_and_too_long_ones_are_left_out() -> None:
    rows = list(encode_rows(TextOnly(max_length=8), ["the cat", "a a a a a a"], ["sat", "dog"]))
    assert rows[1] is None
    assert rows[0] is not None
    pieces = [VOCABULARY[i] for i in rows[0].ids]
    assert pieces == ["[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]"]
    assert rows[0].content == (1, 2, 4)


def test_windows_are_the_stream_cut_up() -> None:
    lines = ["the cat sat on a mat", "she saw", "he ran to it"]
    rows = window_rows(TextOnly(), lines, length=6, count=99)
    stream = " ".join(lines).split()
    assert len(rows) == len(stream) // 4
    for i, row in enumerate(rows):
        words = ["[CLS]", *stream[4 * i : 4 * i + 4], "[SEP]"]
        assert [VOCABULARY[j] for j in row.ids] == words
        assert (row.index, row.content) == (i, (1, 2, 3, 4))
    assert window_rows(TextOnly(), lines, length=6, count=2) == rows[:2]


def test_ids_that_the_embedding_lacks() -> None:
    with pytest.raises(CorpusError, match="do not belong together"):
        list(encode_rows(TextOnly(max_length=9, vocab_size=20), ["zoo"], None))
    with pytest.raises(CorpusError, match="do not belong together"):
        window_rows(TextOnly(vocab_size=20), ["zoo"], length=4, count=1)


def test_masks_are_fixed_by_seed_and_index() -> None:
    row = Row(5, tuple(range(100, 142)), None, tuple(range(1, 41)))
    masked = mask_row(row, 4, seed=0)
    assert masked == mask_row(row, 4, seed=0)
    assert masked.masked != mask_row(row, 4, seed=1).masked
    assert len(masked.masked) == 6  # 15% of 40
    assert set(masked.masked) <= set(row.content)
    assert [masked.ids[p] for p in masked.masked] == [4] * 6
    assert tuple(row.ids[p] for p in masked.masked) == masked.gold
    untouched = set(range(42)) - set(masked.masked)
    assert all(masked.ids[p] == row.ids[p] for p in untouched)
    assert len(mask_row(Row(0, (1, 7, 2), None, (1,)), 4, 0).masked) == 1
    assert mask_row(Row(0, (1, 2), None, ()), 4, 0).masked == ()


def test_masks_are_spread_evenly() -> None:
    counts = np.zeros(40)
    for i in range(600):
        row = Row(i, tuple(range(42)), None, tuple(range(1, 41)))
        counts[np.array(mask_row(row, 4, 0).masked) - 1] += 1
    assert counts.min() > 90 * 0.6
    assert counts.max() < 90 * 1.5


def test_padding() -> None:
    rows = [Row(3, (1, 5, 2), None, (1,), (1,), (9,)), Row(0, (1, 2), None, ())]
    batch = pad_rows(rows, pad_id=0, device="cpu")
    assert batch.input_ids.tolist() == [[1, 5, 2], [1, 2, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.index.tolist() == [3, 0]
    assert batch.masked.tolist() == [[0], [1]]
    assert batch.gold.tolist() == [9]
