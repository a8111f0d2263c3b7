"""From pairs to what the measurements of a decoder and of its cross-attention read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headscope.data.batches import collate
from headscope.data.encode import EncodedSentence
from headscope.data.pair_rows import PairRow, pad_pairs
from headscope.data.sentence import Sentence
from headscope.measures.batch import Batch
from headscope.measures.pair_batch import PairBatch


@dataclass(frozen=True)
class TaughtBatch:
    """A padded batch of pairs, the decoder reading the true target (teacher forcing).

    Attributes
    ----------
    pairs : PairBatch
        Both sides, for cross-attention.
    target : Batch
        What the decoder reads, for its self-attention; every piece is a word of its own.
    """

    pairs: PairBatch
    target: Batch

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a model is called with."""
        both = self.pairs
        return both.source_ids, both.source_mask, both.target_ids, both.target_mask

    def to(self, device: torch.device | str) -> TaughtBatch:
        """Copy every tensor to ``device``."""
        return TaughtBatch(self.pairs.to(device), self.target.to(device))


def taught(rows: Sequence[PairRow], pad_id: int) -> TaughtBatch:
    """Pad pairs into one batch."""
    both = pad_pairs(rows, pad_id, "cpu")
    pairs = PairBatch(
        source_ids=both.input_ids,
        source_mask=both.attention_mask,
        source_content=both.source_content,
        target_ids=both.decoder_ids,
        target_mask=both.decoder_mask,
        # What is written at a position is read at the next one; the last one ends the target.
        predicts_content=pad(both.decoder_content[:, 1:], (0, 1)),
    )
    return TaughtBatch(pairs, _target(rows, pad_id))


def _target(rows: Sequence[PairRow], pad_id: int) -> Batch:
    batch = collate([_in_pieces(row) for row in rows], pad_id)
    punctuation = torch.zeros_like(batch.content)
    for marks, row in zip(punctuation, rows, strict=True):
        marks[list(row.decoder_punctuation)] = True
    return dataclasses.replace(batch, punctuation=punctuation, causal=True)


def _in_pieces(row: PairRow) -> EncodedSentence:
    """Take every piece that the decoder reads for a word; words themselves are not looked at."""
    first = np.array(row.decoder_content, dtype=np.int64)
    word_of = np.full(len(row.decoder_ids), -1, dtype=np.int64)
    word_of[first] = np.arange(len(first))
    ids = np.array(row.decoder_ids, dtype=np.int64)
    return EncodedSentence(ids, word_of, first, Sentence(("a",) * len(first)), None)
