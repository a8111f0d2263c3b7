r"""Cross-attention heads: do they read the source in order, how sharply, and do they align words?

A pattern has a row for each token that the decoder reads (queries) and a column for each token of
the source (keys). Over content tokens alone, i = 0 .. m_q - 1 of the target and 0 .. m_k - 1 of the
source, with a(i) the content key of the largest weight (ties: the lowest)::

    alignment = Spearman correlation of i and a(i), average ranks for ties; 0 where a is constant
    diagonal  = share of queries with \|a(i) - i (m_k - 1) / (m_q - 1)\| <= 1

Alignment is a mean over pairs; everything else is a mean over content queries, with sums by pair so
that an interval can treat the pair as the unit that was sampled. Pairs with fewer than three
content queries or content keys have no order worth the name; they are left out and counted.

Where words are aligned, the word-level attention W of a head has a row for each word of the target
(mean over the queries at which the decoder is to write a piece of it) and a column for each word of
the source (sum over its pieces). Its argmax is scored as a relation is (``syntactic.py``), from
target to source; offsets and the kernel count from the straight line between the ends of both
sides. W also says which words are aligned: A are those with a weight of at least t. With S the sure
links, P the sure and possible ones::

    precision = \|A & P\| / \|A\|        recall = \|A & S\| / \|S\|
    alignment error rate = 1 - (\|A & S\| + \|A & P\|) / (\|A\| + \|S\|)

The threshold t is the best one on half A of the pairs of texts; the numbers are those of half B.

References
----------
Spearman 1904, The American Journal of Psychology 15; Voita et al. 2019, arXiv:1905.09418
(confidence); Och & Ney 2003, A Systematic Comparison of Various Statistical Alignment Models,
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.optional_results import Alignments, HeadLinks, LinkScore
from headscope.analyses.classify.result import HeadResult
from headscope.analyses.classify.rows import (
    FARTHEST,
    LONG,
    OUT,
    QueryMeans,
    RowMeasure,
    RowSummary,
    ordered_queries,
)
from headscope.analyses.classify.syntactic import Kernel, Syntactic
from headscope.core.accumulator import Accumulator, Array, Parts, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.roles import PAIR
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import AlignedWords, Batch
from headscope.data.pairs import ALIGNED
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import effective_units, finite, ratio_error, share_interval

# Thresholds of links: 0.02, 0.04, ... 0.98.
STEP = 0.02
STEPS = 49
_SLACK = 1e-4  # Share of a step by which rounding may take a weight below its threshold.


class CrossHeads(QueryMeans, RowMeasure):
    """Sums over pairs of what the cross-attention heads of a model do.

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
        """Add one batch; pairs that are too short have no queries.

        Content tokens are counted from 0 in each sequence.
        """
        assert batch.source is not None  # cross-attention reads one
        source = batch.source
        query = ordered_queries(batch.source)
        key = source.content
        real = source.attention_mask
        content = widest(query)
        m_query, m_key, n_keys = (side.sum(dim=1) for side in (query, key, real))
        used = m_query > 0
        long = n_keys >= LONG
        position, key_position = ((side.cumsum(1) - 1).clamp(min=0) for side in (query, key))

        def near_line(key: Tensor, query: Tensor) -> Tensor:
            """Whether key and query, as numbers in their sequences, lie within 1 of the line."""
            n = m_query[:, None, None] - 1
            m = m_key[:, None, None] - 1
            return (key * n - query * m).abs() <= n

        asked = dict.fromkeys(self.quantities, m_query)
        asked |= {"alignment": used.long(), "long_entropy": m_query * long}
        # By query, what uniform attention gives: near is (batch, query_pos, key_pos).
        near = (near_line(key_position[:, None], position[..., None]) & key[:, None]).sum(dim=2)
        at_least_one = widest(n_keys.clamp(min=1))
        n_special = (real.bool() & ~key).sum(dim=1)
        expected = (
            near / widest(m_key.clamp(min=1))[:, None],
            (1 / at_least_one)[:, None],
            (n_special / at_least_one)[:, None],
        )
        queries = torch.stack([*asked.values()], dim=1)
        self.count(queries, [part * content for part in expected])
        self.units += int(used.sum())
        self.skipped += int((~used).sum())
        self.long_units += int((used & long).sum())
        # From positions to numbers among the content keys: (batch, heads, query_pos)
        looks_at = key_position[:, None].expand(*rows.argmax.shape[:2], -1).gather(2, rows.argmax)
        alignment = rank_correlation(looks_at, position, content)
        on_line = widest(near_line(looks_at, position[:, None]))
        diagonal = torch.einsum("bhi,bi->bh", on_line, content)
        relative, long_entropy = rows.relative.unbind(dim=-1)
        parts = (alignment, diagonal, rows.top, rows.entropy, relative, *rows.mass.unbind(-1))
        self.add(..., torch.stack([*parts, long_entropy], dim=-1), queries)


