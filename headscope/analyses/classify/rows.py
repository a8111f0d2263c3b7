"""From patterns to a few numbers per query row: the only place of classify with n x n things.

Every measurement of ``classify`` needs the same few facts of a pattern row (where its largest
content weight lies, its entropy, its mass on special tokens, ...). They are computed once per chunk
while the chunk is in the processor's cache; what is left is a few times n numbers per head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Accumulator, Array, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import Batch
from headscope.stats.statistics import ratio, ratio_error

LONG = 20  # Tokens, special ones included, that a row must see to tell a broad head from others.
OUT = 1e6  # More than any sum of weights: a word of m pieces attends with up to m in all.
#: Relative positions that the positional score looks at.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
FARTHEST = 20  # Word offsets further away than this count as this.
#: Word offsets that a head's distance kernel is measured at.
WORD_OFFSETS = tuple(r for r in range(-FARTHEST, FARTHEST + 1) if r != 0)


@dataclass(frozen=True)
class RowSummary:
    """What is left of all patterns of one batch.

    The heads of all layers stand in one axis, layer by layer; where a layer has lost heads the last
    places of its share are 0.
    """

    #: (batch, n_layers * n_heads, pos): Position of the largest weight on a content key; ties, also
    #: those to rounding: the lowest
    argmax: Tensor
    #: (batch, n_layers * n_heads, pos): At first pieces: first piece of the word attended to most,
    #: itself excluded; attention to a word is the sum over its pieces, attention from a word the
    #: mean over its pieces
    word_argmax: Tensor
    #: (batch, n_layers * n_heads, pos): The same, with the mean over the attended word's pieces
    word_argmax_mean: Tensor
    #: (batch, n_layers * n_heads), float64: Sum over content queries of the largest weight on a
    #: content key
    top: Tensor
    #: (batch, n_layers * n_heads), float64: Sum over content queries of the entropy of the full
    #: row, in nats
    entropy: Tensor
    #: (batch, n_layers * n_heads, 2), float64: Sum over content queries of that entropy / ln n, n
    #: the keys that the row may see: over rows of two keys or more, and over rows of LONG keys or
    #: more
    relative: Tensor
    #: (batch, n_layers * n_heads, 4), float64: Sum over content queries of the mass on special
    #: tokens, on the first special, the last special, punctuation
    mass: Tensor
    #: (batch, n_layers * n_heads, len(OFFSETS)), float64: Sum over content queries of P[i, i + r]
    #: for each offset r, 0 outside the sequence
    band: Tensor
    #: (batch, n_layers * n_heads, len(WORD_OFFSETS)), float64: Sums over word pairs at each word
    #: offset of the attention to a word (mean over its pieces) from a word (mean over its pieces).
    #: Only of sentences in the first half; 0 for the others.
    by_distance: Tensor


class RowMeasure(Accumulator):
    """An accumulator of row summaries."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        raise NotImplementedError


class QueryMeans(Accumulator):
    """Means over content queries, with sums by sequence: the unit that was sampled.

    So an interval can treat the sentence or the pair, not the token, as what was drawn.
    """

    #: What is averaged; ``long_entropy`` only over queries that see LONG tokens or more.
    quantities: ClassVar[tuple[str, ...]]
    baselines: ClassVar[tuple[str, ...]]  # Those of which it is known what uniform attention gives.

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, quantities): Over sequences: of the sequence's sum, of its square,
        #: and of sum x number of queries
        self.sums, self.squares, self.products = zeros(3, n_layers, n_heads, len(self.quantities))
        #: (quantities,): Over sequences: number of queries, and its square
        self.queries, self.queries_squared = zeros(2, len(self.quantities), dtype=np.int64)
        #: (baselines,): Sum over the same queries of what uniform attention gives
        self.uniform: Array = np.zeros(len(self.baselines))
        #: Sequences measured, and those with LONG tokens or more
        self.units, self.long_units = zeros(2, dtype=np.int64)

    def count(self, queries: Tensor, expected: Sequence[Tensor]) -> None:
        """Count a batch's queries, (batch, quantities), and what uniform attention gives."""
        self.queries += numpy(queries.sum(dim=0))
        self.queries_squared += numpy(queries.square().sum(dim=0))
        self.uniform += numpy(torch.stack([widest(part).sum() for part in expected]))

    def add(self, at: Any, sums: Tensor, queries: Tensor) -> None:
        """Add each sequence's sums, (batch, heads, quantities), to the heads at an index."""
        by_query = torch.einsum("bhq,bq->hq", sums, queries.to(sums))
        parts = (sums.sum(dim=0), sums.square().sum(dim=0), by_query)
        for mine, part in zip((self.sums, self.squares, self.products), parts, strict=True):
            mine[at] += numpy(part).reshape(mine[at].shape)

    def means(self) -> Array:
        """Means over queries, (n_layers, n_heads, quantities); NaN where there is no query."""
        return ratio(self.sums, self.queries)

    def standard_errors(self) -> Array:
        """Standard errors of :meth:`means` with sequences as the sampled unit."""
        sums = (self.sums, self.squares, self.products)
        return ratio_error(*sums, self.queries, self.queries_squared, int(self.units))

    def mean(self, quantity: str) -> Array:
        """Means of one quantity, (n_layers, n_heads)."""
        return np.asarray(self.means()[..., self.quantities.index(quantity)])

    def error(self, quantity: str) -> Array:
        """Standard errors of one quantity, (n_layers, n_heads)."""
        return np.asarray(self.standard_errors()[..., self.quantities.index(quantity)])

    def expected(self, quantity: str) -> float:
        """Return the mean of a quantity under uniform attention; NaN where there is no query."""
        queries = self.queries[self.quantities.index(quantity)]
        return float(ratio(self.uniform[self.baselines.index(quantity)], queries))


