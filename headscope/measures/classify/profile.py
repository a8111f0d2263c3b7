"""The profile of a head: how sharp, how broad, and how much goes to special tokens and punctuation.

Means over content queries, with sums by sentence so that an interval can treat the sentence, not
the token, as the unit that was sampled. Under a causal mask every row is held against the keys
that it may see: uniform attention, the ln n of relative entropies, and earlier copies of a token.

References
----------
Voita et al. 2019, arXiv:1905.09418 (confidence); Clark et al. 2019, arXiv:1906.04341, section 3.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.core.widest import widest
from headscope.measures.accumulator import Array, numpy, zeros
from headscope.measures.batch import Batch
from headscope.measures.classify.rows import LONG, RowMeasure, RowSummary
from headscope.measures.statistics import ratio, ratio_error

#: What is averaged over content queries, as fields of a HeadResult; ``duplicate_rate`` only over
#: those whose token occurs again, ``relative_entropy`` only over those that see two tokens or more,
#: ``long_entropy`` (the same quantity) only over those that see LONG tokens or more.
QUANTITIES = (
    "confidence",
    "entropy",
    "relative_entropy",
    "special_mass",
    "first_special_mass",
    "last_special_mass",
    "punctuation_mass",
    "self_rate",
    "duplicate_rate",
    "long_entropy",
)
#: Expected values under uniform attention, summed over the same queries.
UNIFORM = ("special_mass", "punctuation_mass", "self_rate", "duplicate_rate")


class Profile(RowMeasure):
    """Sums of row quantities per head.

    Attributes
    ----------
    sums, squares, products : array of float, (n_layers, n_heads, len(QUANTITIES))
        Over sentences: of the sentence's sum, of its square, and of sum x number of queries.
    queries, queries_squared : array of int, (len(QUANTITIES),)
        Over sentences: number of queries, and its square.
    uniform : array of float, (len(UNIFORM),)
        Sum over the same queries of what uniform attention gives.
    sentences, long_sentences : array of int, ()
        All, and those with a query that sees LONG tokens or more.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.sums, self.squares, self.products = zeros(3, n_layers, n_heads, len(QUANTITIES))
        self.queries, self.queries_squared = zeros(2, len(QUANTITIES), dtype=np.int64)
        self.uniform = np.zeros(len(UNIFORM))
        self.sentences, self.long_sentences = zeros(2, dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        repeated = _same_token(batch)
        queries = self._count_queries(batch, repeated)
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        itself = rows.argmax == position
        ids = batch.input_ids[:, None].expand_as(rows.argmax)
        copy = (ids.gather(2, rows.argmax) == ids) & ~itself & repeated.any(dim=2)[:, None]
        relative, long = rows.relative.unbind(dim=-1)
        # (batch, heads, quantities): each sentence's sum over its content queries
        rates = [(mark & batch.content[:, None]).sum(dim=2) for mark in (itself, copy)]
        parts = (rows.top, rows.entropy, relative, *rows.mass.unbind(dim=-1), *rates)
        sums = torch.stack([*parts, long], dim=-1)
        shape = self.sums.shape
        self.sums += numpy(sums.sum(dim=0)).reshape(shape)
        self.squares += numpy(sums.square().sum(dim=0)).reshape(shape)
        by_query = torch.einsum("bhq,bq->hq", sums, queries.to(sums))
        self.products += numpy(by_query).reshape(shape)

    def _count_queries(self, batch: Batch, same: Tensor) -> Tensor:
        """Count queries, (batch, quantities), and what uniform attention would give them."""
        content, visible = batch.content, batch.visible
        own = {
            "relative_entropy": content & (visible >= 2),
            "duplicate_rate": same.any(dim=2),
            "long_entropy": content & (visible >= LONG),
        }
        queries = torch.stack([own.get(name, content).sum(dim=1) for name in QUANTITIES], dim=1)
        self.queries += numpy(queries.sum(dim=0))
        self.queries_squared += numpy(queries.square().sum(dim=0))
        self.sentences += batch.size[0]
        self.long_sentences += int((queries[:, QUANTITIES.index("long_entropy")] > 0).sum())
        expected = _expected_causal(batch, same) if batch.causal else _expected(batch, same)
        self.uniform += numpy(torch.stack([widest(e).sum() for e in expected]))
        return queries

    def means(self) -> Array:
        """Means over queries, (n_layers, n_heads, quantities); NaN where there is no query."""
        return ratio(self.sums, self.queries)

    def standard_errors(self) -> Array:
        """Standard errors of :meth:`means` with sentences as the sampled unit."""
        sums = (self.sums, self.squares, self.products)
        return ratio_error(*sums, self.queries, self.queries_squared, int(self.sentences))


def _expected(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """Per sentence: what uniform attention over the whole of it gives, in the order of UNIFORM."""
    content = batch.content.sum(dim=1)
    length = widest(batch.attention_mask.sum(dim=1))
    return (
        content * batch.special.sum(dim=1) / length,
        content * batch.punctuation.sum(dim=1) / length,
        content > 0,
        same.sum(dim=(1, 2)) / content.clamp(min=1),
    )


def _expected_causal(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """By query: what uniform attention over what it sees gives, in the order of UNIFORM."""
    visible = widest(batch.visible.clamp(min=1))
    before = widest(batch.content.cumsum(dim=1).clamp(min=1))
    return (
        batch.content * batch.special.cumsum(dim=1) / visible,
        batch.content * batch.punctuation.cumsum(dim=1) / visible,
        batch.content / before,
        same.sum(dim=2) / before,
    )


def _same_token(batch: Batch) -> Tensor:
    """Whether two different content positions hold the same token: (batch, pos, pos).

    Under a causal mask: whether the token of the second stands before the first.
    """
    ids = batch.input_ids
    same = ids[:, :, None] == ids[:, None, :]
    same &= batch.content[:, :, None] & batch.content[:, None, :]
    same.diagonal(dim1=1, dim2=2).fill_(False)
    return same.tril() if batch.causal else same