def rank_correlation(values: Tensor, position: Tensor, counted: Tensor) -> Tensor:
    """Return Spearman correlations of whole numbers with their positions, (rows, heads).

    Ties share ranks; where all numbers are equal it is 0.

    Shapes: ``values`` (rows, heads, pos), int64, 0 or more; ``position`` (rows, pos), int64, the
    position from 0 among those that count; ``counted`` (rows, pos), float64, 1 at those.
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
    centred = ((position - (n[:, None] - 1) / 2) * counted)[:, None]
    spread = rank.square().sum(dim=2)
    norm = (spread * centred.square().sum(dim=2)).sqrt()
    return (rank * centred).sum(dim=2) / torch.where(spread == 0, 1.0, norm)  # exact, too


class Agreement(Accumulator):
    """Links at every threshold and in each half, with sums by pair of texts for intervals."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (3, halves, n_layers, n_heads, thresholds): links of the head, the sure and the possible
        #: of them; and over pairs, of both terms of the error rate: N^2, N D, D^2
        self.links, self.squares = zeros(2, 3, 2, n_layers, n_heads, STEPS, dtype=np.int64)
        self.sure, self.units = zeros(2, 2, dtype=np.int64)  # By half: sure links; pairs of texts

    def add(
        self, layer: int, heads: slice, weights: Tensor, words: AlignedWords, rows: slice
    ) -> None:
        """Add word-level attention, (rows, heads, target words, source words), of some heads."""
        step = (weights / STEP + _SLACK).floor().long().clamp(0, STEPS).flatten(2)
        counts = []
        for mask in (words.inside, words.sure, words.possible):
            counted = mask[rows, None].flatten(2).long().expand_as(step)
            at_step = counted.new_zeros(*step.shape[:2], STEPS + 1).scatter_add_(2, step, counted)
            counts.append(at_step.flip(2).cumsum(2).flip(2)[..., 1:])
        sure = words.sure[rows].sum(dim=(1, 2))
        n = counts[1] + counts[2]
        d = counts[0] + sure[:, None, None]
        for total, parts in ((self.links, counts), (self.squares, [n * n, n * d, d * d])):
            for half in (0, 1):
                chosen = torch.stack(parts)[:, words.half[rows] == half]
                total[:, half, layer, heads] += numpy(chosen.sum(dim=1))

    def count(self, words: AlignedWords) -> None:
        """Count pairs and sure links, which are the same for all heads."""
        np.add.at(self.sure, numpy(words.half), numpy(words.sure.sum(dim=(1, 2))))
        np.add.at(self.units, numpy(words.half), 1)

    def score(self, layer: int, head: int) -> LinkScore:
        """Return one head's score on half B, at the threshold that is best on half A."""
        links, sure, possible = self.links[:, :, layer, head]  # (halves, thresholds) each
        both = sure + possible
        size = links + self.sure[:, None]
        error = np.where(size > 0, 1 - both / np.maximum(size, 1), 1.0)
        t = int(error[0].argmin())
        of_n, products, of_d = self.squares[:, 1, layer, head, t]
        terms = both[1, t], of_n, products, size[1, t], of_d, int(self.units[1])
        value = float(error[1, t])
        n = int(links[1, t])
        units = effective_units(size[1, t], of_d)
        low, high = map(float, share_interval(value, ratio_error(*terms), units))
        return LinkScore(
            threshold=round(STEP * (t + 1), 2),
            precision=int(possible[1, t]) / n if n else None,
            recall=int(sure[1, t]) / int(self.sure[1]) if self.sure[1] else None,
            error=Estimate(value, finite(low), finite(high)),
            links=n,
        )


