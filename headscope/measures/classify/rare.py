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

from headscope.measures.accumulator import Array, numpy, zeros
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import RowMeasure, RowSummary
from headscope.measures.statistics import ratio_error


class Rare(RowMeasure):
    """Hits on rarest words, and their sums of squares and products over sentences.

    Attributes
    ----------
    hits, two_hits : array of int, (n_layers, n_heads)
        Queries that attend to a rarest word, to one of the two rarest.
    null_hits : array of float, (n_layers, n_heads)
        Expected hits, had the targets been drawn at random.
    hits_squared, hits_queries : array of int, (n_layers, n_heads)
        Over sentences: of hits^2 and of hits x queries.
    hits_expected : array of float, (2, n_layers, n_heads)
        Over sentences: of hits x what chance and uniform attention expect.
    sentences, queries, queries_squared : array of int, ()
        Sentences that count, their queries, and over sentences: of queries^2.
    expected, expected_squared, expected_queries : array of float, (2,)
        Over sentences: expected hits of chance and of uniform attention, their squares, and
        expected hits x queries.
    null_queries : array of float, ()
        Expected queries under that draw.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        places = (n_layers, n_heads)
        self.hits, self.two_hits = zeros(2, *places, dtype=np.int64)
        self.null_hits = np.zeros(places)
        self.hits_squared, self.hits_queries = zeros(2, *places, dtype=np.int64)
        self.hits_expected = np.zeros((2, *places))
        self.sentences, self.queries, self.queries_squared = zeros(3, dtype=np.int64)
        self.expected, self.expected_squared, self.expected_queries = zeros(3, 2)
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
        self.sentences += (queries > 0).sum()
        self.queries += queries.sum()
        self.queries_squared += (queries**2).sum()
        self.expected += expected.sum(axis=1)
        self.expected_squared += (expected**2).sum(axis=1)
        self.expected_queries += expected @ queries
        self.null_queries += rare.null_queries
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
        queries = (int(self.queries), int(self.queries_squared))
        return ratio_error(sums, squares, products, *queries, int(self.sentences))
