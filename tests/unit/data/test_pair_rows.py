"""Sources and targets as rows: what the tokenizer says, where targets end, what is too long."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_models import SPECIAL, VOCABULARY, TextOnly, framed_tokenizer, tiny_tokenizer
from transformers import MBartTokenizer

from headscope.data.batches import buckets
from headscope.data.pair_rows import Ends, PairRow, encode_pairs, pad_pairs, padded
from headscope.data.token_rows import Row, pad_rows
from headscope.errors import CorpusError

MASK, SEP = SPECIAL.index("[MASK]"), SPECIAL.index("[SEP]")
#: As if [MASK] were a decoder's start token and [SEP] its end token.
ENDS = Ends(start=MASK, stop=SEP)


def pieces(ids: tuple[int, ...]) -> str:
    return " ".join(VOCABULARY[i] for i in ids)


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
def test_targets_end_in_one_stop_token(template: str, source: str, labels: str) -> None:
    model = TextOnly(tokenizer=framed_tokenizer(template))
    (row,) = encode_pairs(model, ["the cat"], ["dog ran"], ENDS)
    assert row is not None
    assert pieces(row.ids) == source
    assert pieces(row.labels) == labels
    assert row.decoder_ids == (MASK, *row.labels[:-1])
    assert len(row) == len(row.ids) + len(row.labels)
    assert pieces([row.ids[p] for p in row.content]) == "the cat"
    assert pieces([row.decoder_ids[p] for p in row.decoder_content]) == "dog ran"


def test_targets_have_the_targets_special_tokens() -> None:
    """mBART-50 puts the source's language before a source, the target's before a target."""

    class TwoLanguages(MBartTokenizer):
        def _switch_to_target_mode(self) -> None:
            super()._switch_to_target_mode()
            self._tokenizer.post_processor = framed_tokenizer(
                "[SEP] $A"
            ).backend_tokenizer.post_processor

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


def test_pairs_too_long_on_either_side_are_left_out_and_never_cut() -> None:
    model = TextOnly(tokenizer=framed_tokenizer("$A"), max_length=4)
    sources = ["a a a a", "a a a a a", "a", "a"]
    targets = ["a a a", "a", "a a a", "a a a a"]  # the stop token counts
    rows = list(encode_pairs(model, sources, targets, ENDS))
    assert [row is None for row in rows] == [False, True, False, True]
    assert [row.index for row in rows if row is not None] == [0, 2]


def test_sources_without_a_token_are_left_out() -> None:
    model = TextOnly(tokenizer=framed_tokenizer("$A"))
    rows = list(encode_pairs(model, ["\u200b", "a"], ["a", "\u200b"], ENDS))
    assert rows[0] is None
    assert rows[1] is not None
    assert rows[1].labels == (SEP,)


def test_targets_that_the_embedding_lacks() -> None:
    with pytest.raises(CorpusError, match="do not belong together"):
        list(encode_pairs(TextOnly(vocab_size=20), ["the"], ["zoo"], ENDS))


def rows() -> list[PairRow]:
    model = TextOnly(tokenizer=framed_tokenizer("[CLS] $A [SEP]"))
    found = encode_pairs(model, ["the cat", "a", "dog"], ["ran", "a big red", "sat on"], ENDS)
    return [row for row in found if row is not None]


def test_padding_of_both_sides() -> None:
    batch = pad_pairs(rows(), pad_id=0, device="cpu")
    read = [pieces(ids) for ids in batch.input_ids.tolist()]
    assert read == ["[CLS] the cat [SEP]", "[CLS] a [SEP] [PAD]", "[CLS] dog [SEP] [PAD]"]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert [pieces(ids) for ids in batch.decoder_ids.tolist()] == [
        "[MASK] [CLS] ran [PAD] [PAD]",
        "[MASK] [CLS] a big red",
        "[MASK] [CLS] sat on [PAD]",
    ]
    assert batch.decoder_mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 1, 1, 1, 0]]
    assert batch.labels[0].tolist()[3:] == [-100, -100]
    assert batch.source_content.tolist()[1] == [False, True, False, False]
    assert batch.decoder_content.tolist()[0] == [False, False, True, False, False]
    assert batch.index.tolist() == [0, 1, 2]
    assert batch.decoder_inputs["decoder_input_ids"] is batch.decoder_ids
    assert batch.hidden_mask is batch.decoder_mask


def test_what_is_asked_for_is_every_target_token() -> None:
    """Row and position of each, in the order of the labels, also where a pad token is a label."""
    pairs = rows()
    pairs[0] = dataclasses.replace(pairs[0], labels=(2, 0, 3))  # 0 pads, too
    batch = pad_pairs(pairs, pad_id=0, device="cpu")
    expected = [(i, t, token) for i, row in enumerate(pairs) for t, token in enumerate(row.labels)]
    assert list(zip(*batch.masked.tolist(), batch.gold.tolist(), strict=True)) == expected
    assert int(batch.decoder_mask.sum()) == len(expected)


def test_both_kinds_of_rows_are_padded() -> None:
    alone = [Row(0, (1, 5, 2), None, (1,))]
    assert torch.equal(padded(alone, 0, "cpu").input_ids, pad_rows(alone, 0, "cpu").input_ids)
    assert padded(alone, 0, "cpu").decoder_inputs == {}
    assert torch.equal(
        padded(rows(), 0, "cpu").hidden_mask, pad_pairs(rows(), 0, "cpu").decoder_mask
    )


def test_batches_count_both_sides() -> None:
    sizes = [len(batch) for batch in buckets(rows(), tokens=16)]
    assert sizes == [2, 1]
    assert len(list(buckets(rows(), tokens=100))) == 1
    assert tiny_tokenizer().pad_token_id == 0
