r"""Cross-attention heads: do they read the source in order, and how sharply?

A pattern has a row for each token that the decoder reads (queries) and a column for each token of
the source (keys). Over content tokens alone, i = 0 .. m_q - 1 of the target and 0 .. m_k - 1 of the
source, with a(i) the content key of the largest weight (ties: the lowest)::

    alignment = Spearman correlation of i and a(i), average ranks for ties; 0 where a is constant
    diagonal  = share of queries with \|a(i) - i (m_k - 1) / (m_q - 1)\| <= 1

Alignment is a mean over pairs; everything else is a mean over content queries, with sums by pair so
that an interval can treat the pair as the unit that was sampled. Pairs with fewer than three
content queries or content keys have no order worth the name; they are left out and counted.

Where a user has labelled pairs of words, the word-level attention of a head has a row for each word
of the target (mean over the queries at which the decoder is to write a piece of it) and a column
for each word of the source (sum over its pieces). Its argmax is scored as a relation is
(``syntactic.py``), from target to source; offsets and the kernel count from the straight line
between the ends of both sides.

:class:`CrossHeads` has the sums of the first kind, :class:`LabelledHeads` those on labelled pairs.
A :class:`Batch` of pairs has the target's tokens and, as ``source``, the source's; ``words`` are
both sides' words (:class:`CrossWords`), where there are labelled pairs.

References
----------
Spearman 1904, The American Journal of Psychology 15; Voita et al. 2019, arXiv:1905.09418
(confidence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.kernel import Kernel
from headscope.analyses.classify.query_means import QueryMeans
from headscope.analyses.classify.rows import (
    FARTHEST,
    LONG,
    OUT,
    RowMeasure,
    RowSummary,
    ordered_queries,
)
from headscope.analyses.classify.syntactic import Syntactic
from headscope.core.accumulator import Array, Parts, numpy
from headscope.core.activations import Activations
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import Batch, Source


class CrossHeads(QueryMeans, RowMeasure):
    """Sums over pairs of source and target of what the cross-attention heads of a model do.

    A second instance takes the pass of the control, in which every target is given another pair's
    source.
    """

    quantities = (
        "alignment",
        "diagonal",
        "confidence",
        "entropy",
        "relative_entropy",
        "special_mass",
        "first_special_mass",
        "last_special_mass",
        "long_entropy",
    )
    #: For ``diagonal`` the baseline is a random key, as uniform attention has no largest weight.
    baselines = ("diagonal", "confidence", "special_mass")

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__(n_layers, n_heads)
        self.skipped: Array = np.zeros((), dtype=np.int64)  # Pairs that are too short.

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch; pairs that are too short have no queries."""
        assert batch.source is not None  # cross-attention reads one
        source = batch.source
        tokens = _ContentTokens(source)
        is_query = widest(tokens.is_query)
        n_keys = source.attention_mask.sum(dim=1)  # special ones included
        measured = tokens.n_queries > 0
        long = n_keys >= LONG

        # Count queries, and what uniform attention gives to each.
        queries_of = dict.fromkeys(self.quantities, tokens.n_queries)
        queries_of["alignment"] = measured.long()
        queries_of["long_entropy"] = tokens.n_queries * long
        queries = torch.stack([*queries_of.values()], dim=1)
        # How many keys of each query lie near the line: [batch, query_pos]
        near = tokens.near_line(tokens.key_number[:, None], tokens.query_number[..., None])
        n_near = (near & tokens.is_key[:, None]).sum(dim=2)
        at_least_one = widest(n_keys.clamp(min=1))
        n_special = (source.attention_mask.bool() & ~tokens.is_key).sum(dim=1)
        uniform = {
            "diagonal": n_near / widest(tokens.n_keys.clamp(min=1))[:, None],
            "confidence": (1 / at_least_one)[:, None],
            "special_mass": (n_special / at_least_one)[:, None],
        }
        self.count(queries, [uniform[name] * is_query for name in self.baselines])
        self.units += int(measured.sum())
        self.skipped += int((~measured).sum())
        self.long_units += int((measured & long).sum())

        # The number of the content key that each query looks at: [batch, heads, query_pos]
        key_numbers = tokens.key_number[:, None].expand(*rows.argmax.shape[:2], -1)
        looks_at = key_numbers.gather(2, rows.argmax)

        # Add the sums of each head.
        on_line = widest(tokens.near_line(looks_at, tokens.query_number[:, None]))
        relative_entropy, long_entropy = rows.relative.unbind(dim=-1)
        special, first_special, last_special = rows.mass.unbind(dim=-1)
        sums = {
            "alignment": rank_correlation(looks_at, tokens.query_number, is_query),
            "diagonal": torch.einsum("bhi,bi->bh", on_line, is_query),
            "confidence": rows.top,
            "entropy": rows.entropy,
            "relative_entropy": relative_entropy,
            "special_mass": special,
            "first_special_mass": first_special,
            "last_special_mass": last_special,
            "long_entropy": long_entropy,
        }
        self.add(torch.stack([sums[name] for name in self.quantities], dim=-1), queries)


