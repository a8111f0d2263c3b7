"""Rows of tasks: tokens and pairs, what is masked, halves and swapped sources."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import SPECIAL, VOCABULARY, TextOnly, framed_tokenizer
from transformers import MBartTokenizer

from headscope.data.batches import buckets
from headscope.data.halves import halve
from headscope.data.token_rows import (
    Ends,
    PairRow,
    Row,
    encode_pairs,
    encode_rows,
    mask_row,
    padded,
    with_swapped_sources,
)

MASK = SPECIAL.index("[MASK]")
SEP = SPECIAL.index("[SEP]")
#: As if [MASK] were a decoder's start token and [SEP] its end token.
ENDS = Ends(start=MASK, stop=SEP)


def pieces(ids: tuple[int, ...]) -> str:
    return " ".join(VOCABULARY[i] for i in ids)


def test_pairs_are_one_row_and_too_long_ones_are_left_out():
    rows = list(encode_rows(TextOnly(max_length=8), ["the cat", "a a a a a a"], ["sat", "dog"]))
    assert rows[1] is None
    assert rows[0] is not None
    assert pieces(rows[0].ids) == "[CLS] the cat [SEP] sat [SEP]"
    assert rows[0].content == (1, 2, 4)


def test_masks_are_fixed_by_seed_and_index_and_spread_evenly():
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
    counts = np.zeros(40)
    for i in range(600):
        row = Row(i, tuple(range(42)), None, tuple(range(1, 41)))
        counts[np.array(mask_row(row, 4, 0).masked) - 1] += 1
    assert 90 * 0.6 < counts.min() <= counts.max() < 90 * 1.5


@pytest.mark.parametrize(
    ("template", "source", "labels"),
    [
        ("[CLS] $A [SEP]", "[CLS] the cat [SEP]", "[CLS] dog ran [SEP]"),  # as BART has it
        ("$A [SEP]", "the cat [SEP]", "dog ran [SEP]"),  # T5, Marian
        ("$A", "the cat", "dog ran [SEP]"),  # nothing at all
        ("$A [SEP] [CLS]", "the cat [SEP] [CLS]", "dog ran [SEP]"),  # a language code at the end
        ("$A [SEP] [SEP]", "the cat [SEP] [SEP]", "dog ran [SEP]"),
    ],
)
def test_targets_end_in_one_stop_token(template, source, labels):
    model = TextOnly(tokenizer=framed_tokenizer(template))
    (row,) = encode_pairs(model, ["the cat"], ["dog ran"], ENDS)
    assert row is not None
    assert (pieces(row.ids), pieces(row.labels)) == (source, labels)
    assert row.decoder_ids == (MASK, *row.labels[:-1])
    assert len(row) == len(row.ids) + len(row.labels)
    assert pieces([row.ids[p] for p in row.content]) == "the cat"
    assert pieces([row.decoder_ids[p] for p in row.decoder_content]) == "dog ran"


def test_targets_have_the_targets_special_tokens():
    """mBART-50 puts the source's language before a source, the target's before a target."""

    class TwoLanguages(MBartTokenizer):
        def _switch_to_target_mode(self) -> None:
            super()._switch_to_target_mode()
            framed = framed_tokenizer("[SEP] $A").backend_tokenizer
            self._tokenizer.post_processor = framed.post_processor

    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("[SEP]", 0.0), ("<unk>", 0.0)]
    vocab += [(letter, -2.0) for letter in "\u2581abc"]
    tokenizer = TwoLanguages(vocab=vocab, src_lang="en_XX", tgt_lang="ro_RO", unk_token="<unk>")
    model = TextOnly(tokenizer=tokenizer, vocab_size=len(tokenizer))
    (row,) = encode_pairs(model, ["ab"], ["ba"], Ends(start=0, stop=2))
    assert row is not None
    spelled = tokenizer.convert_ids_to_tokens
    assert spelled(list(row.ids)) == ["\u2581", "a", "b", "</s>", "en_XX"]
    assert spelled(list(row.labels)) == ["[SEP]", "\u2581", "b", "a", "</s>"]
    assert row.decoder_content == (2, 3, 4)


def test_pairs_too_long_or_without_a_source_are_left_out_and_never_cut():
    model = TextOnly(tokenizer=framed_tokenizer("$A"), max_length=4)
    sources = ["a a a a", "a a a a a", "a", "a", "\u200b", "a"]
    targets = ["a a a", "a", "a a a", "a a a a", "a", "\u200b"]  # the stop token counts
    rows = list(encode_pairs(model, sources, targets, ENDS))
    assert [row and row.index for row in rows] == [0, None, 2, None, None, 5]
    assert rows[5] is not None
    assert rows[5].labels == (SEP,)


def test_every_target_token_is_asked_for_and_batches_count_both_sides():
    """Row and position of each, in the order of the labels, also where a pad token is a label."""
    model = TextOnly(tokenizer=framed_tokenizer("[CLS] $A [SEP]"))
    pairs = list(encode_pairs(model, ["the cat", "a", "dog"], ["ran", "a big red", "sat on"], ENDS))
    assert [len(some) for some in buckets(pairs, tokens=16)] == [2, 1]
    assert len(list(buckets(pairs, tokens=100))) == 1
    pairs[0] = dataclasses.replace(pairs[0], labels=(2, 0, 3))  # 0 pads, too
    batch = padded(pairs, pad_id=0, device="cpu")
    expected = []
    for i, row in enumerate(pairs):
        expected += [(i, position, token) for position, token in enumerate(row.labels)]
    assert list(zip(*batch.masked.tolist(), batch.gold.tolist(), strict=True)) == expected
    assert int(batch.decoder_mask.sum()) == len(expected)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20), st.integers(0, 9))
def test_every_example_is_in_one_half_and_no_sentence_in_both(pairs, seed):
    first, second = halve(pairs, seed)
    assert sorted((*first, *second)) == list(range(len(pairs)))
    # The largest set of pairs that hang together, found by spreading marks until nothing changes.
    marks = list(range(len(pairs)))
    for _ in pairs:
        for i, a in enumerate(pairs):
            marks[i] = min(marks[j] for j, b in enumerate(pairs) if set(a) & set(b))
    largest = max((marks.count(mark) for mark in marks), default=0)
    if 2 * largest <= len(pairs):
        first_texts = set().union(*(pairs[i] for i in first))
        second_texts = set().union(*(pairs[i] for i in second))
        assert not first_texts & second_texts
    assert abs(len(first) - len(second)) <= max(largest, 1)


def from_source(index: int, source: tuple[int, ...]) -> PairRow:
    decoder_fields = {"decoder_ids": (2, 7), "labels": (7, 3), "decoder_content": (1,)}
    content = tuple(range(len(source)))
    return PairRow(index=index, ids=(*source, 3), types=None, content=content, **decoder_fields)


def test_the_nearest_other_source_of_the_length_is_taken():
    """Against a search through all that came before; skipped pairs keep their place."""
    rows = [from_source(0, (5, 6)), None, from_source(2, (8, 9))]
    assert [item and item.ids for item in with_swapped_sources(rows)] == [None, None, (5, 6, 3)]
    rng = random.Random(3)
    sources = [tuple(rng.choices((5, 6), k=rng.randint(1, 3))) for _ in range(200)]
    swapped_rows = list(with_swapped_sources(from_source(i, s) for i, s in enumerate(sources)))
    for i, (source, item) in enumerate(zip(sources, swapped_rows, strict=True)):
        earlier_sources = [s for s in sources[:i] if len(s) == len(source) and s != source]
        assert (item.ids[:-1] if item else None) == (
            earlier_sources[-1] if earlier_sources else None
        )
        assert item is None or (item.index, item.labels) == (i, (7, 3))
