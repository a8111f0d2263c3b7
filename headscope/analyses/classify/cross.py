r"""Cross-attention heads: does a head read the source along with the target, and how sharply?

A pattern has a row for each token that the decoder reads (queries) and a column for each token of
the source (keys). Over content tokens alone, i = 0 .. m_q - 1 of the target and 0 .. m_k - 1 of the
source, with a(i) the content key of the largest weight (ties: the lowest)::

    alignment = Spearman correlation of i and a(i), average ranks for ties; 0 where a is constant
    diagonal  = share of queries with \|a(i) - i (m_k - 1) / (m_q - 1)\| <= 1

Alignment is a mean over pairs; everything else is a mean over content queries, with sums by pair so
that an interval can treat the pair as the unit that was sampled. Pairs with fewer than three
content queries or content keys have no order worth the name; they are left out and counted.

References
----------
Spearman 1904, The American Journal of Psychology 15; Voita et al. 2019, arXiv:1905.09418
(confidence).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.rows import LONG, OUT, QueryMeans, row_entropy
from headscope.core.accumulator import Array, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import Batch
from headscope.stats.statistics import ratio, standard_error

FEWEST = 3  # Content queries, and content keys, of a pair that can show an order.


class CrossHeads(QueryMeans):
    """Sums over pairs of what the cross-attention heads of a model do.

    Attention of other stacks is ignored. A second instance takes the pass of the control, in which
    every target is given another pair's source.
    """

    quantities = (
        *("diagonal", "confidence", "entropy", "relative_entropy"),
        *("special_mass", "first_special_mass", "last_special_mass", "long_entropy"),
    )
    #: For ``diagonal`` the baseline is a random key, as uniform attention has no largest weight.
    baselines = ("diagonal", "confidence", "special_mass")

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__(n_layers, n_heads)
        #: (n_layers, n_heads): sums over pairs of the rank correlation and of its square
        self.alignment, self.alignment_squares = zeros(2, n_layers, n_heads)
        #: (n_layers, n_heads): pairs in which all content queries look at the same key
        self.constant: Array = np.zeros((n_layers, n_heads), dtype=np.int64)
        self.skipped: Array = np.zeros((), dtype=np.int64)  # Pairs that are too short.

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares, and count what no head changes.

        Pairs that are too short have no queries here: whatever is summed over queries leaves them
        out. Content tokens are counted from 0 in each sequence.
        """
        assert batch.source is not None  # cross-attention reads one
        source, self._place = batch.source, 0
        query, key, real = source.predicts_content, source.content, source.attention_mask
        m_query, m_key, n_keys = query.sum(dim=1), key.sum(dim=1), real.sum(dim=1)
        used, long = (m_query >= FEWEST) & (m_key >= FEWEST), n_keys >= LONG
        special = real.bool() & ~key
        first = special & (special.cumsum(1) == 1)
        last = special & (special.flip(1).cumsum(1).flip(1) == 1)
        counted = m_query * used
        asked = [counted * long if q == "long_entropy" else counted for q in self.quantities]
        content = widest(query & used[:, None])
        #: By row: (batch,), (batch, query_pos), (batch, key_pos), (batch, key_pos, 3)
        self._shared = shared = {
            "used": used,
            "long": long,
            "query": content,  # 1 at content queries of pairs that count
            "query_place": (query.cumsum(1) - 1).clamp(min=0),  # number among the content queries
            "key_place": (key.cumsum(1) - 1).clamp(min=0),
            "no_content": -OUT * (~key).float(),  # takes other keys out of an argmax
            "m_query": m_query,
            "m_key": m_key,
            "n_keys": n_keys,
            "special": torch.stack([special, first, last], dim=-1).float(),
            "n_queries": torch.stack(asked, dim=1),
        }
        # By query, what uniform attention gives: near is (batch, query_pos, key_pos).
        near = _near_line(shared["key_place"][:, None], shared["query_place"][..., None], shared)
        near = (near & key[:, None]).sum(dim=2)
        at_least_one = widest(n_keys.clamp(min=1))
        expected = (
            near / widest(m_key.clamp(min=1))[:, None],
            (1 / at_least_one)[:, None],
            (widest(shared["special"][..., 0]).sum(dim=1) / at_least_one)[:, None],
        )
        self.count(shared["n_queries"], [part * content for part in expected])
        self.units += int(used.sum())
        self.skipped += int((~used).sum())
        self.long_units += int((used & long).sum())

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        if site.stack != "cross":
            return
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        shared = {name: value[site.rows] for name, value in self._shared.items()}
        query, place = shared["query"], shared["query_place"]
        top, argmax = first_largest(pattern + shared["no_content"][:, None, None].to(pattern.dtype))
        # From positions to numbers among the content keys: (rows, heads, query_pos)
        looks_at = shared["key_place"][:, None].expand(*argmax.shape[:2], -1).gather(2, argmax)
        here = self._place, site.heads
        correlation, constant = rank_correlation(looks_at, place, query)
        self.alignment[here] += numpy(correlation.sum(dim=0))
        self.alignment_squares[here] += numpy(correlation.square().sum(dim=0))
        self.constant[here] += numpy((constant & shared["used"][:, None]).sum(dim=0))
        near = _near_line(looks_at, place[:, None], shared)
        special = (pattern @ shared["special"][:, None].to(pattern.dtype)).unbind(-1)
        by_row = (near, top, row_entropy(pattern), *special)
        sums = [torch.einsum("bhi,bi->bh", widest(row), query) for row in by_row]
        # A pair that counts has three keys or more; the others have no queries.
        relative = sums[2] / widest(shared["n_keys"].clamp(min=2)).log()[:, None]
        parts = [*sums[:3], relative, *sums[3:], relative * shared["long"][:, None]]
        self.add(here, torch.stack(parts, dim=-1), shared["n_queries"])

    def finish(self, stack: str, layer: int) -> None:
        """Go on to the next layer; nothing is held back between chunks."""
        self._place += stack == "cross"

    def alignments(self) -> tuple[Array, Array]:
        """Return mean alignments and their standard errors over pairs, (n_layers, n_heads).

        NaN where there is no pair; errors also for a single one.
        """
        sums = (self.alignment, self.alignment_squares)
        return ratio(self.alignment, self.units), standard_error(*sums, self.units)


