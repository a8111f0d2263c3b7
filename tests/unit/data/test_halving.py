"""Two halves without a common sentence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TextOnly

from headscope.data.halving import halve, sentences_of, shared_sentences
from headscope.data.token_rows import encode_rows, mask_row


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20), st.integers(0, 9))
def test_every_example_is_in_one_half_and_no_sentence_in_both(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    first, second = halve(pairs, seed)
    assert sorted((*first, *second)) == list(range(len(pairs)))
    # The largest set of pairs that hang together, found by spreading marks until nothing changes.
    marks = list(range(len(pairs)))
    for _ in pairs:
        for i, a in enumerate(pairs):
            marks[i] = min(marks[j] for j, b in enumerate(pairs) if set(a) & set(b))
    largest = max((marks.count(mark) for mark in marks), default=0)
    if 2 * largest <= len(pairs):
        texts = [{text for i in half for text in pairs[i]} for half in (first, second)]
        assert not texts[0] & texts[1]
        assert shared_sentences(pairs, first, second) == 0
    assert abs(len(first) - len(second)) <= max(largest, 1)


def test_single_examples_are_split_evenly_at_random() -> None:
    sentences = [(i,) for i in range(101)]
    halves = [halve(sentences, seed) for seed in range(3)]
    assert [len(first) for first, _ in halves] == [51, 51, 51]
    assert len({first for first, _ in halves}) == 3
    assert halve(sentences, 1) == halves[1]


def test_examples_that_all_share_a_sentence_are_dealt_out_and_counted() -> None:
    pairs = [("the same", i) for i in range(30)]
    first, second = halve(pairs, 0)
    assert len(first) == len(second) == 15
    assert shared_sentences(pairs, first, second) == 1


@pytest.mark.parametrize("second", [None, ["it was red", "it is red", "the cat sat"]])
def test_a_row_gives_its_texts_whatever_is_masked(second: list[str] | None) -> None:
    first = ["the cat sat", "a dog ran to the house", "it was red"]
    rows = [row for row in encode_rows(TextOnly(), first, second) if row is not None]
    found = [list(sentences_of(row)) for row in rows]
    masked = [list(sentences_of(mask_row(row, 4, random.randrange(99)))) for row in rows]
    assert found == masked
    texts = [[a, *b] for a, *b in zip(first, *([second] if second else []), strict=True)]
    token = {
        text: ids
        for row, ids_of in zip(texts, found, strict=True)
        for text, ids in zip(row, ids_of, strict=True)
    }
    assert len(set(token.values())) == len(token)
    if second:
        assert found[0][1] == found[2][0]  # it was red
        assert found[0][0] == found[2][1]  # the cat sat
