"""Length-bucketed batches of bounded size, from a bounded window of the corpus.

Sentences are sorted by length inside a window and cut into batches of about equally many tokens,
so little is padded; the window bounds what is held, so memory does not grow with the corpus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from headscope.core.accumulator import Array, Keys
from headscope.core.widest import widest_type
from headscope.data.encode import EncodedSentence
from headscope.data.sentence import Sentence, is_punctuation
from headscope.data.token_rows import PairRow, pad_pairs

#: (half, relation, direction): the half is 0 for sentences of even zero-based index in the corpus,
#: 1 for the others; and the same with a word offset.
RelationName = tuple[int, str, str]
OffsetName = tuple[int, str, str, int]


@dataclass(frozen=True)
class EdgeTrials:
    """The gold edges of a batch as trials of (relation, direction).

    A trial asks one query word once. Its *pairs* are the words that would be a hit: one head
    (``dep->head``), or every dependent with that relation (``head->dep``). As an argmax names one
    word, a trial hits exactly when one of its pairs does.
    """

    #: row, query, target: (pairs,): Example of the batch, first piece of the query word, first
    #: piece of the target word
    row: Tensor
    query: Tensor
    target: Tensor
    trial: Tensor  # (pairs,): Which trial the pair belongs to
    offset_key: Tensor  # (pairs,): Index into ``offset_names``
    relation_key: Tensor  # (trials,): Index into ``relation_names``
    #: first, last: (trials,), bool: Whether the sentence's first word, its last word, would be a
    #: hit
    first: Tensor
    last: Tensor
    #: (trials,), float64: Probability that evenly spread attention hits: its word-level argmax is
    #: the *other* word with most pieces, any of them where several have as many
    uniform: Tensor
    #: What ``relation_key`` counts in: (half, relation, direction)
    relation_names: tuple[RelationName, ...]
    #: What ``offset_key`` counts in: (half, relation, direction, word offset)
    offset_names: tuple[OffsetName, ...]


@dataclass(frozen=True)
class RareTargets:
    """Where the rarest words are; all (batch, pos), set at first pieces."""

    #: rarest, two_rarest, candidate: The rarest words, the two rarest, and all words with a letter
    #: or digit
    rarest: Tensor
    two_rarest: Tensor
    candidate: Tensor
    query: Tensor  # Every word of a sentence that counts, except its rarest
    uniform: Tensor  # Probability that evenly spread attention hits, at queries
    #: Probability that a candidate that this word attends to would be a hit, had the target words
    #: been drawn at random from the sentence's candidates
    null_weight: Tensor
    #: (batch,), float64: Sum over a sentence's queries of (number of rarest) / (words - 1)
    chance: Tensor
    null_queries: float  # Expected number of queries under that draw


@dataclass(frozen=True)
class Source:
    """What the encoder reads beside a decoder's batch: the keys of cross-attention."""

    input_ids: Tensor  # input_ids, attention_mask: (batch, key_pos), int64
    attention_mask: Tensor
    content: Tensor  # (batch, key_pos), bool: real tokens that are not special
    #: (batch, query_pos), bool: the queries, where the decoder is to write a token that is not
    #: special; what it reads there is the token before
    predicts_content: Tensor