class RowReducer:
    """Observes attention sites and feeds row summaries to ``measures``, a batch at a time."""

    def __init__(
        self, n_layers: int, n_heads: int, *measures: RowMeasure, stack: str | None = None
    ) -> None:
        self._shape = (n_layers, n_heads)
        self._measures = measures
        self._stack = stack

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares."""
        self._batch = batch
        self._content = widest(batch.content)
        self._whole = self._room()
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
        self._per_log = _per_log(batch) if batch.causal else None
        starts = torch.arange(batch.size[0] + 1, device=position.device)
        self._bounds = [torch.searchsorted(fold[0], starts).tolist() for fold in batch.folds]

    def observe(self, site: Activations) -> None:
        """Reduce one chunk."""
        if self._stack is not None and site.stack != self._stack:
            return
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        rows = site.rows
        masked = pattern + self._no_content[rows, None, None, :].to(pattern.dtype)
        top, argmax = first_largest(masked)
        mass = pattern @ self._features[rows, None].to(pattern.dtype)
        word_argmax, word_argmax_mean, by_distance = self._word_level(masked, rows)
        content = self._content[rows]
        row_entropies = widest(row_entropy(pattern))
        entropy = torch.einsum("bhi,bi->bh", row_entropies, content)
        reduced = {
            "argmax": argmax,
            "word_argmax": word_argmax,
            "word_argmax_mean": word_argmax_mean,
            "top": torch.einsum("bhi,bi->bh", widest(top), content),
            "entropy": entropy,
            "relative": self._relative(row_entropies, entropy, rows),
            "mass": torch.einsum("bhim,bi->bhm", widest(mass), content),
            "band": self._band(pattern, rows),
            "by_distance": by_distance,
        }
        for name, part in reduced.items():
            self._whole[name][rows, site.layer, site.heads] = part.to(self._whole[name].dtype)

    def finish(self, stack: str, layer: int) -> None:
        """Hand the batch to the accumulators once its last layer has been observed."""
        if layer < self._shape[0] - 1 or self._stack not in (None, stack):
            return
        summary = RowSummary(**{name: part.flatten(1, 2) for name, part in self._whole.items()})
        for measure in self._measures:
            measure.update(summary, self._batch)

    def _room(self) -> dict[str, Tensor]:
        """Allocate every quantity of a batch before its first chunk.

        Nothing small is then left among a layer's large temporaries, which would keep the C library
        from using their memory again.
        """
        batch, pos = self._batch.size
        places, sums = (batch, *self._shape), self._content.new_zeros
        index = sums(3, *places, pos, dtype=torch.int64)
        return dict(zip(("argmax", "word_argmax", "word_argmax_mean"), index, strict=True)) | {
            "top": sums(places),
            "entropy": sums(places),
            "relative": sums(*places, 2),
            "mass": sums(*places, 4),
            "band": sums(*places, len(OFFSETS)),
            "by_distance": sums(*places, len(WORD_OFFSETS)),
        }

    def _relative(self, by_row: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        """Sums of entropy / ln n, (rows, n_heads, 2), from entropies of rows and their sums."""
        if self._per_log is not None:
            return torch.einsum("bhi,bic->bhc", by_row, self._per_log[rows])
        # All rows of a sequence see all of it.
        length = self._batch.attention_mask[rows].sum(dim=1)
        relative = entropy / length.clamp(min=2).log()[:, None]
        return torch.stack([relative, relative * (length >= LONG)[:, None]], dim=-1)

    def _band(self, pattern: Tensor, rows: slice) -> Tensor:
        """Sum of P[i, i + r] over content queries, (rows, n_heads, offsets)."""
        index = self._band_index.expand(*pattern.shape[:2], -1, -1)
        weight = self._band_valid * self._content[rows, :, None]
        return torch.einsum("bhir,bir->bhr", pattern.gather(-1, index), weight.to(pattern.dtype))

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

    ``per_piece`` (batch, pos) is 1 / pieces at first pieces, 0 elsewhere.
    """

    def __init__(self, batch: Batch, per_piece: Tensor) -> None:
        word = batch.first_piece.long().cumsum(dim=1) - 1  # (batch, pos)
        n_words = word[:, -1:] + 1
        self._chosen = batch.half == 0
        near = torch.tensor([r for r in WORD_OFFSETS if abs(r) < FARTHEST], device=word.device)
        target = word[..., None] + near  # (batch, pos, near offsets): words
        valid = (target >= 0) & (target < n_words[..., None])
        self._near = valid * per_piece[..., None]
        first = _first_positions(batch.first_piece, word)
        index = target.clamp(min=0).minimum((n_words - 1)[..., None])
        self._index = first.gather(1, index.flatten(1)).view_as(index)
        # Words FARTHEST or more to the left and to the right: (2, batch, query_pos, key_pos)
        self._far: Tensor | None = None
        if bool((n_words > FARTHEST).any()):
            step = word[:, None, :] - word[:, :, None]
            beyond = torch.stack([step <= -FARTHEST, step >= FARTHEST])
            self._far = beyond * per_piece[:, :, None]

    def sums(self, per_piece: Tensor, rows: slice) -> Tensor:
        """Return (rows, n_heads, len(WORD_OFFSETS)) of a chunk.

        ``per_piece`` (rows, n_heads, query_pos, key_pos) is summed over the attending word's pieces
        and averaged over the attended word's; what is not at first pieces is 0 or left out here.
        """
        out = per_piece.new_zeros(*per_piece.shape[:2], len(WORD_OFFSETS))
        chosen = torch.nonzero(self._chosen[rows])[:, 0]
        if not len(chosen):
            return out
        whole = chosen + rows.start
        part = per_piece if len(chosen) == len(per_piece) else per_piece[chosen]
        index = self._index[whole, None].expand(-1, part.shape[1], -1, -1)
        near = torch.einsum("bhit,bit->bht", part.gather(-1, index), self._near[whole].to(part))
        far = part.new_zeros(*part.shape[:2], 2)
        if self._far is not None:
            far = torch.einsum("bhij,sbij->bhs", part, self._far[:, whole].to(part))
        out[chosen] = torch.cat([far[..., :1], near, far[..., 1:]], dim=-1)
        return out


