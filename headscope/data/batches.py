"""Padded batches as tensors, with everything that the measurements need to know about the text.

Sentences are sorted by length inside a window and cut into batches of about equally many tokens,
so little is padded; the window bounds what is held, so memory does not grow with the corpus.

Word-level facts are stored at the word's *first piece*, so that word and piece indices are the same
thing and no measurement needs a second coordinate system.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headscope.core.accumulator import Array, Keys
from headscope.core.widest import widest_type
from headscope.data.files import Edge, Sentence, is_punctuation
from headscope.data.token_rows import PairRow, filled, padded
from headscope.data.word_pieces import EncodedSentence

#: (half, relation, direction): the half, 0 or 1, is that of :func:`.word_pieces.placed`; and the
#: same with a word offset.
RelationName = tuple[int, str, str]
OffsetName = tuple[int, str, str, int]
#: How the edges of a tree are asked: from the word, and from its head.
TREE_WAYS = ("dep->head", "head->dep")
#: How a user's own pairs are asked: from the first word, and from the second.
PAIR_WAYS = ("from->to", "to->from")
#: A tokenised sentence in any form: all that batching asks of it is its length.
Item = TypeVar("Item", bound=Sized)

#: Tokens of a batch, padding included: large enough for the matrix products to run at full speed,
#: small enough for the activations to stay in the processor's cache and for little padding.
BATCH_TOKENS = 1024
LARGE = 50_000_000  # Parameters beyond which what a token needs in memory counts.

_is_punctuation = functools.lru_cache(1 << 14)(is_punctuation)


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
    query: Tensor  # (pairs,): first piece of the query word, and of the target word
    target: Tensor
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


@dataclass(frozen=True)
class CrossWords:
    """The words on both sides of a batch of sources and targets, and a user's pairs of them."""

    #: (batch, target words, query_pos): 1 / pieces where the decoder is to write one of the word's
    of_target: Tensor
    of_source: Tensor  # (batch, source words, key_pos): 1 at the word's pieces
    pieces: Tensor  # (batch, source words), int64: pieces of each; 0 behind the last
    queries: Tensor  # (batch, target words), bool: 0 behind the last
    #: (batch, target words, source words), int64: how far a source word lies from the straight line
    #: between the ends of both sides, in words
    distance: Tensor
    half: Tensor  # (batch,), int64
    edges: EdgeTrials  # The pairs, asked from the target; queries and targets are words
    swapped: EdgeTrials  # The pairs of another example with as many words on both sides

    @property
    def inside(self) -> Tensor:
        """Whether both words exist: (batch, target words, source words)."""
        return self.queries[..., None] & (self.pieces > 0)[:, None]

    def near(self, farthest: int) -> Tensor:
        """The distances, clipped, as indices from 0: (batch, target words, source words)."""
        return self.distance.clamp(-farthest, farthest) + farthest


@dataclass(frozen=True)
class RareTargets:
    """Where the rarest words are; all (batch, pos), set at first pieces."""

    rarest: Tensor
    two_rarest: Tensor
    query: Tensor  # every word of a sentence that counts, except its rarest
    uniform: Tensor  # probability that evenly spread attention hits, at queries
    chance: Tensor  # (batch,), float64: sum over its queries of (number of rarest) / (words - 1)


@dataclass(frozen=True)
class Source:
    """What the encoder of a decoder's batch reads: the keys of cross-attention."""

    input_ids: Tensor  # (batch, key_pos), int64, as the mask
    attention_mask: Tensor
    content: Tensor  # (batch, key_pos), bool: real tokens that are not special
    #: (batch, query_pos), bool: the queries, where the decoder is to write a token that is not
    #: special; what it reads there is the token before.
    predicts_content: Tensor