class AlignedHeads(Parts):
    """Sums over aligned pairs of texts, fed from the sites of cross-attention."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.syntactic = Syntactic(n_layers, n_heads)
        #: As ``syntactic``, against the alignments of other pairs
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads, 2 * FARTHEST + 1)
        self.agreement = Agreement(n_layers, n_heads)
        self.others = Agreement(1, 2)  # Of the mean over all heads, and of the straight line

    def parts(self) -> Mapping[str, Any]:
        """Return the accumulators."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Accumulator)}

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares; without words nothing is added."""
        self._words = batch.words
        self._layer = 0
        if (words := self._words) is None:
            return
        size = words.distance.shape
        shape = self.syntactic.hits.shape[1:]
        self._looks_at, self._by_mean = words.pieces.new_zeros(2, size[0], *shape, size[1])
        self._total = words.of_source.new_zeros(size)
        self._seen = 0
        self._used = words.inside & (words.half == 0)[:, None, None]
        used = numpy(words.near(FARTHEST)[self._used])
        self.kernel.pairs += np.bincount(used, minlength=2 * FARTHEST + 1)
        for part in (self.agreement, self.others):
            part.count(words)

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        if site.stack != "cross" or (words := self._words) is None:
            return
        rows = site.rows
        layer = self._layer
        heads = site.heads
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        of_target, of_source = (
            side[rows].to(pattern.dtype) for side in (words.of_target, words.of_source)
        )
        weights = torch.einsum("btq,bhqk,bsk->bhts", of_target, pattern, of_source)
        pieces = words.pieces[rows, None, None]
        per_piece = weights / pieces.clamp(min=1)
        outside = -OUT * (pieces == 0).to(weights.dtype)
        self._looks_at[rows, layer, heads] = first_largest(weights + outside)[1]
        self._by_mean[rows, layer, heads] = first_largest(per_piece + outside)[1]
        self.agreement.add(layer, heads, weights, words, rows)
        self._total[rows] += weights.sum(dim=1).to(self._total.dtype)
        self._seen += weights.shape[1] * (rows.start == 0)  # heads, each once
        used = widest(per_piece * self._used[rows, None]).transpose(0, 1).flatten(1)
        index = words.near(FARTHEST)[rows].flatten().expand_as(used)
        by_distance = used.new_zeros(len(used), 2 * FARTHEST + 1).scatter_add_(1, index, used)
        self.kernel.sums[layer, heads] += numpy(by_distance)

    def finish(self, stack: str, layer: int) -> None:
        """Add what the layers of a batch have in common once the last one has been observed."""
        self._layer += stack == "cross"
        words = self._words
        if words is None or self._layer < self.syntactic.hits.shape[1]:
            return
        looked = self._looks_at.flatten(1, 2), self._by_mean.flatten(1, 2)
        for part in (self.syntactic, self.swapped):
            part.add(*looked, words)
        others = torch.stack([self._total / self._seen, (words.distance == 0).float()], dim=1)
        self.others.add(0, slice(0, 2), others, words, slice(0, len(others)))
        self._words = None

    def alignments(self, judged: Mapping[tuple[int, int], HeadResult]) -> Alignments:
        """Compare heads with the role with simpler links; ``judged``: by position in the sums."""
        heads = [
            HeadLinks(head.layer, head.head, self.agreement.score(*position), stack="cross")
            for position, head in judged.items()
        ]
        roles = {(head.layer, head.head): head.roles for head in judged.values()}
        last = max(head.layer for head in heads)
        errors = [float(head.links.error) for head in heads]
        return Alignments(
            alignment_heads=tuple(at for at, names in roles.items() if PAIR + ALIGNED in names),
            all_heads=self.others.score(0, 0),
            first_of_last=next(head.links for head in heads if head.layer == last),
            straight=self.others.score(0, 1),
            random=Estimate(sum(errors) / len(errors), min(errors), max(errors)),
            heads=tuple(heads),
        )
