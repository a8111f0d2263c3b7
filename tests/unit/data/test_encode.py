"""Text becomes token ids, words and batches: by hand, and by slow programs.

What is made of trees and rare words is held against tests/reference.py (tests/real/test_classify).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tiny_models import VOCABULARY, TextOnly, framed_tokenizer, tiny_tokenizer

from headscope.core.errors import CorpusError, InputError
from headscope.data.batches import BATCH_COST, buckets
from headscope.data.edge_trials import uniform_weight
from headscope.data.pieces import Frame, encode_lines, frame, tokenise
from headscope.data.sentences import Sentence
from headscope.data.token_rows import window_rows
from headscope.data.word_pieces import EncodedSentence, encode_words, placed

IDS = {piece: i for i, piece in enumerate(VOCABULARY)}
CLS = IDS["[CLS]"]
SEP = IDS["[SEP]"]


def encoded(*sentences: Sentence, max_length: int = 64) -> list[EncodedSentence | None]:
    model = TextOnly(tiny_tokenizer(max_length), max_length)
    return list(encode_words(model, placed(sentences)))


def encode(*lines: str, **options: int) -> list[Any]:
    return encoded(*(Sentence(tuple(line.split())) for line in lines), **options)


def test_alignment():
    (encoded_sentence,) = encode("The cats sat on zoo .")
    pieces = [VOCABULARY[i] for i in encoded_sentence.ids]
    assert pieces == ["[CLS]", "the", "cat", "##s", "sat", "on", "z", "##o", "##o", ".", "[SEP]"]
    assert encoded_sentence.word_of.tolist() == [-1, 0, 1, 1, 2, 3, 4, 4, 4, 5, -1]
    assert encoded_sentence.first.tolist() == [1, 2, 4, 5, 6, 9]
    assert len(encoded_sentence) == 11
    (odd,) = encoded(Sentence(("don't", "20 000", "...")))
    assert odd is not None
    assert odd.word_of.tolist() == [-1, *[0] * 5, *[1] * 5, *[2] * 3, -1], "each is one word"


def test_a_word_without_a_piece_is_left_out_and_its_sentence_is_kept():
    for word in ("\u200b", "\x01", "\ufeff"):
        lines = (("the", "cat"), ("the", word, "cat"), ("a",), ("cat", "the", "cat"), (word,))
        sentences = [Sentence(words) for words in lines]
        encoded_sentences = encoded(*sentences)
        assert [item and item.sentence.words for item in encoded_sentences] == [
            ("the", "cat"),
            ("the", "cat"),
            ("a",),
            ("cat", "the", "cat"),
            None,
        ]
        assert [item.left_out for item in encoded_sentences if item] == [0, 1, 0, 0]
        assert [item.with_piece.tolist() for item in encoded_sentences[:2] if item] == [
            [0, 1],
            [0, 2],
        ]
        # What has an empty word counts for the halves, and lends its tree.
        assert [(item.half, item.swapped) for item in encoded_sentences if item] == [
            (0, None),
            (1, None),
            (0, None),
            (1, sentences[1]),
        ]


def test_too_long_sentences_are_skipped_and_nothing_else_is_lost():
    encoded_sentences = encode("the cat sat", "the cat sat on", max_length=5)
    assert [item and len(item) for item in encoded_sentences] == [5, None]
    lines = [f"the cat {'s' * (i % 7 + 1)}" for i in range(600)]
    assert [" ".join(item.sentence.words) for item in encode(*lines) if item] == lines


def brute_uniform(pieces: Sequence[int], query: int, target: int) -> float:
    """Average over all orders in which equal sums may be ranked."""
    other_words = [word for word in range(len(pieces)) if word != query]
    orders = list(itertools.permutations(other_words))
    hits = [max(order, key=lambda word: pieces[word]) == target for order in orders]
    return sum(hits) / len(orders)  # max() takes the first of equals


def test_uniform_weight():
    for n in (2, 3, 4):
        query, target = np.array(list(itertools.permutations(range(n), 2))).T
        for pieces in itertools.product((1, 2, 3), repeat=n):
            expected = [brute_uniform(pieces, *pair) for pair in zip(query, target, strict=True)]
            weight = uniform_weight(np.array(pieces), query, target)
            np.testing.assert_allclose(weight, expected, atol=1e-12)


def test_buckets_hold_every_sentence_and_few_tokens():
    lines = [" ".join(["cat"] * (1 + (7 * i) % 11)) for i in range(40)]
    sentences = [*encode(*lines), None]
    batches = list(buckets(sentences, 30))
    in_batches = list(itertools.chain.from_iterable(batches))
    assert sorted(map(id, in_batches)) == sorted(map(id, sentences[:-1]))
    lengths = list(map(len, in_batches))
    assert lengths == sorted(lengths)
    for batch in batches:
        assert len(batch) == 1 or max(map(len, batch)) * len(batch) <= 30
    assert [[id(s) for s in b] for b in buckets(sentences, 30)] == [
        [id(s) for s in b] for b in batches
    ]
    sentences = encode("cat", " ".join(["cat"] * 20))
    assert [len(batch) for batch in buckets(sentences, 5)] == [1, 1], "longer than a batch: alone"


def brute_cost(lengths: list[int], tokens: int) -> int:
    """The cost of the cheapest way to cut sorted lengths, of all 2^(n-1) ways."""
    costs = []
    for cuts in itertools.product((False, True), repeat=len(lengths) - 1):
        batches = [[lengths[0]]]
        for cut, length in zip(cuts, lengths[1:], strict=True):
            if cut:
                batches.append([])
            batches[-1].append(length)
        if all(len(batch) == 1 or batch[-1] * len(batch) <= tokens for batch in batches):
            costs.append(sum(batch[-1] * len(batch) + BATCH_COST for batch in batches))
    return min(costs)


@pytest.mark.parametrize("tokens", [20, 100, 400])
def test_buckets_are_the_cheapest_way_to_cut_a_window(tokens):
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = sorted(rng.integers(1, 60, size=9).tolist())
        batches = list(buckets([range(length) for length in lengths], tokens))
        assert [len(item) for batch in batches for item in batch] == lengths
        cost = sum(len(batch[-1]) * len(batch) + BATCH_COST for batch in batches)
        assert cost == brute_cost(lengths, tokens)


def ids_of(pieces: str) -> list[int]:
    return [IDS[piece] for piece in pieces.split()]


def test_texts_and_lines_are_encoded_alike():
    (text,) = tokenise(TextOnly(), ["the cats sat"])
    lines = ["the cats sat", "the " * 9, "the cat"]
    read = list(encode_lines(TextOnly(max_length=6), lines))
    expected = ids_of("[CLS] the cat ##s sat [SEP]")
    assert text.ids == expected
    assert read == [expected, None, ids_of("[CLS] the cat [SEP]")]
    assert text.special_tokens_mask == [1, 0, 0, 0, 0, 1]
    with pytest.raises(CorpusError, match=r"embedding has\s+20 rows; .* do not belong together"):
        list(encode_lines(TextOnly(vocab_size=20), ["the zoo"]))


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        ("[CLS] $A [SEP]", (CLS,), (SEP,)),
        ("$A [SEP]", (), (SEP,)),
        ("[CLS] [CLS] $A", (CLS, CLS), ()),
        ("$A", (), ()),
    ],
)
def test_special_tokens_are_where_the_tokenizer_puts_them(template, before, after):
    model = TextOnly(framed_tokenizer(template))
    n_special = len(before) + len(after)
    assert frame(model, 9) == Frame(before, after, 9 - n_special)
    rows = window_rows(model, ["the cat sat on"], length=n_special + 2, count=9)
    expected = [(*before, *ids_of(text), *after) for text in ("the cat", "sat on")]
    assert [row.ids for row in rows] == expected
    with pytest.raises(InputError, match="tokens or more"):
        frame(model, n_special)