@dataclass(frozen=True)
class Batch:
    """A padded batch of sentences with special tokens, as one stack reads them.

    A decoder with a source reads the true target behind a first token that every target begins with
    (teacher forcing); every piece of it is a word of its own.
    """

    #: (batch, pos), int64: what the model reads; the mask is 1 at real tokens.
    input_ids: Tensor
    attention_mask: Tensor
    #: (batch, pos), bool: real tokens that are not special; special tokens, the first and the last
    #: of each sentence; pieces of punctuation; the first piece of each word.
    content: Tensor
    special: Tensor
    first_special: Tensor
    last_special: Tensor
    punctuation: Tensor
    first_piece: Tensor
    #: (3, pieces), int64: additions that gather the pieces of each word at its first, in about
    #: log2(pieces) steps: row, position to add, position to add it to. Within a step no target
    #: occurs twice; sorted by row.
    folds: tuple[Tensor, ...]
    half: Tensor  # (batch,), int64: 0 or 1, as :func:`.word_pieces.placed` deals sentences
    pieces: Tensor  # (batch, pos), int64: pieces of each word, at its first piece; 0 elsewhere
    edges: EdgeTrials | None  # None for text without trees
    #: The same for the tree of another sentence of as many words; no trials where there is none.
    swapped: EdgeTrials | None
    rare: RareTargets  # without candidates where no frequencies are known
    causal: bool = False  # whether a token sees only itself and what stands before it
    source: Source | None = None  # what an encoder-decoder model reads besides
    words: CrossWords | None = None  # of sources and targets with labelled pairs
    left_out: int = 0  # words of these sentences that have no piece
    #: Sentences in scripts that put no space between words, whose words are not known
    unspaced: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(batch, pos)."""
        batch, pos = self.input_ids.shape
        return batch, pos

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a model is called with."""
        tokens = self.input_ids, self.attention_mask
        if self.source is None:
            return tokens
        return self.source.input_ids, self.source.attention_mask, *tokens

    @property
    def visible(self) -> Tensor:
        """How many real tokens each position may look at, (batch, pos)."""
        seen = self.attention_mask.cumsum(dim=1)
        return seen if self.causal else seen[:, -1:].expand_as(seen)

    def to(self, device: torch.device | str) -> Batch:
        """Copy every tensor to ``device``."""
        moved: Batch = self if str(device) == "cpu" else _moved(self, device)
        return moved


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        wide = value.dtype == torch.float64
        return (value.to(widest_type(device)) if wide else value).to(device)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, Batch | EdgeTrials | RareTargets | Source | CrossWords):
        parts = {f.name: _moved(getattr(value, f.name), device) for f in fields(value)}
        return type(value)(**parts)
    return value


def buckets(window: Sequence[Item | None], tokens: int = BATCH_TOKENS) -> Iterator[list[Item]]:
    """Cut a window into batches of similar lengths; the same window gives the same batches."""
    batch: list[Item] = []
    for sentence in sorted((item for item in window if item is not None), key=len):
        if batch and len(sentence) * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(sentence)
    if batch:
        yield batch


def collate(batch: Sequence[EncodedSentence], pad_id: int) -> Batch:
    """Pad sentences into one :class:`Batch`."""
    ids = filled([s.ids for s in batch], pad_id)
    word_of = filled([s.word_of for s in batch], -1)
    real = torch.arange(ids.shape[1]) < torch.tensor([[len(s)] for s in batch])
    content = word_of >= 0
    special = real & ~content
    has_edges = batch[0].sentence.edges is not None
    pieces = np.zeros(ids.shape, dtype=np.int64)
    punctuation = np.zeros(ids.shape, dtype=bool)
    for row, s in enumerate(batch):
        pieces[row, s.first] = s.pieces
        # The last mark is that of special tokens, whose word is -1.
        marks = np.array([*map(_is_punctuation, s.sentence.words), False])
        punctuation[row, : len(s)] = marks[s.word_of]
    return Batch(
        input_ids=ids,
        attention_mask=real.long(),
        content=content,
        special=special,
        first_special=special & (special.cumsum(1) == 1),
        last_special=special & (special.flip(1).cumsum(1).flip(1) == 1),
        punctuation=torch.from_numpy(punctuation),
        first_piece=torch.from_numpy(pieces > 0),
        folds=_folds(batch),
        half=torch.tensor([s.half for s in batch]),
        pieces=torch.from_numpy(pieces),
        edges=_edges(batch, [s.sentence for s in batch]) if has_edges else None,
        swapped=_edges(batch, [s.swapped for s in batch]) if has_edges else None,
        rare=_rare(batch, ids.shape),
        left_out=sum(s.left_out for s in batch),
        unspaced=sum(s.sentence.unspaced for s in batch),
    )


