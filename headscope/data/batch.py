"""One padded batch as tensors: everything that the measurements need to know about the text.

Word-level facts sit at the word's *first piece*, so that word and piece indices are the same thing
and no measurement needs a second coordinate system.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from headscope.core.widest import widest_type

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
