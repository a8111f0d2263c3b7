"""Reduce patterns to a few numbers per query row; nothing else in classify holds n x n arrays.

Every measurement of ``classify`` needs the same few facts of a pattern row (where its largest
content weight lies, its entropy, its mass on special tokens, ...). They are computed once per chunk
while the chunk is in the processor's cache; what is left is a few times n numbers per head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.roles import roles_with_keys
from headscope.core.accumulator import Accumulator, Array, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.errors import InputError
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import Batch, Source
from headscope.stats.statistics import effective_units, ratio, ratio_error

LONG = 20  # Tokens, special ones included, that a row must see to tell a broad head from others.
FEWEST = 3  # Content queries, and content keys, of a pair that can show an order.
OUT = 1e6  # More than any sum of weights: a word of m pieces attends with up to m in all.
#: Relative positions that the positional score looks at.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SIDE = 16  # Rows and columns of a head's mean attention: the first 15 tokens and the last.
FARTHEST = 20  # Word offsets further away than this count as this.
#: Word offsets that a head's distance kernel is measured at.
WORD_OFFSETS = tuple(r for r in range(-FARTHEST, FARTHEST + 1) if r != 0)
NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class RowSummary:
    """Sums that summarise all patterns of one batch.

    The heads of all layers are one axis, layer by layer; where a layer has lost heads the last
    entries of its share are 0. Sums are over queries, in float64. Fields after ``mass`` are empty
    for cross-attention.
    """

    #: (batch, n_layers * n_heads, pos): position of the largest weight on a content key; ties, up
    #: to rounding, go to the lowest position
    argmax: Tensor
    #: (batch, n_layers * n_heads): largest weight on a content key; entropy of the full row (nats)
    top: Tensor
    entropy: Tensor
    #: (..., 2): entropy / ln n, n the keys that the row may see: over rows of two keys or more, and
    #: over rows of LONG keys or more
    relative: Tensor
    #: (..., 4 + roles with keys): mass on special tokens, the first special, the last, punctuation,
    #: and on the keys of each role that names them; of cross-attention the first three
    mass: Tensor
    #: As ``argmax``, at first pieces: first piece of the word attended to most, itself excluded;
    #: attention to a word is the sum over its pieces, from a word the mean over its pieces
    word_argmax: Tensor = NOTHING
    word_argmax_mean: Tensor = NOTHING  # The same, with the mean over the attended word's pieces
    #: (n_layers * n_heads, SIDE, SIDE): weights between the tokens of :func:`corners`, summed over
    #: the batch
    corner: Tensor = NOTHING
    band: Tensor = NOTHING  # (..., len(OFFSETS)): P[i, i + r] for each offset r, 0 outside
    #: (..., len(WORD_OFFSETS)): over word pairs at each word offset, the attention to a word (mean
    #: over its pieces) from a word (mean over its pieces). Only of sentences in the first half; 0
    #: for the others.
    by_distance: Tensor = NOTHING


def ordered_queries(source: Source) -> Tensor:
    """Return the queries of the pairs that can show an order, bool, (batch, query_pos).

    These pairs have at least FEWEST content queries and content keys.
    """
    enough_queries = source.predicts_content.sum(dim=1) >= FEWEST
    enough_keys = source.content.sum(dim=1) >= FEWEST
    return source.predicts_content & (enough_queries & enough_keys)[:, None]


def word_offset_index(step: Tensor) -> Tensor:
    """Return the indices of word offsets, clipped to FARTHEST, in WORD_OFFSETS, which lacks 0."""
    return step + FARTHEST - (step > 0).long()


def corners(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens the picture of a head shows: the first SIDE - 1 and the last one.

    ``mask`` (batch, pos) is 1 at tokens. Returns their positions and whether there is such a token,
    both (batch, SIDE); in a short sentence the last token is shown only as the last one.
    """
    last = mask.sum(dim=1, keepdim=True) - 1
    places = torch.arange(SIDE, device=mask.device).expand(len(mask), SIDE)
    exists = (places < last) & (places < SIDE - 1)
    exists = torch.cat([exists[:, :-1], last >= 0], dim=1)
    return torch.where(places == SIDE - 1, last, places).clamp(min=0).minimum(last), exists


