"""The gold edges of sentences as trials: does a head find this word from that one?

An edge of a tree is asked twice, from the word and from its head. In "the cat sat" the edges are
(the, cat, det) and (cat, sat, nsubj), and there are four trials::

    query   targets   label   direction
    the     cat       det     dep->head
    cat     sat       nsubj   dep->head
    cat     the       det     head->dep
    sat     cat       nsubj   head->dep

:class:`EdgeTrials` has the trials of a batch as flat tensors, so that all heads answer all of them
at once. :func:`sentence_edge_trials` makes them for sentences, :func:`edge_trials` for any rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Array, Keys
from headscope.data.sentences import Edge, Sentence
from headscope.data.word_pieces import EncodedSentence

#: (half of the corpus, 0 or 1; relation; direction), such as ``(0, "nsubj", "dep->head")``.
RelationName = tuple[int, str, str]
#: The same with the offset from query to target, in words.
OffsetName = tuple[int, str, str, int]
#: How the edges of a tree are asked: from the word, and from its head.
TREE_WAYS = ("dep->head", "head->dep")
#: How a user's own pairs are asked: from the first word, and from the second.
PAIR_WAYS = ("from->to", "to->from")


class Trial(NamedTuple):
    """One query word, and the words that would be a hit."""

    query: int
    targets: Sequence[int]
    label: str  # The relation of a tree, or the label of a user's pairs
    direction: str


@dataclass(frozen=True)
class EdgeTrials:
    """The gold edges of a batch as trials of (relation, direction).

    Each query with one of its targets is a *pair*: a trial has one pair (``dep->head``), or one for
    every dependent with that relation (``head->dep``), or one for every word that a user has paired
    with the query by this label. As an argmax names one word, a trial hits exactly when one of its
    pairs does.

    Words are named by their first pieces; in cross-attention (:mod:`.cross_pairs`) by their numbers
    in the target and in the source.
    """

    row: Tensor  # (pairs,): example of the batch
    query: Tensor  # (pairs,): first piece of the query word
    target: Tensor  # (pairs,): first piece of the target word
    trial: Tensor  # (pairs,): index of the trial that the pair belongs to
    offset_key: Tensor  # (pairs,): index into ``offset_names``
    relation_key: Tensor  # (trials,): index into ``relation_names``
    first: Tensor  # (trials,), bool: whether the sentence's first word would be a hit
    last: Tensor  # (trials,), bool: whether the sentence's last word would be a hit
    #: (trials,), float64: the probability that evenly spread attention hits, see
    #: :func:`uniform_weight`
    uniform: Tensor
    relation_names: tuple[RelationName, ...]
    offset_names: tuple[OffsetName, ...]


class RowTrials(NamedTuple):
    """The trials of one row of a batch, and what has to be known of its words."""

    half: int  # 0 or 1: the half of the corpus that the row is in
    trials: Iterable[Trial]
    positions: Array  # (words,): the name of each word in :class:`EdgeTrials`
    #: (query words,): the word that the offset of a target is counted from, the query itself within
    #: one sentence
    offset_origin: Array
    first_word: int  # The first word that can be a target
    last_word: Array  # (query words,): the last word that each query can be asked for
    #: From query and target words to the probabilities that evenly spread attention hits
    uniform: Callable[[Array, Array], Array]


def sentence_edge_trials(
    batch: Sequence[EncodedSentence], annotated: Sequence[Sentence | None], *, causal: bool = False
) -> EdgeTrials:
    """Make the trials of a batch: the words of each sentence are asked for edges of a tree.

    ``annotated`` has one tree a sentence: its own, or as a control that of another sentence of as
    many words; None has no trials. In a ``causal`` stack a word is asked only for words before it.
    """
    rows = []
    for encoded, sentence in zip(batch, annotated, strict=True):
        words = np.arange(len(encoded.first))
        trials = () if sentence is None else _both_ways(sentence)
        row = RowTrials(
            half=encoded.half,
            trials=trials,
            positions=encoded.first,
            offset_origin=words,
            first_word=0,
            last_word=np.full(len(words), len(words) - 1),
            uniform=functools.partial(uniform_weight, encoded.pieces),
        )
        rows.append(_visible(row, encoded) if causal else row)
    return edge_trials(rows)


def _visible(row: RowTrials, encoded: EncodedSentence) -> RowTrials:
    """Keep the trials of a sentence that a causal stack can be asked for, with their baselines.

    A query's targets are words before it. A word that begins at position 0 is none: heads park
    there, whatever stands there. "Always the last word" is then the word before the query.
    """
    first_word = int(encoded.first[0] == 0)
    trials = []
    for trial in row.trials:
        targets = [target for target in trial.targets if first_word <= target < trial.query]
        if targets:
            trials.append(trial._replace(targets=targets))
    return row._replace(
        trials=trials,
        first_word=first_word,
        last_word=row.offset_origin - 1,
        uniform=functools.partial(uniform_weight_before, encoded.pieces, first_word),
    )


def edge_trials(rows: Iterable[RowTrials]) -> EdgeTrials:
    """Lay out the trials of a batch as flat tensors, row by row."""
    # Number relations and offsets in the order in which they come, and gather trials and pairs.
    relations = Keys[RelationName]()
    offsets = Keys[OffsetName]()
    trials: list[tuple[int, bool, bool]] = []  # Relation, and whether first and last word hit
    # Of each row (5, pairs): row, query, target, trial, offset. Both lists begin with no pair, so
    # that a batch without trials can be concatenated too.
    pair_columns = [np.zeros((5, 0), np.int64)]
    uniform_of_pairs = [np.zeros(0)]
    for row_index, row_trials in enumerate(rows):
        pairs: list[tuple[int, int, int, int]] = []  # Query word, target word, trial, offset
        for query, targets, label, direction in row_trials.trials:
            relation = (row_trials.half, label, direction)
            for target in targets:
                offset = int(target - row_trials.offset_origin[query])
                pairs.append((query, target, len(trials), offsets.index((*relation, offset))))
            first_hits = row_trials.first_word in targets
            last_hits = row_trials.last_word[query] in targets
            trials.append((relations.index(relation), first_hits, last_hits))
        if not pairs:
            continue
        query_words, target_words, trial_numbers, offset_keys = np.array(pairs).T
        columns = [
            np.full(len(pairs), row_index),
            row_trials.positions[query_words],
            row_trials.positions[target_words],
            trial_numbers,
            offset_keys,
        ]
        pair_columns.append(np.stack(columns))
        uniform_of_pairs.append(row_trials.uniform(query_words, target_words))

    # Concatenate the rows; the probability of a trial is the sum over its pairs.
    row, query, target, trial, offset_key = torch.from_numpy(np.concatenate(pair_columns, axis=1))
    uniform = np.zeros(len(trials))
    np.add.at(uniform, trial.numpy(), np.concatenate(uniform_of_pairs))
    relation_key, first, last = np.array(trials, dtype=np.int64).reshape(-1, 3).T
    return EdgeTrials(
        row=row,
        query=query,
        target=target,
        trial=trial,
        offset_key=offset_key,
        relation_key=torch.from_numpy(relation_key.copy()),
        first=torch.from_numpy(first > 0),
        last=torch.from_numpy(last > 0),
        uniform=torch.from_numpy(uniform),
        relation_names=tuple(relations.names),
        offset_names=tuple(offsets.names),
    )


def _both_ways(sentence: Sentence) -> Iterator[Trial]:
    """Ask every edge of a sentence from both of its words."""
    edges = sentence.edges or ()
    reversed_edges = [(second, first, label) for first, second, label in edges]
    forward, backward = TREE_WAYS if sentence.pairs is None else PAIR_WAYS
    yield from trials_of(edges, forward)
    yield from trials_of(reversed_edges, backward)


def trials_of(edges: Iterable[Edge], direction: str) -> Iterator[Trial]:
    """Ask the first word of edges (first, second, label), once for each of its labels.

    (2, 0, "obj") and (2, 4, "obj") are one trial: word 2, whose targets are words 0 and 4.
    """
    targets_of: dict[tuple[int, str], list[int]] = {}
    for query, target, label in edges:
        targets_of.setdefault((query, label), []).append(target)
    for (query, label), targets in targets_of.items():
        yield Trial(query=query, targets=targets, label=label, direction=direction)


def uniform_weight(pieces: Array, query: Array, target: Array) -> Array:
    """Return the probability that evenly spread attention of ``query`` is largest on ``target``.

    Attention to a word is the sum over its pieces, so it is largest on the *other* word with most
    pieces, on any of them where several have as many. With pieces [1, 3, 1] word 0 attends most to
    word 1 (probability 1), and word 1 to word 0 or 2 (1/2 each).

    ``pieces`` (words,) counts the pieces of each word, of two words or more; ``query`` and
    ``target`` (pairs,) are words, and differ.
    """
    longest = pieces == pieces.max()
    n_longest = int(longest.sum())
    if n_longest > 1:
        n_longest_keys = np.where(longest[query], n_longest - 1, n_longest)  # without the query
        return np.where(longest[target], 1.0 / n_longest_keys, 0.0)
    second_longest = pieces == pieces[~longest].max()
    if_query_is_longest = second_longest[target] / second_longest.sum()
    weight: Array = np.where(longest[query], if_query_is_longest, longest[target].astype(float))
    return weight


def uniform_weight_before(pieces: Array, first_word: int, query: Array, target: Array) -> Array:
    """Return :func:`uniform_weight` of queries that see only words before them.

    They see none before ``first_word`` either. With pieces [1, 3, 1, 1] and first word 0, word 3
    attends most to word 1 (probability 1); with first word 2 to word 2.
    """
    words = np.arange(len(pieces))
    is_visible = (words >= first_word) & (words < words[:, None])  # (query words, words)
    visible_pieces = np.where(is_visible, pieces, 0)
    longest = visible_pieces == visible_pieces.max(axis=1, keepdims=True)
    shares: Array = longest / longest.sum(axis=1, keepdims=True)
    return shares[query, target]
