"""From patterns to a few numbers per query row: the only place where n x n things are touched.

Every measurement of ``classify`` needs the same few facts of a pattern row (where its largest
content weight lies, its entropy, its mass on special tokens, ...). They are computed once per chunk
while the chunk is in the processor's cache; what is left is n numbers per head instead of n x n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headscope.measures.activations import Activations
from headscope.measures.batch import Batch

__all__ = ["FARTHEST", "OFFSETS", "WORD_OFFSETS", "RowMeasure", "RowReducer", "RowSummary"]

#: More than any sum of weights: a word of m pieces attends with up to m in all.
OUT = 1e6
#: Relative positions that the positional score looks at.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
#: Word offsets further away than this count as this.
FARTHEST = 20
#: Word offsets that a head's distance kernel is measured at.
WORD_OFFSETS = tuple(r for r in range(-FARTHEST, FARTHEST + 1) if r != 0)


@dataclass(frozen=True)
class RowSummary:
    """What is left of one layer's patterns; all (batch, n_heads, pos) but for a last axis.

    Attributes
    ----------
    argmax, top : Tensor
        Position and weight of the largest weight on a content key; ties: the lowest position.
    entropy : Tensor
        Of the full row, in nats.
    mass : Tensor, (..., 4)
        On special tokens, the first special, the last special, punctuation.
    band : Tensor, (..., len(OFFSETS))
        P[i, i + r] for each offset r, 0 outside the sequence.
    word_argmax : Tensor
        At first pieces: first piece of the word attended to most, itself excluded; attention to a
        word is the sum over its pieces, attention from a word the mean over its pieces.
    word_argmax_mean : Tensor
        The same, with the mean over the attended word's pieces.
    by_distance : Tensor, (batch, n_heads, len(WORD_OFFSETS))
        Sums over word pairs at each word offset of the attention to a word (mean over its pieces)
        from a word (mean over its pieces). Only of sentences in the first half; 0 for the others.
    """

    argmax: Tensor
    top: Tensor
    entropy: Tensor
    mass: Tensor
    band: Tensor
    word_argmax: Tensor
    word_argmax_mean: Tensor
    by_distance: Tensor


class RowMeasure(Protocol):
    """An accumulator of row summaries."""

    def update(self, layer: int, rows: RowSummary, batch: Batch) -> None:
        """Add one layer of one batch."""


class RowReducer:
    """Observes attention sites and feeds row summaries to accumulators, a layer at a time.

    Parameters
    ----------
    measures : sequence of RowMeasure
    """

    def __init__(self, *measures: RowMeasure) -> None:
        self._measures = measures
        self._whole: tuple[Tensor, ...] = ()

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares."""
        self._batch = batch
        self._whole = ()
        _, n = batch.size
        position = torch.arange(n, device=batch.input_ids.device)
        target = position[:, None] + torch.tensor(OFFSETS, device=position.device)
        self._band_index = target.clamp(0, n - 1)  # (pos, offsets)
        self._band_valid = (target >= 0) & (target < n)
        # Added to weights to take keys out of an argmax: several times as fast as filling them in
        # through a mask.
        self._no_content = -OUT * (~batch.content).float()
        self._features = torch.stack(
            [batch.special, batch.first_special, batch.last_special, batch.punctuation], dim=-1
        ).float()
        # Keys that are no word of their own: all but first pieces.
        self._no_word = -OUT * (~batch.first_piece).float()
        # 1 / pieces at first pieces, 0 elsewhere: from sums over pieces to means.
        self._per_piece = batch.first_piece / batch.pieces.clamp(min=1).float()
        self._distances = _Distances(batch, self._per_piece)
        starts = torch.arange(batch.size[0] + 1, device=position.device)
        self._bounds = [torch.searchsorted(fold[0], starts).tolist() for fold in batch.folds]

    def observe(self, site: Activations) -> None:
        """Reduce one chunk."""
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        rows = site.rows
        content = pattern + self._no_content[rows, None, None, :].to(pattern.dtype)
        top, argmax = content.max(dim=-1)
        reduced = (
            argmax,
            top,
            _entropy(pattern),
            pattern @ self._features[rows, None].to(pattern.dtype),
            self._band(pattern),
            *self._word_level(content, rows),
        )
        if not self._whole:
            self._whole = tuple(self._room_for(part, site.n_heads) for part in reduced)
        for whole, part in zip(self._whole, reduced, strict=True):
            whole[rows, site.heads] = part

    def finish(self, stack: str, layer: int) -> None:
        """Hand the layer that has just been observed to the accumulators."""
        summary = RowSummary(*self._whole) if self._whole else self._no_heads()
        self._whole = ()
        for measure in self._measures:
            measure.update(layer, summary, self._batch)

    def _no_heads(self) -> RowSummary:
        """Summarise a layer that has lost all its heads: (batch, 0, pos), never observed."""
        room = self._no_content.new_empty(self._batch.size[0], 0, self._batch.size[1])
        index = room.long()
        mass, band = (room[..., None].expand(*room.shape, n) for n in (4, len(OFFSETS)))
        distance = room.new_empty(*room.shape[:2], len(WORD_OFFSETS))
        return RowSummary(index, room, room, mass, band, index, index, distance)

    def _room_for(self, part: Tensor, n_heads: int) -> Tensor:
        """Allocate one quantity of a whole layer: (batch, n_heads, ...).

        Before the second chunk, so that nothing small is left among a layer's large temporaries,
        which would keep the C library from using their memory again.
        """
        return part.new_empty(self._batch.size[0], n_heads, *part.shape[2:])

    def _band(self, pattern: Tensor) -> Tensor:
        index = self._band_index.expand(*pattern.shape[:2], -1, -1)
        return pattern.gather(-1, index) * self._band_valid

    def _word_level(self, merged: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Argmax over words by sum and by mean, and attention by distance.

        ``merged`` (content weights, negative elsewhere) is overwritten.
        """
        by_query = merged.transpose(1, 2)  # (rows, query_pos, n_heads, key_pos)
        by_key = merged.permute(0, 3, 1, 2)  # (rows, key_pos, n_heads, query_pos)
        # A word attends with all its pieces (their sum has the argmax of their mean), and is
        # attended to in all its pieces.
        folds = list(self._folds_in(rows))
        for side in (by_query, by_key):
            for row, piece, target in folds:
                side[row, target] += side[row, piece]
        per_piece = merged * self._per_piece[rows, None, None, :].to(merged.dtype)
        by_distance = self._distances.sums(per_piece, rows)
        no_word = self._no_word[rows, None, None, :].to(merged.dtype)
        return _other_argmax(merged, no_word), _other_argmax(per_piece, no_word), by_distance

    def _folds_in(self, rows: slice) -> Iterator[Tensor]:
        """The folds of these examples, with rows counted from the first of them."""
        for fold, bounds in zip(self._batch.folds, self._bounds, strict=True):
            part = fold[:, bounds[rows.start] : bounds[rows.stop]]
            if part.shape[1]:
                yield part - part.new_tensor([[rows.start], [0], [0]])


class _Distances:
    """Sums of word-level attention by word offset, for the first half's sentences of a batch.

    Parameters
    ----------
    batch : Batch
    per_piece : Tensor, (batch, pos)
        1 / pieces at first pieces, 0 elsewhere.
    """

    def __init__(self, batch: Batch, per_piece: Tensor) -> None:
        word = batch.first_piece.long().cumsum(dim=1) - 1  # (batch, pos)
        n_words = word[:, -1:] + 1
        self._weight = per_piece
        self._chosen = batch.half == 0
        near = torch.tensor([r for r in WORD_OFFSETS if abs(r) < FARTHEST], device=word.device)
        target = word[..., None] + near  # (batch, pos, near offsets): words
        self._valid = (target >= 0) & (target < n_words[..., None])
        positions = torch.arange(batch.size[1], device=word.device).expand_as(word)
        # (batch, words): where each word begins
        first = torch.zeros_like(word).scatter_reduce(
            1, word.clamp(min=0), torch.where(batch.first_piece, positions, 0), "amax"
        )
        index = target.clamp(min=0).minimum((n_words - 1)[..., None])
        self._index = first.gather(1, index.flatten(1)).view_as(index)
        self._word = word
        self._far = bool((n_words > FARTHEST).any())

    def sums(self, per_piece: Tensor, rows: slice) -> Tensor:
        """Return (rows, n_heads, len(WORD_OFFSETS)) of a chunk.

        Parameters
        ----------
        per_piece : Tensor, (rows, n_heads, query_pos, key_pos)
            Sum over the attending word's pieces, mean over the attended word's pieces; what does
            not stand at first pieces is 0 or left out here.
        """
        out = per_piece.new_zeros(*per_piece.shape[:2], len(WORD_OFFSETS))
        chosen = torch.nonzero(self._chosen[rows])[:, 0]
        if not len(chosen):
            return out
        whole = chosen + rows.start
        part = per_piece if len(chosen) == len(per_piece) else per_piece[chosen]
        index = self._index[whole, None].expand(-1, part.shape[1], -1, -1)
        weight = (self._valid[whole] * self._weight[whole, :, None]).to(part.dtype)
        near = torch.einsum("bhit,bit->bht", part.gather(-1, index), weight)
        far = self._far_sums(part, whole)
        out[chosen] = torch.cat([far[..., :1], near, far[..., 1:]], dim=-1)
        return out

    def _far_sums(self, part: Tensor, whole: Tensor) -> Tensor:
        """Sums over words FARTHEST or more to the left, and to the right: (rows, n_heads, 2)."""
        if not self._far:
            return part.new_zeros(*part.shape[:2], 2)
        word = self._word[whole]
        step = word[:, None, :] - word[:, :, None]  # (rows, query_pos, key_pos)
        weight = self._weight[whole, :, None]
        sides = [
            torch.einsum("bhij,bij->bh", part, ((sign * step >= FARTHEST) * weight).to(part.dtype))
            for sign in (-1, 1)
        ]
        return torch.stack(sides, dim=-1)


def _other_argmax(merged: Tensor, no_word: Tensor) -> Tensor:
    """Argmax over words other than the query; ``merged`` is overwritten."""
    merged += no_word
    merged.diagonal(dim1=-2, dim2=-1).fill_(-OUT)
    return merged.argmax(dim=-1)


def _entropy(pattern: Tensor) -> Tensor:
    """Entropy of each row in nats, 0 log 0 = 0; faster than torch.special.entr on CPUs."""
    tiny = torch.finfo(pattern.dtype).tiny
    return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(dim=-1)