def keys_of_roles(batch: Batch) -> list[Tensor]:
    """Return what a query may see of the keys that roles name, a mask each: (batch, pos, pos)."""
    real = batch.attention_mask.bool()[:, None]
    shape = (batch.size[0], batch.size[1], batch.size[1])
    masks = []
    for role in roles_with_keys():
        assert role.keys is not None
        mask = role.keys(batch)
        try:
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                raise TypeError
            mask = mask.to(real.device).expand(shape) & real
        except (TypeError, RuntimeError):
            actual = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask)
            raise InputError(
                f"The keys of the role {role.key} are {actual}; give a tensor of bool that "
                f"broadcasts to (batch, query_pos, key_pos), here {shape}."
            ) from None
        masks.append(mask.tril() if batch.causal else mask)
    return masks


class RowMeasure(Accumulator):
    """An accumulator of row summaries."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        raise NotImplementedError


class QueryMeans(Accumulator):
    """Means over content queries, from sums by sequence.

    Intervals can then treat the sentence or the pair, not the token, as the sampled unit.
    """

    #: What is averaged; ``long_entropy`` only over queries that see LONG tokens or more.
    quantities: tuple[str, ...]
    baselines: tuple[str, ...]  # Quantities whose value under uniform attention is known

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, quantities), over sequences: of the sequence's sum, of its square,
        #: and of sum x number of queries
        self.sums, self.squares, self.products = zeros(3, n_layers, n_heads, len(self.quantities))
        #: (quantities,), over sequences: number of queries, and its square
        self.queries, self.queries_squared = zeros(2, len(self.quantities), dtype=np.int64)
        #: (quantities,): sequences that have a query
        self.sampled: Array = np.zeros(len(self.quantities), dtype=np.int64)
        #: (baselines,): sum over the same queries of what uniform attention gives
        self.uniform: Array = np.zeros(len(self.baselines))
        #: Sequences measured, and those with LONG tokens or more
        self.units, self.long_units = zeros(2, dtype=np.int64)

    def count(self, queries: Tensor, expected: Sequence[Tensor]) -> None:
        """Count a batch's queries, (batch, quantities), and what uniform attention gives."""
        self.queries += numpy(queries.sum(dim=0))
        self.queries_squared += numpy(queries.square().sum(dim=0))
        self.sampled += numpy((queries > 0).sum(dim=0))
        self.uniform += numpy(torch.stack([widest(shares).sum() for shares in expected]))

    def add(self, heads: Any, sums: Tensor, queries: Tensor) -> None:
        """Add each sequence's sums, (batch, heads, quantities), to the heads of an index."""
        products = torch.einsum("bhq,bq->hq", sums, queries.to(sums))
        for total, added in (
            (self.sums, sums.sum(dim=0)),
            (self.squares, sums.square().sum(dim=0)),
            (self.products, products),
        ):
            total[heads] += numpy(added).reshape(total[heads].shape)

    def means(self) -> Array:
        """Means over queries, (n_layers, n_heads, quantities); NaN where there is no query."""
        return ratio(self.sums, self.queries)

    def standard_errors(self) -> Array:
        """Standard errors of :meth:`means` with sequences as the sampled unit; infinite for few."""
        sums = (self.sums, self.squares, self.products)
        return ratio_error(*sums, self.queries, self.queries_squared, self.sampled)

    def mean(self, quantity: str) -> Array:
        """Means of one quantity, (n_layers, n_heads)."""
        return np.asarray(self.means()[..., self.quantities.index(quantity)])

    def error(self, quantity: str) -> Array:
        """Standard errors of one quantity, (n_layers, n_heads)."""
        return np.asarray(self.standard_errors()[..., self.quantities.index(quantity)])

    def effective(self, quantity: str) -> float:
        """Return the effective number of sequences behind the mean of a quantity."""
        index = self.quantities.index(quantity)
        return float(effective_units(self.queries[index], self.queries_squared[index]))

    def expected(self, quantity: str) -> float:
        """Return the mean of a quantity under uniform attention; NaN where there is no query."""
        queries = self.queries[self.quantities.index(quantity)]
        return float(ratio(self.uniform[self.baselines.index(quantity)], queries))


