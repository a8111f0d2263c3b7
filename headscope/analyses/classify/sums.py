"""The sums that one pass over a corpus takes of every stack's heads."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.aligned import AlignedHeads
from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.rows import (
    LONG,
    OFFSETS,
    SIDE,
    QueryMeans,
    RowMeasure,
    RowReducer,
    RowSummary,
    corners,
    registered_keys,
)
from headscope.analyses.classify.syntactic import Kernel, Syntactic
from headscope.core.accumulator import Array, Parts, numpy, zeros
from headscope.core.roles import registered_roles
from headscope.core.widest import widest
from headscope.data.batches import Batch
from headscope.stats.statistics import ratio, ratio_error

_FAR = max(OFFSETS) + 1  # One step beyond the farthest offset that is scored.


class Positional(RowMeasure):
    """Positional heads: how often does a head look at the token a fixed step away?

    For an offset r: ``rate[r]`` = hits / queries over content queries i whose target i + r is a
    content token of the same sentence; a hit when the largest content weight of row i lies at
    i + r. ``mass[r]`` = mean of P[i, i + r] over content queries whose target lies inside the
    sequence, special tokens included as targets. Under a causal mask no query has a target to its
    right (Voita et al. 2019, arXiv:1905.09418, section 5.1; label at 0.90).
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, offsets): queries whose largest content weight lies at the offset
        self.hits = np.zeros((n_layers, n_heads, len(OFFSETS)), dtype=np.int64)
        self.mass = np.zeros((n_layers, n_heads, len(OFFSETS)))  # Sum of the weights there.
        #: (offsets,): queries that can hit, and that have a key there; the same for every head
        self.queries, self.mass_queries = zeros(2, len(OFFSETS), dtype=np.int64)
        #: Sum over content queries of 1 / (content tokens that the query sees); content queries
        self.chance, self.content = np.zeros(()), np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        content, real = numpy(batch.content), numpy(batch.attention_mask).astype(bool)
        n = batch.size[1]
        for i, r in enumerate(OFFSETS):
            if abs(r) < n and not (batch.causal and r > 0):
                query, target = slice(max(-r, 0), min(n, n - r)), slice(max(r, 0), min(n, n + r))
                self.queries[i] += (content[:, query] & content[:, target]).sum()
                self.mass_queries[i] += (content[:, query] & real[:, target]).sum()
        per_sentence = content.sum(axis=1)
        self.content += per_sentence.sum()
        if batch.causal:
            seen = np.arange(1, int(per_sentence.max(initial=0)) + 1)
            self.chance += float(sum((1 / seen[:n]).sum() for n in per_sentence))
        else:
            self.chance += float((per_sentence > 0).sum())
        step = rows.argmax - torch.arange(n, device=rows.argmax.device)  # (batch, heads, pos)
        by_head = step.transpose(0, 1)[:, batch.content]  # (heads, content tokens)
        # One bin for each step from -FAR to FAR, what lies beyond in the last ones.
        n_bins = 2 * _FAR + 1
        head = torch.arange(len(by_head), device=step.device)[:, None]
        bins = by_head.clamp(-_FAR, _FAR) + _FAR + head * n_bins
        counts = torch.bincount(bins.flatten(), minlength=len(by_head) * n_bins)
        hits = counts.view(len(by_head), n_bins)[:, [_FAR + r for r in OFFSETS]]
        self.hits += numpy(hits).reshape(self.hits.shape)
        self.mass += numpy(rows.band.sum(dim=0)).reshape(self.mass.shape)

    def rates(self) -> Array:
        """Hit rates, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.hits, self.queries)

    def masses(self) -> Array:
        """Mean mass, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.mass, self.mass_queries)