def collate_pairs(rows: Sequence[PairRow], pad_id: int) -> Batch:
    """Pad pairs into one :class:`Batch` of what the decoder reads, with the sources."""
    sentences = []
    for row in rows:
        ids = np.array(row.decoder_ids, dtype=np.int64)
        first = np.array(row.decoder_content, dtype=np.int64)
        word_of = np.full(len(ids), -1, dtype=np.int64)
        word_of[first] = np.arange(len(first))
        words = Sentence(("a",) * len(first))  # the words themselves are not used
        sentences.append(EncodedSentence(ids, word_of, first, words, None))
    batch = collate(sentences, pad_id)
    both = padded(rows, pad_id, "cpu")
    punctuation = torch.zeros(batch.size, dtype=torch.bool)
    content = torch.zeros(both.input_ids.shape, dtype=torch.bool)
    for row, marks, of_source in zip(rows, punctuation, content, strict=True):
        marks[list(row.decoder_punctuation)] = True
        of_source[list(row.content)] = True
    # What is written at a position is read at the next one; the last one ends the target.
    predicts_content = pad(batch.content[:, 1:], (0, 1))
    source = Source(both.input_ids, both.attention_mask, content, predicts_content)
    return dataclasses.replace(batch, punctuation=punctuation, causal=True, source=source)


def _folds(batch: Sequence[EncodedSentence]) -> tuple[Tensor, ...]:
    """Return the steps that gather a word's pieces at its first one: see :class:`Batch`.

    Step s = 1, 2, 4, ... adds piece p + s of a word to its piece p, for every p that is a multiple
    of 2 s.
    """
    parts = []
    for row, s in enumerate(batch):
        position = np.flatnonzero(s.word_of >= 0)
        piece = position - s.first[s.word_of[position]]
        parts.append(np.stack([np.full(len(position), row), position, piece]))
    rows, position, piece = np.concatenate(parts, axis=1)
    folds = []
    step = 1
    while step <= piece.max(initial=0):
        here = piece % (2 * step) == step
        folds.append(np.stack([rows[here], position[here], position[here] - step]))
        step *= 2
    return tuple(map(torch.from_numpy, folds))


def uniform_weight(pieces: Array, query: Array, target: Array) -> Array:
    """Return the probability that evenly spread attention of ``query`` is largest on ``target``.

    ``pieces`` counts those of each word, of at least two words; query and target differ.
    """
    longest = pieces == pieces.max()
    n_longest = int(longest.sum())
    if n_longest > 1:  # the query itself is no key
        return np.where(longest[target], 1.0 / (n_longest - longest[query]), 0.0)
    second = pieces == pieces[~longest].max()
    weight: Array = np.where(longest[query], second[target] / second.sum(), longest[target] * 1.0)
    return weight


class Asked(NamedTuple):
    """The trials of one row of a batch, and the positions of its words."""

    half: int
    trials: Iterable[tuple[int, Sequence[int], tuple[str, str]]]  # As :func:`trials_of` yields.
    places: Array  # (words,): what stands for each word in :class:`EdgeTrials`
    origin: Array  # (query words,): the word that offsets are counted from
    last: int  # The last word that can be a target
    uniform: Callable[[Array, Array], Array]  # As :func:`uniform_weight`, of query and target words


