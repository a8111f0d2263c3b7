"""Padded batches as tensors, with everything that the measurements need to know about the text.

Word-level facts are stored at the word's *first piece*, so that no measurement needs indices of
words beside those of tokens. "The dancers sat" with its special tokens, as one row of a batch::

    tokens        [CLS]  the  dance  ##rs  sat  [SEP]
    content         0     1     1     1     1     0
    first_piece     0     1     1     0     1     0
    pieces          0     1     2     0     1     0

First :class:`Batch` and what it may hold besides (:class:`RareTargets`, :class:`Source`,
:class:`CrossWords`); then :func:`buckets`, which cuts sentences into batches of similar lengths,
and :func:`collate` and :func:`collate_pairs`, which pad them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from itertools import pairwise
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
#: What a batch costs beside its tokens, in tokens: 22 in a Llama of 135 million parameters, 44 in a
#: BERT of 22 million.
BATCH_COST = 32
#: A model of more parameters than this needs so much memory for each token that callers read fewer
#: tokens at a time.
LARGE = 50_000_000

_is_punctuation = functools.lru_cache(1 << 14)(is_punctuation)


@dataclass(frozen=True)
class Batch:
    """A padded batch of sentences with special tokens, as an encoder or a decoder reads them.

    In a decoder with a source every piece of the target is a word of its own. It is the true target
    (teacher forcing), behind a first token that every target begins with.
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
    #: Additions that sum up what stands at the pieces of each word, at its first piece. One tensor
    #: (3, additions), int64, for each of about log2(pieces) steps: row, position to add, position
    #: to add it to (:func:`_folds`). Sorted by row; a step adds to no position twice.
    folds: tuple[Tensor, ...]
    #: (batch,), int64, 0 or 1: the half of the corpus; what is chosen on the first half of a corpus
    #: is confirmed on the second
    half: Tensor
    pieces: Tensor  # (batch, pos), int64: number of pieces of each word, at its first; 0 elsewhere
    edges: EdgeTrials | None  # The edges between the words; None for text without trees
    #: A control, the edges of another sentence of as many words; no trials where there is none
    swapped: EdgeTrials | None
    rare: RareTargets  # All False where no frequencies of words are known
    causal: bool = False  # Whether a token sees only itself and what stands before it
    source: Source | None = None  # What the encoder reads, where this is a decoder's batch
    words: CrossWords | None = None  # Of sources and targets with a user's labelled pairs of words
    left_out: int = 0  # Words of these sentences that have no piece
    #: Sentences in scripts that put no space between words, whose words are not known
    unspaced: int = 0
    #: Edges of the sentences' trees or pairs, also those that a causal model cannot be asked for
    tree_edges: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(batch, pos)."""
        batch, pos = self.input_ids.shape
        return batch, pos

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Ids and mask that a model is called with, those of the source first."""
        tokens = (self.input_ids, self.attention_mask)
        if self.source is None:
            return tokens
        return (self.source.input_ids, self.source.attention_mask, *tokens)

    @property
    def keys(self) -> Tensor:
        """The content tokens that a head can look at, (batch, pos), bool.

        In a causal stack without the first position, where trained heads park (Xiao et al. 2023,
        arXiv:2309.17453).
        """
        return self.content & self._from(1) if self.causal else self.content

    @property
    def queries(self) -> Tensor:
        """The content tokens whose rows are measured, (batch, pos), bool.

        In a causal stack from position 2 on: the first query that can look at another key.
        """
        return self.content & self._from(2) if self.causal else self.content

    @property
    def sink_queries(self) -> Tensor:
        """The rows that can show a sink on the first position, (batch, pos), bool.

        In a causal stack the content tokens from position 4 on: earlier ones see little else. In
        other stacks none.
        """
        return self.content & self._from(4) & self.causal

    def _from(self, least: int) -> Tensor:
        """Mark the positions from ``least`` on, (pos,)."""
        return torch.arange(self.size[1], device=self.input_ids.device) >= least

    @property
    def visible(self) -> Tensor:
        """How many real tokens each position may look at, (batch, pos)."""
        seen_so_far = self.attention_mask.cumsum(dim=1)
        if self.causal:
            return seen_so_far
        sentence_lengths = seen_so_far[:, -1:]
        return sentence_lengths.expand_as(seen_so_far)

    def to(self, device: torch.device | str) -> Batch:
        """Copy every tensor to ``device``."""
        moved: Batch = self if str(device) == "cpu" else _moved(self, device)
        return moved