def _per_log(batch: Batch) -> Tensor:
    """1 / ln n at content queries that see n keys: n >= 2, and n >= LONG; (batch, pos, 2)."""
    enough = torch.stack([batch.visible >= least for least in (2, LONG)], dim=-1)
    log = widest(batch.visible.clamp(min=2)).log()[..., None]
    return (enough & batch.content[..., None]) / log


def _first_positions(first_piece: Tensor, word: Tensor) -> Tensor:
    """Position of each word's first piece, (batch, words); 0 behind the last word."""
    positions = torch.arange(word.shape[1], device=word.device).expand_as(word)
    at_first = torch.where(first_piece, positions, 0)
    return torch.zeros_like(word).scatter_reduce(1, word.clamp(min=0), at_first, "amax")


def _other_argmax(merged: Tensor, no_word: Tensor) -> Tensor:
    """Argmax over words other than the query; ``merged`` is overwritten."""
    merged += no_word
    merged.diagonal(dim1=-2, dim2=-1).fill_(-OUT)
    return first_largest(merged)[1]


def row_entropy(pattern: Tensor) -> Tensor:
    """Entropy of each row in nats, 0 log 0 = 0; faster than torch.special.entr on CPUs."""
    tiny = torch.finfo(pattern.dtype).tiny
    return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(dim=-1)
