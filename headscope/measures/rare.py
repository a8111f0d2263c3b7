"""Rare-word heads: does a head look at the sentence's least frequent word?

Word level, over sentences whose rarest word is not among the 500 most frequent. Every word except
the rarest is a query; a hit when its argmax is a rarest word. Two controls: ``chance``, the rate of
a head that picks any other word at random, and ``null``, the head's own rate had the target been
drawn at random from the sentence's words with a letter or digit (its exact expectation). And
``uniform``, the rate of evenly spread attention: rare words are long, and summing over pieces
favours them, so that a head which has learnt nothing scores far above chance.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 5.3.
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.measures.accumulator import Accumulator, numpy
from headscope.measures.batch import Batch
from headscope.measures.rows import RowSummary

__all__ = ["Rare"]


class Rare(Accumulator):
    """Hits on rarest words.

    Parameters
    ----------
    n_layers, n_heads : int

    Attributes
    ----------
    hits, two_hits : array of int, (n_layers, n_heads)
    uniform, uniform_squared : float array, ()
        Sums over queries of the probability that uniform attention hits, and of its square.
    both_uniform : array of float, (n_layers, n_heads)
        The first of these sums over the queries that the head hits.
    null_hits : array of float, (n_layers, n_heads)
    queries : int array, ()
    chance, null_queries : float array, ()
        Sums over queries.
    """

    _sums = (
        "hits", "two_hits", "uniform", "uniform_squared", "both_uniform", "null_hits",
        "queries", "chance", "null_queries",
    )  # fmt: skip

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.hits = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.two_hits = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.uniform = np.zeros(())
        self.uniform_squared = np.zeros(())
        self.both_uniform = np.zeros((n_layers, n_heads))
        self.null_hits = np.zeros((n_layers, n_heads))
        self.queries = np.zeros((), dtype=np.int64)
        self.chance = np.zeros(())
        self.null_queries = np.zeros(())

    def update(self, layer: int, rows: RowSummary, batch: Batch) -> None:
        """Add one layer of one batch."""
        rare = batch.rare
        if layer == 0:
            self.uniform = self.uniform + float(rare.uniform.sum())
            self.uniform_squared = self.uniform_squared + float(rare.uniform.square().sum())
            self.queries = self.queries + int(rare.query.sum())
            self.chance = self.chance + rare.chance
            self.null_queries = self.null_queries + rare.null_queries
        n_heads = rows.word_argmax.shape[1]
        flat = rows.word_argmax.transpose(1, 2).flatten(1)  # (batch, pos * n_heads)

        def attended(mark: torch.Tensor) -> torch.Tensor:
            """Whether the attended word is marked: (batch, pos, n_heads)."""
            return mark.gather(1, flat).view(*mark.shape, n_heads)

        query = rare.query[..., None]
        hits = attended(rare.rarest) & query
        self.hits[layer, :n_heads] += numpy(hits.sum(dim=(0, 1)))
        both = hits * rare.uniform[..., None]
        self.both_uniform[layer, :n_heads] += numpy(both.sum(dim=(0, 1)))
        self.two_hits[layer, :n_heads] += numpy((attended(rare.two_rarest) & query).sum(dim=(0, 1)))
        null = attended(rare.candidate) * rare.null_weight[..., None]
        self.null_hits[layer, :n_heads] += numpy(null.sum(dim=(0, 1)))