@dataclass(frozen=True)
class RareTargets:
    """Where the rarest words of each sentence are.

    All but ``chance`` are (batch, pos) and set at first pieces. Sentences whose rarest word is a
    frequent one do not count: nothing is set in their rows.
    """

    rarest: Tensor  # bool: the words of the lowest frequency
    two_rarest: Tensor  # bool: the words of the two lowest frequencies
    query: Tensor  # bool: every word except the rarest
    uniform: Tensor  # float64: probability that evenly spread attention hits a rarest, at queries
    chance: Tensor  # (batch,), float64: sum over its queries of (number of rarest) / (words - 1)


@dataclass(frozen=True)
class Source:
    """What the encoder of a decoder's batch reads: the keys of cross-attention."""

    input_ids: Tensor  # (batch, key_pos), int64
    attention_mask: Tensor  # (batch, key_pos), int64: 1 at real tokens
    content: Tensor  # (batch, key_pos), bool: real tokens that are not special
    #: (batch, query_pos), bool: the positions of the decoder that predict a token which is not
    #: special, one before the position at which the decoder reads that token
    predicts_content: Tensor


@dataclass(frozen=True)
class CrossWords:
    """The words of a batch of sources and targets, and a user's labelled pairs of them.

    Queries of cross-attention are words of the target, keys are words of the source.
    """

    #: (batch, target words, query_pos): 1 / (number of the word's pieces) at the positions where
    #: the decoder predicts one of them, so that a product averages over them
    target_pieces: Tensor
    #: (batch, source words, key_pos): 1 at the word's pieces, so that a product sums over them
    source_pieces: Tensor
    pieces: Tensor  # (batch, source words), int64: number of pieces; 0 for padding
    queries: Tensor  # (batch, target words), bool: False for padding, and for words without a piece
    #: (batch, target words, source words), int64: how many words a source word lies behind the one
    #: that a straight line from the first words to the last words pairs with the target word
    distance: Tensor
    half: Tensor  # (batch,), int64, 0 or 1: the half of the corpus
    edges: EdgeTrials  # The user's pairs, asked from the words of the target
    swapped: EdgeTrials  # A control: the pairs of another example with as many words on both sides

    @property
    def inside(self) -> Tensor:
        """Whether both words exist: (batch, target words, source words)."""
        return self.queries[..., None] & (self.pieces > 0)[:, None]

    def near(self, farthest: int) -> Tensor:
        """Clip distances to -farthest ... farthest, as indices from 0: -farthest becomes 0."""
        return self.distance.clamp(-farthest, farthest) + farthest