class RowReducer:
    """Observes attention sites and hands over a batch's row summary once its last layer is seen.

    Of cross-attention the keys are the tokens of the source, and the queries those at which the
    decoder is to write a content token, of pairs that can show an order.
    """

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        hand_over: Callable[[RowSummary, Batch], object],
        stack: str | None = None,
    ) -> None:
        self._shape = (n_layers, n_heads)
        self._hand_over = hand_over
        self._stack = stack

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares."""
        self._batch = batch
        self._layer = 0
        self._keys_of_roles: list[Tensor] = []
        if self._stack == "cross":
            assert batch.source is not None
            query = ordered_queries(batch.source)
            key = batch.source.content
            visible = batch.source.attention_mask.sum(dim=1, keepdim=True).expand_as(query)
            special = batch.source.attention_mask.bool() & ~key
            first = special & (special.cumsum(1) == 1)
            marks = [special, first, special & (special.flip(1).cumsum(1).flip(1) == 1)]
        else:
            query = batch.content
            key = batch.content
            visible = batch.visible
            marks = [batch.special, batch.first_special, batch.last_special, batch.punctuation]
            self._keys_of_roles = [mask.float() for mask in keys_of_roles(batch)]
        content = widest(query)
        self._content = content
        # Every quantity is allocated before the first chunk: nothing small is then left among a
        # layer's large temporaries, which would keep the C library from using their memory again.
        heads = (len(query), *self._shape)
        self._summary = {
            "argmax": content.new_zeros(*heads, query.shape[1], dtype=torch.int64),
            "top": content.new_zeros(heads),
            "entropy": content.new_zeros(heads),
            "relative": content.new_zeros(*heads, 2),
            "mass": content.new_zeros(*heads, len(marks) + len(self._keys_of_roles)),
        }
        # Added to weights to take keys out of an argmax: several times as fast as filling them in
        # through a mask.
        self._no_content = -OUT * (~key).float()
        self._features = torch.stack(marks, dim=-1).float()
        # 1 / ln n at queries that see n keys: n >= 2, and n >= LONG; (batch, query_pos, 2)
        enough = torch.stack([visible >= least for least in (2, LONG)], dim=-1)
        self._per_log = (enough & query[..., None]) / widest(visible.clamp(min=2)).log()[..., None]
        if self._stack != "cross":
            self._start_sentences(batch)

    def _start_sentences(self, batch: Batch) -> None:
        """Prepare what only sentences have: words, relative positions, a picture."""
        (n_rows, n) = batch.size
        content = self._content
        device = batch.input_ids.device
        heads = (n_rows, *self._shape)
        self._summary["word_argmax"] = content.new_zeros(*heads, n, dtype=torch.int64)
        self._summary["word_argmax_mean"] = content.new_zeros(*heads, n, dtype=torch.int64)
        self._summary["band"] = content.new_zeros(*heads, len(OFFSETS))
        self._summary["by_distance"] = content.new_zeros(*heads, len(WORD_OFFSETS))
        self._corner, exists = corners(batch.attention_mask)
        self._in_corner = exists[:, :, None] & exists[:, None, :]
        self._corners = content.new_zeros(*self._shape, SIDE, SIDE)
        target = torch.arange(n, device=device)[:, None] + torch.tensor(OFFSETS, device=device)
        self._band_index = target.clamp(0, n - 1)  # (pos, offsets)
        self._band_valid = (target >= 0) & (target < n)
        self._no_word = -OUT * (~batch.first_piece).float()  # later pieces are no words
        # 1 / pieces at first pieces, 0 elsewhere: from sums over pieces to means.
        self._per_piece = batch.first_piece / batch.pieces.clamp(min=1).float()
        # Index into WORD_OFFSETS of the distance from word to word, at their first pieces; the last
        # index is for all other pairs of tokens. (batch, query_pos, key_pos)
        word = batch.first_piece.long().cumsum(dim=1)
        step = (word[:, None, :] - word[:, :, None]).clamp(-FARTHEST, FARTHEST)
        two_words = batch.first_piece[:, :, None] & batch.first_piece[:, None] & (step != 0)
        self._distance = torch.where(two_words, word_offset_index(step), len(WORD_OFFSETS))
        starts = torch.arange(n_rows + 1, device=device)
        self._bounds = [torch.searchsorted(fold[0], starts).tolist() for fold in batch.folds]

    def observe(self, site: Activations) -> None:
        """Reduce one chunk."""
        if self._stack is not None and site.stack != self._stack:
            return
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        rows = site.rows
        dtype = pattern.dtype
        content = self._content[site.rows]
        merged = pattern + self._no_content[rows, None, None, :].to(dtype)
        top, argmax = first_largest(merged)
        mass = pattern @ self._features[rows, None].to(dtype)
        if self._keys_of_roles:
            on_keys = [
                torch.einsum("bhij,bij->bhi", pattern, keys[rows].to(dtype))
                for keys in self._keys_of_roles
            ]
            mass = torch.cat([mass, torch.stack(on_keys, dim=-1)], dim=-1)
        by_row = widest(row_entropy(pattern))
        reduced = {
            "argmax": argmax,
            "top": torch.einsum("bhi,bi->bh", widest(top), content),
            "entropy": torch.einsum("bhi,bi->bh", by_row, content),
            "relative": torch.einsum("bhi,bic->bhc", by_row, self._per_log[rows]),
            "mass": torch.einsum("bhim,bi->bhm", widest(mass), content),
        }
        if self._stack != "cross":
            reduced |= self._sentences(pattern, merged, rows)
            self._corners[self._layer, site.heads] += self._picture(pattern, rows)
        for name, numbers in reduced.items():
            summary = self._summary[name]
            summary[rows, self._layer, site.heads] = numbers.to(summary.dtype)

    def _picture(self, pattern: Tensor, rows: slice) -> Tensor:
        """Sum the weights between the tokens of the picture over rows: (heads, SIDE, SIDE)."""
        tokens = self._corner[rows, None].expand(-1, pattern.shape[1], -1)  # (rows, heads, SIDE)
        corner = pattern.gather(2, tokens[..., None].expand(*tokens.shape, pattern.shape[-1]))
        corner = corner.gather(3, tokens[..., None, :].expand(*tokens.shape, SIDE))
        return (widest(corner) * self._in_corner[rows, None]).sum(dim=0)

    def _sentences(self, pattern: Tensor, merged: Tensor, rows: slice) -> dict[str, Tensor]:
        """Reduce to words, word offsets and relative positions; ``merged`` is overwritten."""
        at_offsets = pattern.gather(-1, self._band_index.expand(*pattern.shape[:2], -1, -1))
        inside = (self._band_valid * self._content[rows][..., None]).to(pattern.dtype)
        # To words: a word attends with all its pieces (their sum has the argmax of their mean), and
        # is attended to in all its pieces.
        by_query = merged.transpose(1, 2)  # (rows, query_pos, n_heads, key_pos)
        by_key = merged.permute(0, 3, 1, 2)  # (rows, key_pos, n_heads, query_pos)
        folds = [
            fold[:, bounds[rows.start] : bounds[rows.stop]]
            - fold.new_tensor([[rows.start], [0], [0]])
            for fold, bounds in zip(self._batch.folds, self._bounds, strict=True)
        ]
        for row, piece, target in folds:
            by_query[row, target] += by_query[row, piece]
        for row, piece, target in folds:
            by_key[row, target] += by_key[row, piece]
        per_piece = merged * self._per_piece[rows, None, None, :].to(merged.dtype)
        chosen = torch.nonzero(self._batch.half[rows] == 0)[:, 0]
        # Means over the attending word's pieces, too: (chosen rows, n_heads, pairs of tokens)
        of_query = self._per_piece[rows][chosen][:, None, :, None]
        pairs = widest(per_piece[chosen] * of_query.to(per_piece)).flatten(2)
        places = self._distance[rows][chosen].flatten(1)[:, None].expand_as(pairs)
        by_distance = pairs.new_zeros(*per_piece.shape[:2], len(WORD_OFFSETS) + 1)
        by_distance[chosen] = by_distance[chosen].scatter_add_(2, places, pairs)
        no_word = self._no_word[rows, None, None, :].to(merged.dtype)
        return {
            "band": torch.einsum("bhir,bir->bhr", at_offsets, inside),
            "by_distance": by_distance[..., :-1],
            "word_argmax": _other_argmax(merged, no_word),
            "word_argmax_mean": _other_argmax(per_piece, no_word),
        }

    def finish(self, stack: str, layer: int) -> None:
        """Hand the batch over once its last layer has been observed."""
        if self._stack not in (None, stack):
            return
        self._layer += 1  # layers are counted: their numbers have gaps where some were removed
        if self._layer == self._shape[0]:
            fields = {name: numbers.flatten(1, 2) for name, numbers in self._summary.items()}
            if self._stack != "cross":
                fields["corner"] = self._corners.flatten(0, 1)
            self._hand_over(RowSummary(**fields), self._batch)


def _other_argmax(merged: Tensor, no_word: Tensor) -> Tensor:
    """Argmax over words other than the query; ``merged`` is overwritten."""
    merged += no_word
    merged.diagonal(dim1=-2, dim2=-1).fill_(-OUT)
    return first_largest(merged)[1]


def row_entropy(pattern: Tensor) -> Tensor:
    """Entropy of each row in nats, 0 log 0 = 0; faster than torch.special.entr on CPUs."""
    tiny = torch.finfo(pattern.dtype).tiny
    return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(dim=-1)