@dataclass(frozen=True)
class Batch:
    """A padded batch of sentences with special tokens, as one stack reads them.

    A decoder with a source reads the true target behind a first token that every target begins with
    (teacher forcing); every piece of it is a word of its own.
    """

    #: input_ids, attention_mask: (batch, pos), int64: What the model reads; the mask is 1 at real
    #: tokens
    input_ids: Tensor
    attention_mask: Tensor
    content: Tensor  # (batch, pos), bool: Real tokens that are not special
    #: special, first_special, last_special, punctuation: (batch, pos), bool: Special tokens, the
    #: first and the last of each sentence, pieces of punctuation
    special: Tensor
    first_special: Tensor
    last_special: Tensor
    punctuation: Tensor
    first_piece: Tensor  # (batch, pos), bool: The first piece of each word
    #: (3, pieces), int64: Additions that gather the pieces of each word at its first, in about
    #: log2(pieces) steps: row, position to add, position to add it to. Within a step no target
    #: occurs twice; sorted by row.
    folds: tuple[Tensor, ...]
    #: (batch,), int64: 0 for sentences of even zero-based index in the corpus, 1 for the others
    half: Tensor
    #: (batch, pos), int64: Number of pieces of each word, at its first piece; 0 elsewhere
    pieces: Tensor
    edges: EdgeTrials | None  # None for text without trees
    #: The same of another sentence's tree with as many words; without trials where there is none
    swapped: EdgeTrials | None
    rare: RareTargets  # Without candidates where no frequencies are known
    #: Whether a token sees itself and what stands before it, no more: a decoder's self-attention
    causal: bool = False
    source: Source | None = None  # What an encoder-decoder model reads besides

    @property
    def size(self) -> tuple[int, int]:
        """(batch, pos)."""
        batch, pos = self.input_ids.shape
        return batch, pos

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a model is called with."""
        own = self.input_ids, self.attention_mask
        return (
            own
            if self.source is None
            else (self.source.input_ids, self.source.attention_mask, *own)
        )

    @property
    def visible(self) -> Tensor:
        """How many real tokens each position may look at, (batch, pos)."""
        seen = self.attention_mask.cumsum(dim=1)
        return seen if self.causal else seen[:, -1:].expand_as(seen)

    def to(self, device: torch.device | str) -> Batch:
        """Copy every tensor to ``device``."""
        if str(device) == "cpu":
            return self
        moved: Batch = _moved(self, device)
        return moved


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        if value.dtype == torch.float64:
            value = value.to(widest_type(device))
        return value.to(device)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, Batch | EdgeTrials | RareTargets | Source):
        return type(value)(
            **{f.name: _moved(getattr(value, f.name), device) for f in fields(value)}
        )
    return value


#: A tokenised sentence in any form: all that batching asks of it is its length.
Item = TypeVar("Item", bound=Sized)

WINDOW = 2048  # Sentences that are sorted by length together.
#: Tokens of a batch, padding included: large enough for the matrix products to run at full speed,
#: small enough for the activations to stay in the processor's cache and for little padding.
BATCH_TOKENS = 1024


def windows(encoded: Iterable[Item | None], size: int = WINDOW) -> Iterator[list[Item | None]]:
    """Cut a stream of sentences into windows of ``size``, skipped ones (None) included."""
    stream = iter(encoded)
    while window := list(islice(stream, size)):
        yield window


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
    longest = max(map(len, batch))
    ids = _padded([s.ids for s in batch], pad_id)
    word_of = _padded([s.word_of for s in batch], -1)
    real = _padded([np.ones(len(s), dtype=np.int64) for s in batch], 0)
    content = word_of >= 0
    special = real.bool() & ~content
    has_trees = batch[0].sentence.heads is not None
    return Batch(
        input_ids=ids,
        attention_mask=real,
        content=content,
        special=special,
        first_special=special & (special.cumsum(1) == 1),
        last_special=special & (special.flip(1).cumsum(1).flip(1) == 1),
        punctuation=_whole_words(_marked(longest, [_punctuation(s) for s in batch]), word_of),
        first_piece=_marked(longest, [s.first for s in batch]),
        folds=_folds(batch),
        half=torch.tensor([s.half for s in batch]),
        pieces=_piece_counts(batch, longest),
        edges=_edges(batch, [s.sentence for s in batch]) if has_trees else None,
        swapped=_edges(batch, [s.swapped for s in batch]) if has_trees else None,
        rare=_rare(batch, longest),
    )


def collate_pairs(rows: Sequence[PairRow], pad_id: int) -> Batch:
    """Pad pairs into one :class:`Batch` of what the decoder reads, with the sources beside it."""
    both = pad_pairs(rows, pad_id, "cpu")
    sentences = []
    for row in rows:
        ids = np.array(row.decoder_ids, dtype=np.int64)
        first = np.array(row.decoder_content, dtype=np.int64)
        word_of = np.full(len(ids), -1, dtype=np.int64)
        word_of[first] = np.arange(len(first))
        words = Sentence(("a",) * len(first))  # words themselves are not looked at
        sentences.append(EncodedSentence(ids, word_of, first, words, None))
    batch = collate(sentences, pad_id)
    return dataclasses.replace(
        batch,
        punctuation=_marked(batch.size[1], [np.array(r.decoder_punctuation, int) for r in rows]),
        causal=True,
        source=Source(
            input_ids=both.input_ids,
            attention_mask=both.attention_mask,
            content=both.source_content,
            # What is written at a position is read at the next one; the last one ends the target.
            predicts_content=pad(both.decoder_content[:, 1:], (0, 1)),
        ),
    )


def _padded(arrays: Sequence[Array], fill: int) -> Tensor:
    rows = [torch.from_numpy(array) for array in arrays]
    return pad_sequence(rows, batch_first=True, padding_value=fill)


def _marked(longest: int, positions: Sequence[Array]) -> Tensor:
    """Give each sentence a boolean row with True at its positions."""
    rows = np.zeros((len(positions), longest), dtype=bool)
    for row, at in zip(rows, positions, strict=True):
        row[at] = True
    return torch.from_numpy(rows)


def _punctuation(s: EncodedSentence) -> Array:
    """First pieces of the sentence's punctuation words."""
    marked: Array = s.first[np.array([is_punctuation(word) for word in s.sentence.words])]
    return marked


