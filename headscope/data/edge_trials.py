"""The gold edges of sentences as trials: does a head find this word from that one?

An edge of a tree is asked twice, from the word and from its head. :class:`EdgeTrials` has the
trials of a batch as flat tensors, so that all heads answer all of them at once.
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

#: (half, relation, direction): the half, 0 or 1, is that of :func:`.word_pieces.placed`; and the
#: same with a word offset.
RelationName = tuple[int, str, str]
OffsetName = tuple[int, str, str, int]
#: A query word, the words that would be a hit, and (relation, direction).
Trial = tuple[int, Sequence[int], tuple[str, str]]
#: How the edges of a tree are asked: from the word, and from its head.
TREE_WAYS = ("dep->head", "head->dep")
#: How a user's own pairs are asked: from the first word, and from the second.
PAIR_WAYS = ("from->to", "to->from")


@dataclass(frozen=True)
class EdgeTrials:
    """The gold edges of a batch as trials of (relation, direction).

    A trial asks one query word once. Its *pairs* are the words that would be a hit: one head
    (``dep->head``), or every dependent with that relation (``head->dep``); of a user's own pairs
    every word that the query is paired with by this label. As an argmax names one word, a trial
    hits exactly when one of its pairs does. Where words have no first piece in common with their
    patterns (:class:`CrossWords`), words are named by their numbers instead.
    """

    row: Tensor  # (pairs,): example of the batch
    query: Tensor  # (pairs,): first piece of the query word
    target: Tensor  # (pairs,): first piece of the target word
    trial: Tensor  # (pairs,): which trial the pair belongs to
    offset_key: Tensor  # (pairs,): index into ``offset_names``
    relation_key: Tensor  # (trials,): index into ``relation_names``
    first: Tensor  # (trials,), bool: whether the sentence's first word would be a hit
    last: Tensor  # The same for its last word
    #: (trials,), float64: probability that evenly spread attention hits: its word-level argmax is
    #: the *other* word with most pieces, any of them where several have as many.
    uniform: Tensor
    relation_names: tuple[RelationName, ...]
    offset_names: tuple[OffsetName, ...]


class RowTrials(NamedTuple):
    """The trials of one row of a batch, and what is to be known of its words."""

    half: int  # As :func:`.word_pieces.placed` deals sentences
    trials: Iterable[Trial]
    positions: Array  # (words,): what stands for each word in :class:`EdgeTrials`
    offset_origin: Array  # (query words,): the word that offsets are counted from
    last_word: int  # The last word that can be a target
    uniform: Callable[[Array, Array], Array]  # As :func:`uniform_weight`, of query and target words


def sentence_edge_trials(
    batch: Sequence[EncodedSentence], annotated: Sequence[Sentence | None]
) -> EdgeTrials:
    """Lay out the trials of a batch; each sentence is asked about the tree given for it.

    ``annotated`` are the sentences themselves, or others of as many words; None has no trials.
    """
    return edge_trials(
        RowTrials(
            half=encoded.half,
            trials=() if sentence is None else _both_ways(sentence),
            positions=encoded.first,
            offset_origin=np.arange(len(encoded.first)),
            last_word=len(encoded.first) - 1,
            uniform=functools.partial(uniform_weight, encoded.pieces),
        )
        for encoded, sentence in zip(batch, annotated, strict=True)
    )


def edge_trials(rows: Iterable[RowTrials]) -> EdgeTrials:
    """Lay out the trials of a batch, row by row."""
    # Number relations and offsets, gather the trials, and the pairs of each row as five columns.
    relations = Keys[RelationName]()
    offsets = Keys[OffsetName]()
    trials: list[tuple[int, bool, bool]] = []  # Relation, and whether first and last word hit
    # Each begins with no pair, so that a batch without trials can be joined too.
    pair_columns = [np.zeros((5, 0), np.int64)]
    uniform_of_pairs = [np.zeros(0)]
    for row_index, row_trials in enumerate(rows):
        pairs: list[tuple[int, int, int, int]] = []  # Query, target, trial, offset
        for query, targets, relation in row_trials.trials:
            name = (row_trials.half, *relation)
            for target in targets:
                offset = int(target - row_trials.offset_origin[query])
                pairs.append((query, target, len(trials), offsets.index((*name, offset))))
            trials.append((relations.index(name), 0 in targets, row_trials.last_word in targets))
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

    # Join the rows; the chance of a trial is the sum over its pairs.
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
    forward, backward = TREE_WAYS if sentence.pairs is None else PAIR_WAYS
    yield from trials_of(edges, forward)
    yield from trials_of(((other, word, label) for word, other, label in edges), backward)


def trials_of(edges: Iterable[Edge], direction: str) -> Iterator[Trial]:
    """Ask each word that edges (from, to, label) leave, once for each label."""
    targets: dict[tuple[int, str], list[int]] = {}
    for query, target, label in edges:
        targets.setdefault((query, label), []).append(target)
    for (query, label), words in targets.items():
        yield query, words, (label, direction)


def uniform_weight(pieces: Array, query: Array, target: Array) -> Array:
    """Return the probability that evenly spread attention of ``query`` is largest on ``target``.

    ``pieces`` counts those of each word, of at least two words; query and target differ.
    """
    longest = pieces == pieces.max()
    n_longest = int(longest.sum())
    if n_longest > 1:  # the query itself is no key
        return np.where(longest[target], 1.0 / (n_longest - longest[query]), 0.0)
    second_longest = pieces == pieces[~longest].max()
    if_query_is_longest = second_longest[target] / second_longest.sum()
    weight: Array = np.where(longest[query], if_query_is_longest, longest[target].astype(float))
    return weight