def _moved(value: Any, device: torch.device | str) -> Any:
    """Copy the tensors of a field to a device; float64 becomes the widest type that it has."""
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
    """Cut a window of sentences into batches of similar lengths, so that little is padded.

    None, a sentence that a model cannot read, is left out. A batch has at most ``tokens`` tokens,
    padding included, unless a single sentence has more. The window bounds what is held, so memory
    does not grow with the corpus.

    Of all ways to cut the sentences, sorted by length, it is the cheapest, where a batch costs its
    tokens and BATCH_COST more: sentences of 4, 4, 4 and 60 tokens make two batches, not one.
    """
    sentences = sorted((item for item in window if item is not None), key=len)
    # Of the first n sentences alone: the cost of the cheapest way, and where its last batch starts.
    costs = [0]
    starts = [0]
    for behind, sentence in enumerate(sentences, start=1):
        longest = max(1, len(sentence))
        start = behind - 1
        cheapest = costs[start] + longest
        fewest = max(0, behind - tokens // longest)  # a batch that starts earlier has too many
        for candidate in range(behind - 2, fewest - 1, -1):
            cost = costs[candidate] + longest * (behind - candidate)
            if cost < cheapest:
                cheapest = cost
                start = candidate
        costs.append(cheapest + BATCH_COST)
        starts.append(start)

    # Where batches end, found from the last one back; those of short sentences come first.
    bounds = [len(sentences)]
    while bounds[-1] > 0:
        bounds.append(starts[bounds[-1]])
    for start, behind in pairwise(reversed(bounds)):
        yield sentences[start:behind]


def collate(batch: Sequence[EncodedSentence], pad_id: int, *, causal: bool = False) -> Batch:
    """Pad sentences into one :class:`Batch`; ``causal``: for a stack that sees no later token.

    There a word that begins at position 0 is no word: nobody is asked for it, and it asks nobody.
    """
    # Tokens: (batch, pos).
    input_ids = filled([encoded.ids for encoded in batch], pad_id)
    word_of = filled([encoded.word_of for encoded in batch], -1)
    lengths = torch.tensor([len(encoded) for encoded in batch])
    is_token = torch.arange(input_ids.shape[1]) < lengths[:, None]
    content = word_of >= 0
    special = is_token & ~content
    special_so_far = special.cumsum(1)
    special_from_here = special.flip(1).cumsum(1).flip(1)

    # Words, at their first pieces; punctuation at every piece.
    pieces = np.zeros(input_ids.shape, dtype=np.int64)
    punctuation = np.zeros(input_ids.shape, dtype=bool)
    for row, encoded in enumerate(batch):
        pieces[row, encoded.first] = encoded.pieces
        # The word of a special token is -1, which reads the last entry, False.
        is_mark = np.array([*map(_is_punctuation, encoded.sentence.words), False])
        punctuation[row, : len(encoded)] = is_mark[encoded.word_of]
    if causal:
        pieces[:, 0] = 0

    # Edges between words, where the sentences have a tree or labelled pairs.
    edges = None
    swapped = None
    if batch[0].sentence.edges is not None:
        own_trees = [encoded.sentence for encoded in batch]
        edges = sentence_edge_trials(batch, own_trees, causal=causal)
        other_trees = [encoded.swapped for encoded in batch]
        swapped = sentence_edge_trials(batch, other_trees, causal=causal)
    return Batch(
        input_ids=input_ids,
        attention_mask=is_token.long(),
        content=content,
        special=special,
        first_special=special & (special_so_far == 1),
        last_special=special & (special_from_here == 1),
        punctuation=torch.from_numpy(punctuation),
        first_piece=torch.from_numpy(pieces > 0),
        folds=_folds(batch),
        half=torch.tensor([encoded.half for encoded in batch]),
        pieces=torch.from_numpy(pieces),
        edges=edges,
        swapped=swapped,
        rare=_rare(batch, input_ids.shape),
        causal=causal,
        left_out=sum(encoded.left_out for encoded in batch),
        unspaced=sum(encoded.sentence.unspaced for encoded in batch),
        tree_edges=sum(len(encoded.sentence.edges or ()) for encoded in batch),
    )


def collate_pairs(rows: Sequence[PairRow], pad_id: int) -> Batch:
    """Pad pairs into one :class:`Batch` of what the decoder reads, with the sources."""
    # The targets become sentences of which every content token is a word.
    sentences = []
    for row in rows:
        ids = np.array(row.decoder_ids, dtype=np.int64)
        content = np.array(row.decoder_content, dtype=np.int64)
        word_of = np.full(len(ids), -1, dtype=np.int64)
        word_of[content] = np.arange(len(content))
        placeholder = Sentence(("a",) * len(content))  # what the words are is not used
        sentences.append(
            EncodedSentence(
                ids=ids,
                word_of=word_of,
                first=content,
                sentence=placeholder,
                rarity=None,
            )
        )
    batch = collate(sentences, pad_id, causal=True)

    # The sources, and what the placeholders do not tell.
    sources = padded(rows, pad_id, "cpu")
    punctuation = torch.zeros(batch.size, dtype=torch.bool)
    source_content = torch.zeros(sources.input_ids.shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        punctuation[i, list(row.decoder_punctuation)] = True
        source_content[i, list(row.content)] = True
    # What is predicted at a position is read at the next one; the last position predicts the end.
    content_at_next = pad(batch.content[:, 1:], (0, 1))  # [batch, pos], False at the last
    source = Source(
        input_ids=sources.input_ids,
        attention_mask=sources.attention_mask,
        content=source_content,
        predicts_content=content_at_next,
    )
    return dataclasses.replace(batch, punctuation=punctuation, source=source)


def _folds(batch: Sequence[EncodedSentence]) -> tuple[Tensor, ...]:
    """Return the additions that sum up the pieces of each word at its first: :attr:`Batch.folds`.

    Step s = 1, 2, 4, ... adds piece p + s of a word to its piece p, for every p that is a multiple
    of 2 s. Of a word with pieces 0 to 4::

        step 1: 1 to 0, 3 to 2      step 2: 2 to 0      step 4: 4 to 0
    """
    # Of every piece: its row, its position, and its number within its word.
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
    """Mark the rarest words of each sentence, none in sentences that do not count."""
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
