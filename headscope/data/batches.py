"""Padded batches as tensors, with everything that the measurements need to know about the text.

Sentences are sorted by length inside a window and cut into batches of about equally many tokens,
so little is padded; the window bounds what is held, so memory does not grow with the corpus.

Word-level facts are stored at the word's *first piece*, so that word and piece indices are the same
thing and no measurement needs a second coordinate system.

First what a batch holds, ending in :class:`Batch` itself; then how sentences, and pairs of source
and target, become one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headscope.core.widest import widest_type
from headscope.data.edge_trials import EdgeTrials, sentence_edge_trials, uniform_weight
from headscope.data.sentences import Sentence, is_punctuation
from headscope.data.token_rows import PairRow, filled, padded
from headscope.data.word_pieces import EncodedSentence

#: A tokenised sentence in any form: all that batching asks of it is its length.
Item = TypeVar("Item", bound=Sized)

#: Tokens of a batch, padding included: large enough for the matrix products to run at full speed,
#: small enough for the activations to stay in the processor's cache and for little padding.
BATCH_TOKENS = 1024
LARGE = 50_000_000  # Parameters beyond which what a token needs in memory counts.

_is_punctuation = functools.lru_cache(1 << 14)(is_punctuation)


@dataclass(frozen=True)
class CrossWords:
    """The words on both sides of a batch of sources and targets, and a user's pairs of them."""

    #: (batch, target words, query_pos): 1 / (the word's pieces) where the decoder is to write one
    target_pieces: Tensor
    source_pieces: Tensor  # (batch, source words, key_pos): 1 at the word's pieces
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
        """The distances from -farthest to farthest, clipped, as indices from 0; shaped alike."""
        return self.distance.clamp(-farthest, farthest) + farthest


@dataclass(frozen=True)
class RareTargets:
    """Where the rarest words are; all but ``chance`` are (batch, pos), set at first pieces."""

    rarest: Tensor
    two_rarest: Tensor
    query: Tensor  # Every word of a sentence that counts, except its rarest
    uniform: Tensor  # Probability that evenly spread attention hits, at queries
    chance: Tensor  # (batch,), float64: sum over its queries of (number of rarest) / (words - 1)


@dataclass(frozen=True)
class Source:
    """What the encoder of a decoder's batch reads: the keys of cross-attention."""

    input_ids: Tensor  # (batch, key_pos), int64
    attention_mask: Tensor  # (batch, key_pos), int64: 1 at real tokens
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

    input_ids: Tensor  # (batch, pos), int64
    attention_mask: Tensor  # (batch, pos), int64: 1 at real tokens
    # The next six are (batch, pos), bool.
    content: Tensor  # Real tokens that are not special
    special: Tensor  # Special tokens
    first_special: Tensor  # The first special token of each sentence
    last_special: Tensor  # The last one
    punctuation: Tensor  # Pieces of punctuation
    first_piece: Tensor  # The first piece of each word
    #: (3, pieces), int64: additions that gather the pieces of each word at its first, in about
    #: log2(pieces) steps: row, position to add, position to add it to. Within a step no target
    #: occurs twice; sorted by row.
    folds: tuple[Tensor, ...]
    half: Tensor  # (batch,), int64: 0 or 1, as :func:`.word_pieces.placed` deals sentences
    pieces: Tensor  # (batch, pos), int64: pieces of each word, at its first piece; 0 elsewhere
    edges: EdgeTrials | None  # None for text without trees
    #: The same for the tree of another sentence of as many words; no trials where there is none.
    swapped: EdgeTrials | None
    rare: RareTargets  # Without candidates where no frequencies are known
    causal: bool = False  # Whether a token sees only itself and what stands before it
    source: Source | None = None  # What an encoder-decoder model reads besides
    words: CrossWords | None = None  # Of sources and targets with labelled pairs
    left_out: int = 0  # Words of these sentences that have no piece
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
        tokens = (self.input_ids, self.attention_mask)
        if self.source is None:
            return tokens
        return (self.source.input_ids, self.source.attention_mask, *tokens)

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
    """Copy the tensors in a field to a device, float64 in the widest type that it has."""
    if isinstance(value, Tensor):
        if value.dtype == torch.float64:
            value = value.to(widest_type(device))
        return value.to(device)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return tuple(_moved(item, device) for item in value)
    if isinstance(value, Batch | EdgeTrials | RareTargets | Source | CrossWords):
        moved_fields = {f.name: _moved(getattr(value, f.name), device) for f in fields(value)}
        return type(value)(**moved_fields)
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
    input_ids = filled([encoded.ids for encoded in batch], pad_id)
    word_of = filled([encoded.word_of for encoded in batch], -1)
    lengths = torch.tensor([len(encoded) for encoded in batch])
    is_token = torch.arange(input_ids.shape[1]) < lengths[:, None]
    content = word_of >= 0
    special = is_token & ~content
    pieces = np.zeros(input_ids.shape, dtype=np.int64)
    punctuation = np.zeros(input_ids.shape, dtype=bool)
    for row, encoded in enumerate(batch):
        pieces[row, encoded.first] = encoded.pieces
        # The last mark is that of special tokens, whose word is -1.
        marks = np.array([*map(_is_punctuation, encoded.sentence.words), False])
        punctuation[row, : len(encoded)] = marks[encoded.word_of]
    edges = None
    swapped = None
    if batch[0].sentence.edges is not None:
        edges = sentence_edge_trials(batch, [encoded.sentence for encoded in batch])
        swapped = sentence_edge_trials(batch, [encoded.swapped for encoded in batch])
    return Batch(
        input_ids=input_ids,
        attention_mask=is_token.long(),
        content=content,
        special=special,
        first_special=special & (special.cumsum(1) == 1),
        last_special=special & (special.flip(1).cumsum(1).flip(1) == 1),
        punctuation=torch.from_numpy(punctuation),
        first_piece=torch.from_numpy(pieces > 0),
        folds=_folds(batch),
        half=torch.tensor([encoded.half for encoded in batch]),
        pieces=torch.from_numpy(pieces),
        edges=edges,
        swapped=swapped,
        rare=_rare(batch, input_ids.shape),
        left_out=sum(encoded.left_out for encoded in batch),
        unspaced=sum(encoded.sentence.unspaced for encoded in batch),
    )


