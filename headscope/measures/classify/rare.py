"""Rare-word heads: does a head look at the sentence's least frequent word?

Word level, over sentences whose rarest word is not among the 500 most frequent. Every word except
the rarest is a query; a hit when its argmax is a rarest word. Three baselines: ``chance``, the rate
of a head that picks any other word at random; ``null``, the head's own rate had the target been
drawn at random from the sentence's words with a letter or digit (its exact expectation); and
``uniform``, the rate of evenly spread attention: rare words are long, and summing over pieces
favours them, so that a head which has learnt nothing scores far above chance.

All queries of a sentence share its target. The sentence is the unit that was sampled, and sums are
kept by sentence so that intervals and tests can say so.

References
----------
Voita et al. 2019, arXiv:1905.09418, section 5.3.
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.measures.accumulator import Accumulator, Array, numpy
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import RowSummary
from headscope.measures.statistics import ratio_error

__all__ = ["Rare"]


class Rare(Accumulator):
    """Hits on rarest words, and their sums of squares and products over sentences.

    Parameters
    ----------
    n_layers, n_heads : int

    Attributes
    ----------
    hits, two_hits : array of int, (n_layers, n_heads)
    null_hits : array of float, (n_layers, n_heads)
    hits_squared, hits_queries : array of int, (n_layers, n_heads)
        Over sentences: of hits^2 and of hits x queries.
    hits_expected : array of float, (2, n_layers, n_heads)
        Over sentences: of hits x what chance and uniform attention expect.
    sentences, queries, queries_squared : int array, ()
    expected, expected_squared, expected_queries : float array, (2,)
        Over sentences: expected hits of chance and of uniform attention, their squares, and
        expected hits x queries.
    null_queries : float array, ()
    """

    _sums = (
        "hits",
        "two_hits",
        "null_hits",
        "hits_squared",
        "hits_queries",
        "hits_expected",
        "sentences",
        "queries",
        "queries_squared",
        "expected",
        "expected_squared",
        "expected_queries",
        "null_queries",
    )

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.hits = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.two_hits = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.null_hits = np.zeros((n_layers, n_heads))
        self.hits_squared = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.hits_queries = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.hits_expected = np.zeros((2, n_layers, n_heads))
        self.sentences = np.zeros((), dtype=np.int64)
        self.queries = np.zeros((), dtype=np.int64)
        self.queries_squared = np.zeros((), dtype=np.int64)
        self.expected = np.zeros(2)
        self.expected_squared = np.zeros(2)
        self.expected_queries = np.zeros(2)
        self.null_queries = np.zeros(())

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        rare = batch.rare
        queries, expected = self._prepare(batch)
        places, n_heads = self.hits.shape, rows.word_argmax.shape[1]
        flat = rows.word_argmax.transpose(1, 2).flatten(1)  # (batch, pos * heads)

        def attended(mark: torch.Tensor) -> torch.Tensor:
            """Whether the attended word is marked: (batch, pos, heads)."""
            return mark.gather(1, flat).view(*mark.shape, n_heads)

        query = rare.query[..., None]
        hits = numpy((attended(rare.rarest) & query).sum(dim=1))  # (batch, heads)
        self.hits += hits.sum(axis=0).reshape(places)
        self.hits_squared += (hits**2).sum(axis=0).reshape(places)
        self.hits_queries += (queries @ hits).reshape(places)
        self.hits_expected += (expected @ hits).reshape(2, *places)
        two_hits = (attended(rare.two_rarest) & query).sum(dim=(0, 1))
        self.two_hits += numpy(two_hits).reshape(places)
        null = attended(rare.candidate) * rare.null_weight[..., None]
        self.null_hits += numpy(null.sum(dim=(0, 1))).reshape(places)

    def _prepare(self, batch: Batch) -> tuple[Array, Array]:
        """Count a batch's queries and what the baselines would hit of them: by sentence."""
        rare = batch.rare
        queries = numpy(rare.query.sum(dim=1))  # (batch,)
        expected = np.stack([numpy(rare.chance), numpy(rare.uniform.sum(dim=1))])
        self.sentences = self.sentences + (queries > 0).sum()
        self.queries = self.queries + queries.sum()
        self.queries_squared = self.queries_squared + (queries**2).sum()
        self.expected = self.expected + expected.sum(axis=1)
        self.expected_squared = self.expected_squared + (expected**2).sum(axis=1)
        self.expected_queries = self.expected_queries + expected @ queries
        self.null_queries = self.null_queries + rare.null_queries
        return queries, expected

    def rate_errors(self) -> Array:
        """Standard errors of hits / queries by sentence, (n_layers, n_heads)."""
        return self._errors(self.hits, self.hits_squared, self.hits_queries)

    def gain_errors(self) -> Array:
        """Standard errors of (hits - expected) / queries by sentence, (2, n_layers, n_heads).

        Against chance, and against uniform attention.
        """
        expected, squared, with_queries = (
            sums[:, None, None]
            for sums in (self.expected, self.expected_squared, self.expected_queries)
        )
        return self._errors(
            self.hits - expected,
            self.hits_squared - 2 * self.hits_expected + squared,
            self.hits_queries - with_queries,
        )

    def _errors(self, sums: Array, squares: Array, products: Array) -> Array:
        return ratio_error(
            sums,
            squares,
            products,
            int(self.queries),
            int(self.queries_squared),
            int(self.sentences),
        )