def _near_line(key: Tensor, query: Tensor, shared: Mapping[str, Tensor]) -> Tensor:
    """Whether key and query, as numbers in their sequences, lie within 1 key of the line."""
    m_query, m_key = shared["m_query"][:, None, None], shared["m_key"][:, None, None]
    return (key * (m_query - 1) - query * (m_key - 1)).abs() <= m_query - 1


def rank_correlation(values: Tensor, place: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Spearman correlation of whole numbers with their positions; ties share ranks.

    Shapes: ``values`` (rows, heads, pos), int64, 0 or more; ``place`` (rows, pos), int64, the
    position from 0 among those that count; ``counted`` (rows, pos), float64, 1 at those. Returns
    correlations and whether values are constant, (rows, heads).
    """
    weight = counted[:, None].expand(values.shape)
    # How often each value occurs: ranks follow without comparing values with one another.
    most = int(values.max()) + 1 if values.numel() else 1
    count = weight.new_zeros(*values.shape[:2], most).scatter_add_(2, values, weight)
    below = (count.cumsum(dim=2) - count).gather(2, values)
    rank = below + (count.gather(2, values) + 1) / 2
    n = counted.sum(dim=1)
    # Ranks and positions are halves of whole numbers: these sums are exact.
    rank = (rank - (n[:, None, None] + 1) / 2) * weight
    position = ((place - (n[:, None] - 1) / 2) * counted)[:, None]
    spread = rank.square().sum(dim=2)
    constant = spread == 0  # exact, too
    norm = (spread * position.square().sum(dim=2)).sqrt()
    return (rank * position).sum(dim=2) / torch.where(constant, 1.0, norm), constant
