"""Means over content queries: sums by sequence, so that intervals treat sequences as the sample.

A *content query* is a token that is not special; a *sequence* is a sentence, or a pair of source
and target. :class:`QueryMeans` is filled by its subclasses and read by the tests of roles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Accumulator, Array, numpy, zeros
from headscope.core.widest import widest
from headscope.stats.statistics import effective_units, ratio, ratio_error


class QueryMeans(Accumulator):
    """Means over content queries of several quantities, for every head.

    A sequence adds its sum over queries, not each query. The mean is sum / queries, a ratio of two
    totals over sequences; its error needs their squares and products as well (two sequences with
    sums 3 and 1 over 4 and 2 queries: mean 4 / 6). A subclass names the quantities, and calls
    :meth:`count` and :meth:`add` for every batch.
    """

    quantities: tuple[str, ...]  # What is averaged
    baselines: tuple[str, ...]  # Quantities whose value under uniform attention is known

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, quantities): over sequences, the total of the sequence's sum, of its
        #: square, and of its sum times its number of queries
        self.sums, self.squares, self.products = zeros(3, n_layers, n_heads, len(self.quantities))
        #: (quantities,): over sequences, the total of the number of queries, and of its square
        self.queries, self.queries_squared = zeros(2, len(self.quantities), dtype=np.int64)
        #: (quantities,): sequences that have a query
        self.sampled: Array = np.zeros(len(self.quantities), dtype=np.int64)
        #: (baselines,): sum over the same queries of what uniform attention gives
        self.uniform: Array = np.zeros(len(self.baselines))
        #: Sequences that were measured, and those that are long enough to tell a broad head
        self.units, self.long_units = zeros(2, dtype=np.int64)

    def count(self, queries: Tensor, expected: Sequence[Tensor]) -> None:
        """Count a batch's queries, (batch, quantities), and what uniform attention gives."""
        self.queries += numpy(queries.sum(dim=0))
        self.queries_squared += numpy(queries.square().sum(dim=0))
        self.sampled += numpy((queries > 0).sum(dim=0))
        self.uniform += numpy(torch.stack([widest(shares).sum() for shares in expected]))

    def add(self, sums: Tensor, queries: Tensor) -> None:
        """Add each sequence's sums, (batch, heads of all layers, quantities).

        ``queries`` (batch, quantities) as in :meth:`count`.
        """
        products = torch.einsum("bhq,bq->hq", sums, queries.to(sums))
        shape = self.sums.shape
        self.sums += numpy(sums.sum(dim=0)).reshape(shape)
        self.squares += numpy(sums.square().sum(dim=0)).reshape(shape)
        self.products += numpy(products).reshape(shape)

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