def _edges(batch: Sequence[EncodedSentence], annotated: Sequence[Sentence | None]) -> EdgeTrials:
    """Lay out the trials of a batch; each sentence is asked about the tree given for it."""
    return edge_trials(
        Asked(
            half=s.half,
            trials=() if sentence is None else _sentence_trials(sentence),
            places=s.first,
            origin=np.arange(len(s.first)),
            last=len(s.first) - 1,
            uniform=functools.partial(uniform_weight, s.pieces),
        )
        for s, sentence in zip(batch, annotated, strict=True)
    )


def edge_trials(rows: Iterable[Asked]) -> EdgeTrials:
    """Lay out the trials of a batch, row by row."""
    relations = Keys[RelationName]()
    offsets = Keys[OffsetName]()
    trials: list[tuple[int, bool, bool]] = []
    columns = [np.zeros((5, 0), np.int64)]
    weights = [np.zeros(0)]
    for row, asked in enumerate(rows):
        pairs: list[tuple[int, int, int, int]] = []
        for query, targets, relation in asked.trials:
            name = (asked.half, *relation)
            for target in targets:
                offset = offsets.index((*name, int(target - asked.origin[query])))
                pairs.append((query, target, len(trials), offset))
            trials.append((relations.index(name), 0 in targets, asked.last in targets))
        if pairs:
            query_word, target_word, trial, offset_key = np.array(pairs).T
            where = (np.full(len(pairs), row), asked.places[query_word], asked.places[target_word])
            columns.append(np.stack([*where, trial, offset_key]))
            weights.append(asked.uniform(query_word, target_word))
    of_pairs = torch.from_numpy(np.concatenate(columns, axis=1))
    uniform = np.zeros(len(trials))
    np.add.at(uniform, of_pairs[3].numpy(), np.concatenate(weights))
    relation_of, first, last = np.array(trials, dtype=np.int64).reshape(-1, 3).T
    return EdgeTrials(
        row=of_pairs[0],
        query=of_pairs[1],
        target=of_pairs[2],
        trial=of_pairs[3],
        offset_key=of_pairs[4],
        relation_key=torch.from_numpy(relation_of.copy()),
        first=torch.from_numpy(first > 0),
        last=torch.from_numpy(last > 0),
        uniform=torch.from_numpy(uniform),
        relation_names=tuple(relations.names),
        offset_names=tuple(offsets.names),
    )


def _sentence_trials(sentence: Sentence) -> Iterator[tuple[int, list[int], tuple[str, str]]]:
    """Ask every edge from both of its ends."""
    edges = sentence.edges or ()
    there, back = TREE_WAYS if sentence.pairs is None else PAIR_WAYS
    yield from trials_of(edges, there)
    yield from trials_of(((other, word, label) for word, other, label in edges), back)


def trials_of(
    edges: Iterable[Edge], direction: str
) -> Iterator[tuple[int, list[int], tuple[str, str]]]:
    """Yield (query word, words that would be a hit, (relation, direction)) of (from, to, label)."""
    targets: dict[tuple[int, str], list[int]] = {}
    for query, target, label in edges:
        targets.setdefault((query, label), []).append(target)
    for (query, label), words in targets.items():
        yield query, words, (label, direction)


def _rare(batch: Sequence[EncodedSentence], size: tuple[int, ...]) -> RareTargets:
    marks = np.zeros((3, *size), dtype=bool)
    uniform = np.zeros(size)
    chance = np.zeros(len(batch))
    for row, s in enumerate(batch):
        if s.rarity is None:
            continue
        rarest, two_rarest = map(np.array, s.rarity)
        n_words = len(s.first)
        queries = np.delete(np.arange(n_words), rarest)
        for mark, words in zip(marks, (rarest, two_rarest, queries), strict=True):
            mark[row, s.first[words]] = True
        hits = uniform_weight(s.pieces, queries[:, None], rarest).sum(axis=1)
        uniform[row, s.first[queries]] = hits
        chance[row] = len(queries) * len(rarest) / (n_words - 1)
    return RareTargets(*map(torch.from_numpy, (*marks, uniform, chance)))