class Profile(QueryMeans, RowMeasure):
    """How sharp a head is, how broad, and how much goes to special tokens and punctuation.

    Under a causal mask uniform attention, the ln n of relative entropies, and copies of a token
    count only the keys that a row may see (Voita et al. 2019, arXiv:1905.09418, confidence; Clark
    et al. 2019, arXiv:1906.04341, section 3).
    """

    #: Fields of a HeadResult; ``duplicate_rate`` is a mean over queries whose token occurs again,
    #: ``relative_entropy`` over those that see two tokens or more.
    quantities: tuple[str, ...] = (
        *("confidence", "entropy", "relative_entropy"),
        *("special_mass", "first_special_mass", "last_special_mass", "punctuation_mass"),
        *("self_rate", "duplicate_rate", "long_entropy"),
    )
    baselines: tuple[str, ...] = (
        *("special_mass", "punctuation_mass", "self_rate", "duplicate_rate"),
    )

    def __init__(self, n_layers: int, n_heads: int) -> None:
        registered = [role.key for role in registered_roles()]  # mean mass on the keys of each
        self.quantities = (*Profile.quantities, *registered)
        self.baselines = (*Profile.baselines, *registered)
        super().__init__(n_layers, n_heads)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        content, visible, ids = batch.content, batch.visible, batch.input_ids
        # Whether two different content positions hold the same token, (batch, pos, pos); under a
        # causal mask: whether the token of the second stands before the first.
        same = (ids[:, :, None] == ids[:, None, :]) & content[:, :, None] & content[:, None, :]
        same.diagonal(dim1=1, dim2=2).fill_(False)
        same = same.tril() if batch.causal else same
        asked = dict.fromkeys(self.quantities, content) | {
            "relative_entropy": content & (visible >= 2),
            "duplicate_rate": same.any(dim=2),
            "long_entropy": content & (visible >= LONG),
        }
        queries = torch.stack([mask.sum(dim=1) for mask in asked.values()], dim=1)
        self.count(queries, _expected(batch, same))
        self.units += batch.size[0]
        self.long_units += int((queries[:, self.quantities.index("long_entropy")] > 0).sum())

        position = torch.arange(batch.size[1], device=rows.argmax.device)
        itself = rows.argmax == position
        own = ids[:, None].expand_as(rows.argmax)
        copy = (own.gather(2, rows.argmax) == own) & ~itself & same.any(dim=2)[:, None]
        rates = [(mark & content[:, None]).sum(dim=2) for mark in (itself, copy)]
        relative, long = rows.relative.unbind(dim=-1)
        mass = rows.mass.unbind(dim=-1)
        parts = (rows.top, rows.entropy, relative, *mass[:4], *rates, long, *mass[4:])
        self.add(..., torch.stack(parts, dim=-1), queries)