def _whole_words(first_pieces: Tensor, word_of: Tensor) -> Tensor:
    """Spread a mark at first pieces over all pieces of those words."""
    n_words = int(word_of.max()) + 2  # column 0 is word -1: special tokens and padding
    marked = torch.zeros(word_of.shape[0], n_words, dtype=torch.bool)
    rows, columns = torch.nonzero(first_pieces, as_tuple=True)
    marked[rows, word_of[rows, columns] + 1] = True
    return marked.gather(1, word_of + 1)


def _folds(batch: Sequence[EncodedSentence]) -> tuple[Tensor, ...]:
    """Steps that gather a word's pieces at its first one: see :class:`Batch`.

    Step s = 1, 2, 4, ... adds the piece at place p + s of its word to the one at place p, for every
    p that is a multiple of 2 s.
    """
    parts = []
    for row, s in enumerate(batch):
        position = np.flatnonzero(s.word_of >= 0)
        place = position - s.first[s.word_of[position]]
        parts.append(np.stack([np.full(len(position), row), position, place]))
    rows, position, place = np.concatenate(parts, axis=1)
    folds = []
    step = 1
    while step <= place.max(initial=0):
        here = place % (2 * step) == step
        folds.append(np.stack([rows[here], position[here], position[here] - step]))
        step *= 2
    return tuple(map(torch.from_numpy, folds))


def uniform_weight(pieces: Array, query: Array, target: Array) -> Array:
    """Probability that evenly spread attention of ``query`` has its word argmax on ``target``.

    ``pieces`` counts those of each word, of two at least; query and target are different words.
    """
    longest = pieces == pieces.max()
    n_longest = int(longest.sum())
    if n_longest > 1:  # the query itself is no key
        return np.where(longest[target], 1.0 / (n_longest - longest[query]), 0.0)
    second = pieces == pieces[~longest].max()
    weight: Array = np.where(longest[query], second[target] / second.sum(), longest[target] * 1.0)
    return weight


def _pieces(s: EncodedSentence) -> Array:
    return np.bincount(s.word_of[s.word_of >= 0], minlength=len(s.first))


def _piece_counts(batch: Sequence[EncodedSentence], longest: int) -> Tensor:
    counts = np.zeros((len(batch), longest), dtype=np.int64)
    for row, s in enumerate(batch):
        counts[row, s.first] = _pieces(s)
    return torch.from_numpy(counts)


