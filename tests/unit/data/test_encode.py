"""Encoding and batches, against naive recomputations sentence by sentence."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, TextOnly, tiny_tokenizer

from headscope.core.errors import CorpusError
from headscope.data.batches import Batch, buckets, collate, uniform_weight
from headscope.data.files import Sentence
from headscope.data.frequencies import Frequencies
from headscope.data.pieces import EncodedSentence, Rarity, encode_words, placed

PAD = 0
COUNTS = {"the": 900.0, "a": 800.0, "cat": 50.0, "dog": 50.0, "sat": 20.0, "zebra": 3.0, "yak": 3.0}
FREQUENT = frozenset({"the", "a"})


def encoder(
    *,
    max_length: int = 64,
    vocab_size: int = len(VOCABULARY),
    counts: Mapping[str, float] = COUNTS,
    frequent: frozenset[str] = FREQUENT,
) -> Any:
    frequencies = Frequencies("test", lambda word: counts.get(word, 0.0), frequent)
    model = TextOnly(tiny_tokenizer(max_length), max_length, vocab_size)
    return partial(encode_words, model, frequencies=frequencies)


def encode(*lines: str, **options: Any) -> list[EncodedSentence | None]:
    sentences = [Sentence(tuple(line.split())) for line in lines]
    return list(encoder(**options)(placed(sentences)))


def one(line: str, **options: Any) -> EncodedSentence:
    (found,) = encode(line, **options)
    assert found is not None
    return found


def test_alignment():
    found = one("The cats sat on zoo .")
    pieces = [VOCABULARY[i] for i in found.ids]
    assert pieces == ["[CLS]", "the", "cat", "##s", "sat", "on", "z", "##o", "##o", ".", "[SEP]"]
    assert found.word_of.tolist() == [-1, 0, 1, 1, 2, 3, 4, 4, 4, 5, -1]
    assert found.first.tolist() == [1, 2, 4, 5, 6, 9]
    assert len(found) == 11
    (odd,) = encoder()(placed([Sentence(("don't", "20 000", "..."))]))
    assert odd is not None
    assert odd.word_of.tolist() == [-1, *[0] * 5, *[1] * 5, *[2] * 3, -1], "each is one word"


def test_sentences_with_an_empty_word_or_too_long_are_skipped_and_nothing_else_is_lost():
    for word in ("\u200b", "\x01", "\ufeff"):
        lines = (("the", "cat"), ("the", word, "cat"), ("a",), ("cat", "the", "cat"))
        sentences = [Sentence(words) for words in lines]
        found = list(encoder()(placed(sentences)))
        assert [item is None for item in found] == [False, True, False, False]
        # What is skipped counts for the halves, and lends its tree.
        assert [(item.half, item.swapped) for item in found if item] == [
            *((0, None), (0, None), (1, sentences[1])),
        ]
    found = encode("the cat sat", "the cat sat on", max_length=5)
    assert [item and len(item) for item in found] == [5, None]
    lines = [f"the cat {'s' * (i % 7 + 1)}" for i in range(600)]
    assert [" ".join(item.sentence.words) for item in encode(*lines) if item] == lines
    with pytest.raises(CorpusError, match="do not belong together"):
        encode("the zebra", vocab_size=20)


def test_rarity():
    for line, expected in {
        # rarest, two rarest
        "the cat sat .": ((2,), (1, 2)),
        "The Cat Sat": ((2,), (1, 2)),
        "the cat and dog , sat": ((2,), (2, 5)),
        "zebra the yak sat": ((0, 2), (0, 2)),
        "zebra the cat dog a": ((0,), (0, 2, 3)),
        "zebra zebra the": ((0, 1), (0, 1)),
        "- unseen .": ((1,), (1,)),
        "the a the .": None,  # the rarest is one of the most frequent words
        "the .": None,
        ". !": None,
        "zebra": None,  # no other word to look from
    }.items():
        assert one(line).rarity == (None if expected is None else Rarity(*expected)), line


def brute_uniform(pieces: Sequence[int], query: int, target: int) -> float:
    """Average over all orders in which equal sums may be ranked."""
    others = [word for word in range(len(pieces)) if word != query]
    orders = list(itertools.permutations(others))
    hits = [max(order, key=lambda word: pieces[word]) == target for order in orders]
    return sum(hits) / len(orders)  # max() takes the first of equals


def test_uniform_weight():
    for n in (2, 3, 4):
        query, target = np.array(list(itertools.permutations(range(n), 2))).T
        for pieces in itertools.product((1, 2, 3), repeat=n):
            expected = [brute_uniform(pieces, *pair) for pair in zip(query, target, strict=True)]
            found = uniform_weight(np.array(pieces), query, target)
            np.testing.assert_allclose(found, expected, atol=1e-12)


def test_buckets_hold_every_sentence_and_few_tokens():
    lines = [" ".join(["cat"] * (1 + (7 * i) % 11)) for i in range(40)]
    found = [*encode(*lines), None]
    batches = list(buckets(found, 30))
    assert sorted(id(s) for batch in batches for s in batch) == sorted(map(id, found[:-1]))
    lengths = [len(s) for batch in batches for s in batch]
    assert lengths == sorted(lengths)
    for batch in batches:
        assert len(batch) == 1 or max(map(len, batch)) * len(batch) <= 30
    assert [[id(s) for s in b] for b in buckets(found, 30)] == [[id(s) for s in b] for b in batches]
    found = encode("cat", " ".join(["cat"] * 20))
    assert [len(batch) for batch in buckets(found, 5)] == [1, 1], "longer than a batch: alone"


#: Words, heads (-1 the root), relations: several pieces, punctuation, several dependents alike.
TREES = [
    Sentence(
        ("The", "cats", "saw", "a", "zebra", "and", "yaks", "."),
        (1, 2, -1, 4, 2, 6, 4, 2),
        ("det", "nsubj", "root", "det", "obj", "cc", "conj", "punct"),
    ),
    Sentence(("Dogs", "sat", "..."), (1, -1, 1), ("nsubj", "root", "punct")),
    Sentence(
        ("big", "red", "unseen", "house", "zebra", "yak"),
        (3, 3, 3, -1, 3, 3),
        ("amod", "amod", "amod", "root", "obj", "obj"),
    ),
    Sentence(("the", "a"), (-1, 0), ("root", "det")),
    Sentence(("zebra",), (-1,), ("root",)),
    Sentence(("?!", "yak"), (1, -1), ("punct", "root")),
]


@pytest.fixture(scope="module")
def encoded() -> list[EncodedSentence]:
    found = [item for item in encoder()(placed(TREES)) if item is not None]
    assert len(found) == len(TREES)
    return found


@pytest.fixture(scope="module")
def batch(encoded: list[EncodedSentence]) -> Batch:
    """All sentences together; every test holds it against each alone, without padding."""
    return collate(encoded, PAD)


def n_pieces(s: EncodedSentence) -> list[int]:
    return [s.word_of.tolist().count(word) for word in range(len(s.first))]


def cells(
    batch: Batch, encoded: Sequence[EncodedSentence]
) -> Iterator[tuple[tuple[int, int], EncodedSentence, int]]:
    """(row and position, sentence, word): word is -1 for special tokens, -2 for padding."""
    for row, s in enumerate(encoded):
        words = [*s.word_of.tolist(), *[-2] * (batch.size[1] - len(s))]
        yield from (((row, position), s, word) for position, word in enumerate(words))


Trial = tuple[str, str, int, int, frozenset[tuple[int, int]], float]


def naive_trials(encoded: Sequence[EncodedSentence]) -> list[Trial]:
    """(relation, direction, row, query, {(target, word offset)}, hit rate of even attention)."""
    trials: list[Trial] = []
    for row, s in enumerate(encoded):
        heads, relations = s.sentence.heads or (), s.sentence.relations or ()

        def trial(relation: str, way: str, query: int, targets: list[int], row=row, s=s) -> Trial:
            places = frozenset((int(s.first[t]), t - query) for t in targets)
            uniform = sum(brute_uniform(n_pieces(s), query, t) for t in targets)
            return relation, way, row, int(s.first[query]), places, round(uniform, 9)

        for word, head in enumerate(heads):
            if head >= 0:
                trials.append(trial(relations[word], "dep->head", word, [head]))
        for head, relation in itertools.product(range(len(heads)), sorted(set(relations))):
            words = [w for w in range(len(heads)) if (heads[w], relations[w]) == (head, relation)]
            if words:
                trials.append(trial(relation, "head->dep", head, words))
    return trials


def test_trials(batch, encoded):
    edges = batch.edges
    assert edges is not None
    found: list[Trial] = []
    for trial, key in enumerate(edges.relation_key.tolist()):
        half, relation, way = edges.relation_names[key]
        pairs = torch.nonzero(edges.trial == trial).flatten().tolist()
        assert len({(int(edges.row[p]), int(edges.query[p])) for p in pairs}) == 1
        places = set()
        for pair in pairs:
            *name, offset = edges.offset_names[int(edges.offset_key[pair])]
            assert name == [half, relation, way]
            places.add((int(edges.target[pair]), offset))
        assert len(places) == len(pairs)
        row, query = int(edges.row[pairs[0]]), int(edges.query[pairs[0]])
        assert half == encoded[row].half
        words, targets = encoded[row].first.tolist(), {place for place, _ in places}
        assert bool(edges.first[trial]) == (words[0] in targets)
        assert bool(edges.last[trial]) == (words[-1] in targets)
        uniform = round(float(edges.uniform[trial]), 9)
        found.append((relation, way, row, query, frozenset(places), uniform))
    key = repr
    assert sorted(found, key=key) == sorted(naive_trials(encoded), key=key)
    assert len(set(edges.relation_names)) == len(edges.relation_names)
    assert len(set(edges.offset_names)) == len(edges.offset_names)


def test_rare_marks(batch, encoded):
    rare = batch.rare
    chance = queries = 0.0
    for at, s, word in cells(batch, encoded):
        marks = [bool(m[at]) for m in (rare.rarest, rare.two_rarest, rare.query)]
        if s.rarity is None or word < 0 or s.first[word] != at[1]:
            assert marks == [False] * 3
            assert float(rare.uniform[at]) == 0
            continue
        rarest, is_query = s.rarity.rarest, word not in s.rarity.rarest
        assert marks == [not is_query, word in s.rarity.two_rarest, is_query]
        expected = sum(brute_uniform(n_pieces(s), word, t) for t in rarest) if is_query else 0
        assert float(rare.uniform[at]) == pytest.approx(expected)
        chance += is_query * len(rarest) / (len(s.first) - 1)
        queries += is_query
    assert float(rare.chance.sum()) == pytest.approx(chance)
    assert int(rare.query.sum()) == queries > 0