def _expected(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """Return what uniform attention gives, in the order of ``Profile.baselines``.

    Summed over the queries of each sentence, or by query under a causal mask.
    """
    content, visible = batch.content, widest(batch.visible.clamp(min=1))
    registered = [content * keys.sum(dim=2) / visible for keys in registered_keys(batch)]
    if batch.causal:
        before = widest(content.cumsum(dim=1).clamp(min=1))
        special, punctuation = (m.cumsum(dim=1) for m in (batch.special, batch.punctuation))
        shares = (content * special / visible, content * punctuation / visible)
        return (*shares, content / before, same.sum(dim=2) / before, *registered)
    n, length = content.sum(dim=1), widest(batch.attention_mask.sum(dim=1))
    special, punctuation = (m.sum(dim=1) for m in (batch.special, batch.punctuation))
    shares = (n * special / length, n * punctuation / length)
    return (*shares, n > 0, same.sum(dim=(1, 2)) / n.clamp(min=1), *registered)


class Rare(RowMeasure):
    """Rare-word heads: does a head look at the sentence's least frequent word?

    Word level, over sentences whose rarest word is not among the 500 most frequent. Every word
    except the rarest is a query; a hit when its argmax is a rarest word. Three baselines:
    ``chance``, the rate of a head that picks any other word at random; ``null``, the head's own
    rate had the target been drawn at random from the sentence's words with a letter or digit (its
    exact expectation); and ``uniform``, the rate of evenly spread attention: rare words are long,
    and summing over pieces favours them, so that a head which has learnt nothing scores far above
    chance. All queries of a sentence share its target, so sums are kept by sentence, the unit that
    was sampled (Voita et al. 2019, arXiv:1905.09418, section 5.3).
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        shape = (n_layers, n_heads)
        #: Queries that attend to a rarest word, to one of the two rarest; and expected hits, had
        #: the targets been drawn at random
        self.hits, self.two_hits = zeros(2, *shape, dtype=np.int64)
        self.null_hits = np.zeros(shape)
        #: (3, n_layers, n_heads): hits, hits less those that chance expects, and less those that
        #: uniform attention expects; over sentences, of their squares and of them x queries
        self.gains, self.squares, self.products = zeros(3, 3, *shape)
        #: Sentences that count, their queries, and over sentences: of queries^2
        self.sentences, self.queries, self.queries_squared = zeros(3, dtype=np.int64)
        self.expected = np.zeros(2)  # Hits that chance and uniform attention expect.
        self.null_queries = np.zeros(())  # Queries expected where targets are drawn at random.

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        rare, shape, n_heads = batch.rare, self.hits.shape, rows.word_argmax.shape[1]
        flat = rows.word_argmax.transpose(1, 2).flatten(1)  # (batch, pos * heads)

        def attended(mark: Tensor) -> Tensor:
            """Whether the attended word is marked: (batch, pos, heads)."""
            return mark.gather(1, flat).view(*mark.shape, n_heads)

        query = rare.query[..., None]
        hits = numpy((attended(rare.rarest) & query).sum(dim=1))  # (batch, heads)
        two_hits = (attended(rare.two_rarest) & query).sum(dim=(0, 1))
        null = attended(rare.candidate) * rare.null_weight[..., None]
        self.hits += hits.sum(axis=0).reshape(shape)
        self.two_hits += numpy(two_hits).reshape(shape)
        self.null_hits += numpy(null.sum(dim=(0, 1))).reshape(shape)
        queries = numpy(rare.query.sum(dim=1))  # (batch,)
        expected = np.stack([numpy(rare.chance), numpy(rare.uniform.sum(dim=1))])
        gains = np.stack([hits, *(hits - of_baseline[:, None] for of_baseline in expected)])
        self.gains += gains.sum(axis=1).reshape(3, *shape)
        self.squares += (gains**2).sum(axis=1).reshape(3, *shape)
        self.products += (queries @ gains).reshape(3, *shape)
        self.sentences += (queries > 0).sum()
        self.queries += queries.sum()
        self.queries_squared += (queries**2).sum()
        self.expected += expected.sum(axis=1)
        self.null_queries += rare.null_queries

    def errors(self) -> Array:
        """Standard errors by sentence of hits and both gains per query, (3, n_layers, n_heads)."""
        counts = int(self.queries), int(self.queries_squared), int(self.sentences)
        return ratio_error(self.gains, self.squares, self.products, *counts)


class MeanPattern(RowMeasure):
    """Mean attention between the first tokens and the last: the picture of a head."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.weights = np.zeros((n_layers, n_heads, SIDE, SIDE))
        self.sentences = np.zeros((SIDE, SIDE), dtype=np.int64)  # That have both tokens.

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        self.weights += numpy(rows.corner).reshape(self.weights.shape)
        exists = numpy(corners(batch.attention_mask)[1]).astype(np.int64)
        self.sentences += exists.T @ exists

    def pictures(self) -> list[list[str]]:
        """Base64 of a byte a cell, row by row: 255 times the square root of the mean weight."""
        means = self.weights / np.maximum(self.sentences, 1)
        cells = np.rint(255 * np.sqrt(means.clip(0, 1))).astype(np.uint8)
        return [[base64.b64encode(head.tobytes()).decode() for head in layer] for layer in cells]


class HeadMeasures(Parts):
    """Positional, syntactic, kernel, rare-word and profile sums and mean attention of each head."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.positional = Positional(n_layers, n_heads)
        self.syntactic = Syntactic(n_layers, n_heads)
        #: As ``syntactic``, against other sentences' trees
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads)
        self.rare = Rare(n_layers, n_heads)
        self.profile = Profile(n_layers, n_heads)
        self.mean_pattern = MeanPattern(n_layers, n_heads)

    def reducer(
        self,
        stack: str | None = None,
        hand_over: Callable[[RowSummary, Batch], object] | None = None,
    ) -> RowReducer:
        """Return the observer that feeds these sums, from the sites of one stack if it is given.

        With ``hand_over`` each batch's summary goes there instead, for a later :meth:`update`.
        """
        n_layers, n_heads = self.rare.hits.shape
        return RowReducer(n_layers, n_heads, hand_over or self.update, stack)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        for part in vars(self).values():
            part.update(rows, batch)


class StackSums(Parts):
    """Sums of every stack that a run measures; those of stacks that a pass does not run stay 0."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]], *, aligned: bool = False) -> None:
        #: Of cross-attention, where pairs of texts come with alignments
        self.aligned = AlignedHeads(*shapes["cross"]) if aligned and "cross" in shapes else None
        self.by_stack: dict[str, HeadMeasures | CrossHeads] = {
            stack: CrossHeads(*shape) if stack == "cross" else HeadMeasures(*shape)
            for stack, shape in shapes.items()
        }

    def parts(self) -> Mapping[str, Any]:
        """Return the sums of each stack, and those on alignments."""
        return self.by_stack if self.aligned is None else {**self.by_stack, "": self.aligned}