class _ContentTokens:
    """The content tokens of sources and targets, numbered from 0 in each sequence.

    Queries are those of the pairs that are long enough to show an order.
    """

    def __init__(self, source: Source) -> None:
        self.is_query = ordered_queries(source)  # (batch, query_pos)
        self.is_key = source.content  # (batch, key_pos)
        self.n_queries = self.is_query.sum(dim=1)  # (batch,)
        self.n_keys = self.is_key.sum(dim=1)
        #: Number of each content token; elsewhere the number of the last one before it, or 0:
        #: is_key [0, 1, 1, 0] -> key_number [0, 0, 1, 1]
        self.query_number = (self.is_query.cumsum(1) - 1).clamp(min=0)
        self.key_number = (self.is_key.cumsum(1) - 1).clamp(min=0)

    def near_line(self, key_number: Tensor, query_number: Tensor) -> Tensor:
        """Whether keys and queries of these numbers lie within 1 key of the straight line.

        The line joins the ends of both sequences; numbers are (batch, ..., ...) and broadcast.
        """
        last_query = self.n_queries[:, None, None] - 1
        last_key = self.n_keys[:, None, None] - 1
        # |key - query * last_key / last_query| <= 1, times last_query: whole numbers are exact.
        return (key_number * last_query - query_number * last_key).abs() <= last_query


def rank_correlation(values: Tensor, position: Tensor, counted: Tensor) -> Tensor:
    """Return Spearman correlations of whole numbers with their positions, (batch, heads).

    Ties share ranks: values [0, 3, 3] have ranks [1, 2.5, 2.5]. Where all values are equal it is 0.

    Shapes: ``values`` (batch, heads, pos), int64, 0 or more; ``position`` (batch, pos), int64, the
    position from 0 among those that count; ``counted`` (batch, pos), float64, 1 at those.
    """
    weight = counted[:, None].expand(values.shape)
    # How often each value occurs: ranks follow without comparing values with one another.
    n_values = int(values.max()) + 1 if values.numel() else 1
    count = weight.new_zeros(*values.shape[:2], n_values).scatter_add_(2, values, weight)
    n_below = (count.cumsum(dim=2) - count).gather(2, values)
    rank = n_below + (count.gather(2, values) + 1) / 2
    # Centred ranks and positions are halves of whole numbers: these sums are exact.
    n = counted.sum(dim=1)
    centred_rank = (rank - (n[:, None, None] + 1) / 2) * weight
    centred_position = ((position - (n[:, None] - 1) / 2) * counted)[:, None]
    rank_squares = centred_rank.square().sum(dim=2)
    position_squares = centred_position.square().sum(dim=2)
    products = (centred_rank * centred_position).sum(dim=2)
    norm = (rank_squares * position_squares).sqrt()
    return products / torch.where(rank_squares == 0, 1.0, norm)


class LabelledHeads(Parts):
    """Sums over a user's pairs of target and source words, fed from the sites of cross-attention.

    The pairs are scored like the edges of a tree (``syntactic.py``), against those of other texts
    too, and against the kernel (``kernel.py``); distances are counted from the straight line
    between the ends of both sides. A run calls ``start`` with each batch, ``observe`` with every
    chunk of a layer (some examples, some heads), and ``finish`` after every layer.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.syntactic = Syntactic(n_layers, n_heads)
        #: As ``syntactic``, against the pairs of other texts
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads, 2 * FARTHEST + 1)

    def parts(self) -> Mapping[str, Any]:
        """Return the accumulators."""
        return {"syntactic": self.syntactic, "swapped": self.swapped, "kernel": self.kernel}

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares; without words nothing is added."""
        words = batch.words
        self._words = words
        self._layer = 0
        if words is None:
            return
        n_examples, n_targets, _ = words.distance.shape
        _, n_layers, n_heads = self.syntactic.hits.shape
        shape = (n_examples, n_layers, n_heads, n_targets)
        #: The source word that each head looks at, by sums and by means over its pieces
        self._looks_at = words.pieces.new_zeros(shape)
        self._looks_at_by_mean = words.pieces.new_zeros(shape)
        #: Pairs of words that the kernel is taken of, [examples, target words, source words]
        self._first_half = words.inside & (words.half == 0)[:, None, None]
        distances = numpy(words.near(FARTHEST)[self._first_half])
        self.kernel.pairs += np.bincount(distances, minlength=2 * FARTHEST + 1)

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        words = self._words
        if site.stack != "cross" or words is None:
            return
        # From tokens to words: [examples, heads, target words, source words]
        examples = site.examples
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        target_pieces = words.target_pieces[examples].to(pattern.dtype)
        source_pieces = words.source_pieces[examples].to(pattern.dtype)
        weights = torch.einsum("btq,bhqk,bsk->bhts", target_pieces, pattern, source_pieces)

        # The source word of the largest weight.
        n_pieces = words.pieces[examples, None, None]
        per_piece = weights / n_pieces.clamp(min=1)
        no_word = -OUT * (n_pieces == 0).to(weights.dtype)
        _, looks_at = first_largest(weights + no_word)
        _, looks_at_by_mean = first_largest(per_piece + no_word)
        self._looks_at[examples, self._layer, site.heads] = looks_at
        self._looks_at_by_mean[examples, self._layer, site.heads] = looks_at_by_mean

        # The kernel is taken of the first half alone: [heads, all pairs of words of all examples]
        counted = widest(per_piece * self._first_half[examples, None]).transpose(0, 1).flatten(1)
        distance = words.near(FARTHEST)[examples].flatten().expand_as(counted)
        by_distance = counted.new_zeros(len(counted), 2 * FARTHEST + 1)
        by_distance.scatter_add_(1, distance, counted)
        self.kernel.sums[self._layer, site.heads] += numpy(by_distance)

    def finish(self, stack: str, layer: int) -> None:
        """Count the batch's trials once its last layer has been observed."""
        if stack == "cross":
            self._layer += 1
        words = self._words
        _, n_layers, _ = self.syntactic.hits.shape
        if words is None or self._layer < n_layers:
            return
        looks_at = self._looks_at.flatten(1, 2)
        looks_at_by_mean = self._looks_at_by_mean.flatten(1, 2)
        self.syntactic.add(looks_at, looks_at_by_mean, words)
        self.swapped.add(looks_at, looks_at_by_mean, words)
        self._words = None  # counted