def collate_pairs(rows: Sequence[PairRow], pad_id: int) -> Batch:
    """Pad pairs into one :class:`Batch` of what the decoder reads, with the sources."""
    sentences = []
    for row in rows:
        ids = np.array(row.decoder_ids, dtype=np.int64)
        content = np.array(row.decoder_content, dtype=np.int64)
        word_of = np.full(len(ids), -1, dtype=np.int64)
        word_of[content] = np.arange(len(content))
        words = Sentence(("a",) * len(content))  # the words themselves are not used
        sentences.append(
            EncodedSentence(ids=ids, word_of=word_of, first=content, sentence=words, rarity=None)
        )
    batch = collate(sentences, pad_id)
    sources = padded(rows, pad_id, "cpu")
    punctuation = torch.zeros(batch.size, dtype=torch.bool)
    source_content = torch.zeros(sources.input_ids.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        punctuation[i, list(row.decoder_punctuation)] = True
        source_content[i, list(row.content)] = True
    source = Source(
        input_ids=sources.input_ids,
        attention_mask=sources.attention_mask,
        content=source_content,
        # What is written at a position is read at the next one; the last one ends the target.
        predicts_content=pad(batch.content[:, 1:], (0, 1)),
    )
    return dataclasses.replace(batch, punctuation=punctuation, causal=True, source=source)


def _folds(batch: Sequence[EncodedSentence]) -> tuple[Tensor, ...]:
    """Return the steps that gather a word's pieces at its first one: see :class:`Batch`.

    Step s = 1, 2, 4, ... adds piece p + s of a word to its piece p, for every p that is a multiple
    of 2 s.
    """
    # Every piece: its row, its position, and its number within its word.
    columns = []
    for row, encoded in enumerate(batch):
        positions = np.flatnonzero(encoded.word_of >= 0)
        numbers = positions - encoded.first[encoded.word_of[positions]]
        columns.append(np.stack([np.full(len(positions), row), positions, numbers]))
    rows, positions, numbers = np.concatenate(columns, axis=1)

    folds = []
    step = 1
    while step <= numbers.max(initial=0):
        is_added = numbers % (2 * step) == step
        from_position = positions[is_added]
        folds.append(np.stack([rows[is_added], from_position, from_position - step]))
        step *= 2
    return tuple(map(torch.from_numpy, folds))


def _rare(batch: Sequence[EncodedSentence], size: tuple[int, ...]) -> RareTargets:
    """Mark the rarest words of each sentence; nothing of one that does not count."""
    is_rarest = np.zeros(size, dtype=bool)
    is_among_two = np.zeros(size, dtype=bool)
    is_query = np.zeros(size, dtype=bool)
    uniform = np.zeros(size)
    chance = np.zeros(len(batch))
    for row, encoded in enumerate(batch):
        if encoded.rarity is None:
            continue
        n_words = len(encoded.first)
        rarest = np.array(encoded.rarity.rarest)
        two_rarest = np.array(encoded.rarity.two_rarest)
        queries = np.delete(np.arange(n_words), rarest)
        is_rarest[row, encoded.first[rarest]] = True
        is_among_two[row, encoded.first[two_rarest]] = True
        is_query[row, encoded.first[queries]] = True
        hits = uniform_weight(encoded.pieces, queries[:, None], rarest).sum(axis=1)
        uniform[row, encoded.first[queries]] = hits
        chance[row] = len(queries) * len(rarest) / (n_words - 1)
    return RareTargets(
        rarest=torch.from_numpy(is_rarest),
        two_rarest=torch.from_numpy(is_among_two),
        query=torch.from_numpy(is_query),
        uniform=torch.from_numpy(uniform),
        chance=torch.from_numpy(chance),
    )