def _edges(batch: Sequence[EncodedSentence], trees: Sequence[Sentence | None]) -> EdgeTrials:
    """Lay out the trials of a batch; each sentence is asked about the tree given for it."""
    relations, offsets = Keys[RelationName](), Keys[OffsetName]()
    trials: list[tuple[int, bool, bool]] = []
    columns = [np.zeros((5, 0), np.int64)]
    weights = [np.zeros(0)]
    for row, (s, tree) in enumerate(zip(batch, trees, strict=True)):
        pairs: list[tuple[int, int, int, int]] = []
        for query, targets, relation in _trials(tree):
            name = (s.half, *relation)
            for target in targets:
                offset = offsets.index((*name, target - query))
                pairs.append((query, target, len(trials), offset))
            trials.append((relations.index(name), 0 in targets, len(s.first) - 1 in targets))
        if pairs:
            query_word, target_word, trial, offset_key = np.array(pairs).T
            place = (np.full(len(pairs), row), s.first[query_word], s.first[target_word])
            columns.append(np.stack([*place, trial, offset_key]))
            weights.append(uniform_weight(_pieces(s), query_word, target_word))
    row_of, query_at, target_at, trial_of, offset_of = np.concatenate(columns, axis=1)
    uniform = np.zeros(len(trials))
    np.add.at(uniform, trial_of, np.concatenate(weights))
    relation_of, first, last = np.array(trials, dtype=np.int64).reshape(-1, 3).T
    return EdgeTrials(
        row=torch.from_numpy(row_of),
        query=torch.from_numpy(query_at),
        target=torch.from_numpy(target_at),
        trial=torch.from_numpy(trial_of),
        offset_key=torch.from_numpy(offset_of),
        relation_key=torch.from_numpy(relation_of.copy()),
        first=torch.from_numpy(first > 0),
        last=torch.from_numpy(last > 0),
        uniform=torch.from_numpy(uniform),
        relation_names=tuple(relations.names),
        offset_names=tuple(offsets.names),
    )


def _trials(tree: Sentence | None) -> Iterator[tuple[int, list[int], tuple[str, str]]]:
    """Yield (query word, words that would be a hit, (relation, direction)) of one tree."""
    if tree is None or tree.heads is None or tree.relations is None:
        return
    dependents: dict[tuple[int, str], list[int]] = {}
    for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        if head >= 0:
            yield word, [head], (relation, "dep->head")
            dependents.setdefault((head, relation), []).append(word)
    for (head, relation), words in dependents.items():
        yield head, words, (relation, "head->dep")


def _rare(batch: Sequence[EncodedSentence], longest: int) -> RareTargets:
    rows = [_rare_row(s, longest) for s in batch]
    marks = torch.from_numpy(np.stack([row[0] for row in rows], axis=1))  # (4, batch, pos)
    weights = torch.from_numpy(np.stack([row[1] for row in rows], axis=1))  # (2, batch, pos)
    return RareTargets(
        rarest=marks[0],
        two_rarest=marks[1],
        candidate=marks[2],
        query=marks[3],
        uniform=weights[0],
        null_weight=weights[1],
        chance=torch.tensor([row[2] for row in rows], dtype=torch.float64),
        null_queries=sum(row[3] for row in rows),
    )


def _rare_row(s: EncodedSentence, longest: int) -> tuple[Array, Array, float, float]:
    """Marks (rarest, two rarest, candidate, query), weights (uniform, null), chance and queries."""
    marks = np.zeros((4, longest), dtype=bool)
    weights = np.zeros((2, longest))
    if s.rarity is None:
        return marks, weights, 0.0, 0.0
    rarest, two_rarest, candidates = map(np.array, s.rarity)
    n_words, r, c = len(s.first), len(rarest), len(candidates)
    queries = np.setdiff1d(np.arange(n_words), rarest)
    for row, words in enumerate((rarest, two_rarest, candidates, queries)):
        marks[row, s.first[words]] = True
    weights[0, s.first[queries]] = uniform_weight(_pieces(s), queries[:, None], rarest).sum(axis=1)
    # r of c candidates are drawn; a query that is drawn itself does not count.
    weights[1, s.first] = r / c
    weights[1, s.first[candidates]] = r * (c - r) / (c * (c - 1)) if c > 1 else 0.0
    return marks, weights, len(queries) * r / (n_words - 1), float(len(queries))
