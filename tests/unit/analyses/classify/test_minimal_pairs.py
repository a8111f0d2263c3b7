"""Minimal pairs: by hand on small trees, and what must hold of all pairs of the built-in sample."""

from collections.abc import Sequence

import numpy as np
import pytest

from headscope.analyses.classify.optional.minimal_pairs import (
    LONGEST,
    positional_pairs,
    stretches,
    subtree_spans,
    syntactic_pairs,
)
from headscope.data.corpus import sample_corpus
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import EncodedSentence

CLS = -1
SEP = -2
_NUMBERS: dict[str, int] = {}


def number(piece: str) -> int:
    return _NUMBERS.setdefault(piece, len(_NUMBERS))


def read(sentence: Sentence) -> EncodedSentence:
    """Words of more than six letters have two pieces."""
    ids = [CLS]
    word_of = [-1]
    first = []
    for i, word in enumerate(sentence.words):
        pieces = [word.lower()] if len(word) <= 6 else [word[:6].lower(), "##" + word[6:]]
        first.append(len(ids))
        ids += map(number, pieces)
        word_of += [i] * len(pieces)
    arrays = (np.array(row) for row in ([*ids, SEP], [*word_of, -1], first))
    return EncodedSentence(*arrays, sentence, None)


def tree(text: str, heads: Sequence[int], relations: str) -> EncodedSentence:
    """Heads count from 1, as in a treebank."""
    zero_based = tuple(head - 1 for head in heads)
    return read(Sentence(tuple(text.split()), zero_based, tuple(relations.split())))


SUBJECT = tree("the old cat saw it", [3, 3, 4, 0, 4], "det amod nsubj root obj")


def words(ids: Sequence[int]) -> list[str]:
    names = {value: key for key, value in _NUMBERS.items()}
    return [names[i] for i in ids[1:-1]]


def test_a_subject_is_moved():
    trees = (
        SUBJECT,
        tree("dogs from here ran", [4, 3, 1, 0], "nsubj case nmod root"),
        tree("a big dog ran", [3, 3, 4, 0], "det amod nsubj root"),
    )
    pairs = syntactic_pairs(trees, "nsubj", "head->dep", 9, np.random.default_rng(0))
    pair = next(p for p in pairs if words(p.sentence)[0] == "the")
    assert words(pair.elsewhere) == ["dogs", "from", "here", "saw", "it"]
    assert words(pair.same) == ["a", "big", "dog", "saw", "it"]
    assert list(pair.queries) == list(pair.queries_elsewhere) == [4]
    assert (list(pair.targets), list(pair.targets_elsewhere)) == ([3], [1])
    # The one with its subject in front has no other sentence of that kind: no equal answer.
    assert {words(p.sentence)[0] for p in pairs} == {"the", "a"}


def test_the_head_of_a_word_is_moved():
    trees = (
        tree("old cats here ran", [2, 4, 2, 0], "amod nsubj advmod root"),
        tree("big dogs there sat", [2, 4, 2, 0], "amod nsubj advmod root"),
        tree("the small hot cup fell", [4, 4, 4, 5, 0], "det amod compound nsubj root"),
    )
    pairs = syntactic_pairs(trees, "amod", "dep->head", 9, np.random.default_rng(0))
    pair = next(p for p in pairs if words(p.sentence)[0] == "old")
    assert words(pair.elsewhere) == ["old", "hot", "cup", "ran"]
    assert words(pair.same) == ["old", "dogs", "there", "ran"]
    assert (list(pair.queries), list(pair.targets), list(pair.targets_elsewhere)) == ([1], [2], [3])


def test_subtrees_with_gaps_are_left_out():
    assert subtree_spans([2, 2, -1, 0]) == [None, (1, 2), (0, 4), (3, 4)]
    crossing = tree("what did you see", [4, 4, 4, 0], "obj aux nsubj root")
    assert list(stretches(crossing, "obj", "head->dep"))
    gap = tree("what did you see of", [4, 4, 4, 0, 1], "obj aux nsubj root case")
    assert not list(stretches(gap, "obj", "head->dep"))


@pytest.fixture(scope="module")
def sample() -> list[EncodedSentence]:
    return [read(sentence) for sentence in sample_corpus()]


@pytest.mark.parametrize("direction", ["dep->head", "head->dep"])
@pytest.mark.parametrize("relation", ["nsubj", "amod", "det"])
def test_what_holds_of_all_syntactic_pairs(sample, relation, direction):
    pairs = syntactic_pairs(sample, relation, direction, 60, np.random.default_rng(1))
    assert len(pairs) >= 20, "too few to say anything"
    of_ids = {tuple(s.ids.tolist()): s for s in sample}
    assert len({tuple(p.sentence) for p in pairs}) == len(pairs)
    for pair in pairs:
        sentence = of_ids[tuple(pair.sentence)].sentence
        rows = list(pair.queries)
        assert rows == list(pair.queries_elsewhere)
        assert not set(pair.targets) & set(pair.targets_elsewhere)
        # What the query looks for really is its head, or its dependent of this relation.
        word_of = of_ids[tuple(pair.sentence)].word_of
        query = word_of[pair.queries[0]]
        target = word_of[pair.targets[0]]
        dependent, head = (query, target) if direction == "dep->head" else (target, query)
        assert (sentence.heads[dependent], sentence.relations[dependent]) == (head, relation)
        for other in (pair.elsewhere, pair.same):
            changed = [
                i for i, (a, b) in enumerate(zip(pair.sentence, other, strict=True)) if a != b
            ]
            assert changed
            assert changed[-1] - changed[0] < LONGEST
            assert not set(changed) & set(rows)


@pytest.mark.parametrize(("offset", "causal"), [(-1, False), (2, False), (-1, True)])
def test_what_holds_of_all_positional_pairs(sample, offset, causal):
    pairs = positional_pairs(sample, offset, 60, np.random.default_rng(1), causal=causal)
    assert len(pairs) == 60
    steps = set()
    for pair in pairs:
        (row,) = pair.queries
        (row_elsewhere,) = pair.queries_elsewhere
        (old,) = pair.targets
        (new,) = pair.targets_elsewhere
        assert (old - row, new - row_elsewhere) == (offset, offset)
        assert min(row, row_elsewhere, old, new) > 0
        assert max(row, row_elsewhere, old, new) < len(pair) - 1
        assert list(pair.elsewhere) == list(pair.same) != list(pair.sentence)
        assert len(pair.elsewhere) == len(pair)
        steps.add(row_elsewhere - row)
    assert steps == ({-1} if causal else {-1, 1})
