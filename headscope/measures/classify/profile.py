"""The profile of a head: how sharp, how broad, and how much goes to special tokens and punctuation.

Means over content queries, with sums by sentence so that an interval can treat the sentence, not
the token, as the unit that was sampled.

References
----------
Voita et al. 2019, arXiv:1905.09418 (confidence); Clark et al. 2019, arXiv:1906.04341, section 3.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.measures.accumulator import Accumulator, Array, numpy
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import RowSummary
from headscope.measures.statistics import ratio_error

__all__ = ["LONG", "QUANTITIES", "UNIFORM", "Profile"]

#: Tokens, special ones included, of a sequence that can tell a broad head from others.
LONG = 20
#: What is averaged over content queries; ``duplicate`` only over those whose token occurs again,
#: ``long_entropy`` (the relative entropy) only over those of sequences of LONG tokens or more.
QUANTITIES = (
    "confidence",
    "entropy",
    "relative_entropy",
    "special_mass",
    "first_special_mass",
    "last_special_mass",
    "punctuation_mass",
    "self",
    "duplicate",
    "long_entropy",
)
#: Expected values under uniform attention, summed over the same queries.
UNIFORM = ("special_mass", "punctuation_mass", "self", "duplicate")


class Profile(Accumulator):
    """Sums of row quantities per head.

    Parameters
    ----------
    n_layers, n_heads : int

    Attributes
    ----------
    sums, squares, products : array of float, (n_layers, n_heads, len(QUANTITIES))
        Over sentences: of the sentence's sum, of its square, and of sum x number of queries.
    queries, queries_squared : array of int, (len(QUANTITIES),)
        Over sentences: number of queries, and its square.
    uniform : array of float, (len(UNIFORM),)
    sentences, long_sentences : int array, ()
        All, and those of LONG tokens or more.
    """

    _sums = (
        "sums",
        "squares",
        "products",
        "queries",
        "queries_squared",
        "uniform",
        "sentences",
        "long_sentences",
    )

    def __init__(self, n_layers: int, n_heads: int) -> None:
        shape = (n_layers, n_heads, len(QUANTITIES))
        self.sums = np.zeros(shape)
        self.squares = np.zeros(shape)
        self.products = np.zeros(shape)
        self.queries = np.zeros(len(QUANTITIES), dtype=np.int64)
        self.queries_squared = np.zeros(len(QUANTITIES), dtype=np.int64)
        self.uniform = np.zeros(len(UNIFORM))
        self.sentences = np.zeros((), dtype=np.int64)
        self.long_sentences = np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        repeated = _same_token(batch)
        queries = self._count_queries(batch, repeated)
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        length = batch.attention_mask.sum(dim=1)[:, None]
        itself = rows.argmax == position
        ids = batch.input_ids[:, None].expand_as(rows.argmax)
        copy = (ids.gather(2, rows.argmax) == ids) & ~itself & repeated.any(dim=2)[:, None]
        relative = rows.entropy / length.log()
        # (batch, heads, quantities): each sentence's sum over its content queries
        sums = torch.stack(
            [
                rows.top,
                rows.entropy,
                relative,
                *rows.mass.unbind(dim=-1),
                (itself & batch.content[:, None]).sum(dim=2),
                (copy & batch.content[:, None]).sum(dim=2),
                relative * (length >= LONG),
            ],
            dim=-1,
        )
        self._add(sums, queries.to(sums))

    def _add(self, sums: Tensor, queries: Tensor) -> None:
        """Add sums (batch, heads, quantities) and their products with queries."""
        shape = self.sums.shape
        self.sums += numpy(sums.sum(dim=0)).reshape(shape)
        self.squares += numpy(sums.square().sum(dim=0)).reshape(shape)
        self.products += numpy(torch.einsum("bhq,bq->hq", sums, queries)).reshape(shape)

    def _count_queries(self, batch: Batch, same: Tensor) -> Tensor:
        """Count queries, (batch, quantities), and what uniform attention would give them."""
        content = batch.content.sum(dim=1)
        length = batch.attention_mask.sum(dim=1)
        long = length >= LONG
        own = {"duplicate": same.any(dim=2).sum(dim=1), "long_entropy": content * long}
        queries = torch.stack([own.get(name, content) for name in QUANTITIES], dim=1)
        self.queries = self.queries + numpy(queries.sum(dim=0))
        self.queries_squared = self.queries_squared + numpy(queries.square().sum(dim=0))
        self.sentences = self.sentences + batch.size[0]
        self.long_sentences = self.long_sentences + int(long.sum())
        expected = (
            content * batch.special.sum(dim=1) / length.double(),
            content * batch.punctuation.sum(dim=1) / length.double(),
            (content > 0).double(),
            same.sum(dim=(1, 2)) / content.clamp(min=1),
        )
        self.uniform = self.uniform + numpy(torch.stack([e.double().sum() for e in expected]))
        return queries

    def means(self) -> Array:
        """Means over queries, (n_layers, n_heads, quantities); NaN where there is no query."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Array = self.sums / self.queries
        return means

    def standard_errors(self) -> Array:
        """Standard errors of :meth:`means` with sentences as the sampled unit."""
        return ratio_error(
            self.sums,
            self.squares,
            self.products,
            self.queries,
            self.queries_squared,
            int(self.sentences),
        )


def _same_token(batch: Batch) -> Tensor:
    """Whether two different content positions hold the same token: (batch, pos, pos)."""
    ids = batch.input_ids
    same = ids[:, :, None] == ids[:, None, :]
    same &= batch.content[:, :, None] & batch.content[:, None, :]
    same.diagonal(dim1=1, dim2=2).fill_(False)
    return same
