"""The sums that one pass over a corpus takes of every stack's heads.

Each class is one measurement: what is counted, by its definition, and how a batch adds to it. A
batch comes as its tokens (:class:`Batch`) and a :class:`RowSummary`: what is left of the patterns
of all heads, such as ``argmax``, the position of each query's largest weight.

At the end of the file :class:`HeadMeasures` joins the measurements of one stack of self-attention,
and :class:`StackSums` all stacks. Cross-attention and syntactic relations are in ``cross.py`` and
``syntactic.py``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.cross import CrossHeads, LabelledHeads
from headscope.analyses.classify.kernel import Kernel
from headscope.analyses.classify.query_means import QueryMeans
from headscope.analyses.classify.roles import roles_with_keys
from headscope.analyses.classify.rows import (
    LONG,
    OFFSETS,
    SIDE,
    RowMeasure,
    RowSummary,
    corners,
    keys_of_roles,
)
from headscope.analyses.classify.syntactic import Syntactic
from headscope.core.accumulator import Parts, numpy, zeros
from headscope.core.widest import widest
from headscope.data.batches import Batch

_FAR = max(OFFSETS) + 1  # One step beyond the farthest offset that is scored.


class Positional(RowMeasure):
    """Positional heads: how often does a head look at the token a fixed step away?

    For an offset r: ``rate[r]`` = hits / queries over queries i whose target i + r is a content key
    of the same sentence; a hit when the largest content weight of row i lies at i + r. ``mass[r]``
    = mean of P[i, i + r] over queries whose target lies inside the sequence, special tokens
    included as targets. Under a causal mask no query has a target to its
    right (Voita et al. 2019, arXiv:1905.09418, section 5.1; label at 0.90).
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, offsets): queries whose largest content weight lies at the offset
        self.hits = np.zeros((n_layers, n_heads, len(OFFSETS)), dtype=np.int64)
        self.mass = np.zeros((n_layers, n_heads, len(OFFSETS)))  # Sum of the weights there.
        #: (offsets,): queries that have a content token at the offset, and queries that have any
        #: token there; the same for every head
        self.queries, self.mass_queries = zeros(2, len(OFFSETS), dtype=np.int64)
        #: Sum over queries of 1 / (content keys that the query sees); number of queries
        self.chance = np.zeros(())
        self.content = np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        # Count the queries of each offset: of 5 tokens and offset 2, queries 0-2 have targets 2-4.
        is_query = numpy(batch.queries)
        is_key = numpy(batch.keys)
        real = numpy(batch.attention_mask).astype(bool)
        n = batch.size[1]
        for i, offset in enumerate(OFFSETS):
            if abs(offset) < n and not (batch.causal and offset > 0):
                query = slice(max(-offset, 0), min(n, n - offset))
                target = slice(max(offset, 0), min(n, n + offset))
                self.queries[i] += (is_query[:, query] & is_key[:, target]).sum()
                self.mass_queries[i] += (is_query[:, query] & real[:, target]).sum()

        # What a head would hit by chance, if it looked at any content key that it sees.
        self.content += is_query.sum()
        seen = is_key.cumsum(axis=1) if batch.causal else is_key.sum(axis=1)[:, None]
        self.chance += float((is_query / np.maximum(seen, 1)).sum())

        # How many tokens away each head looks: a bin for each step from -_FAR to _FAR, what lies
        # beyond in the outermost. All heads are counted at once, each in bins of its own.
        step = rows.argmax - torch.arange(n, device=rows.argmax.device)  # [batch, heads, pos]
        by_head = step.transpose(0, 1)[:, batch.queries]  # [heads, queries]
        n_heads = len(by_head)
        n_bins = 2 * _FAR + 1
        first_bin = n_bins * torch.arange(n_heads, device=step.device)[:, None]
        bins = first_bin + _FAR + by_head.clamp(-_FAR, _FAR)
        counts = torch.bincount(bins.flatten(), minlength=n_heads * n_bins)
        hits = counts.view(n_heads, n_bins)[:, [_FAR + offset for offset in OFFSETS]]
        self.hits += numpy(hits).reshape(self.hits.shape)
        self.mass += numpy(rows.band.sum(dim=0)).reshape(self.mass.shape)


class Profile(QueryMeans, RowMeasure):
    """How sharp a head is, how broad, and how much goes to special tokens and punctuation.

    Under a causal mask uniform attention, the ln n of relative entropies, and copies of a token
    count only the keys that a row may see (Voita et al. 2019, arXiv:1905.09418, confidence; Clark
    et al. 2019, arXiv:1906.04341, section 3).
    """

    #: Fields of a HeadResult. ``duplicate_rate`` is a mean over queries whose token occurs again,
    #: ``relative_entropy`` over queries that see two tokens or more, ``long_entropy`` the same over
    #: queries that see LONG tokens or more, ``first_token`` the weight on position 0 over queries
    #: from position 4 on, in causal stacks only. Roles that a user registered follow.
    quantities: tuple[str, ...] = (
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
        "first_token",
    )
    baselines: tuple[str, ...] = (
        "special_mass",
        "punctuation_mass",
        "self_rate",
        "duplicate_rate",
        "first_token",
    )

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: Roles that name their keys; a quantity of each is the mean weight on these keys
        self._roles = [role.key for role in roles_with_keys()]
        self.quantities = (*Profile.quantities, *self._roles)
        self.baselines = (*Profile.baselines, *self._roles)
        super().__init__(n_layers, n_heads)
        self.left_out = np.zeros((), dtype=np.int64)  # Words without a piece
        self.tree_edges = np.zeros((), dtype=np.int64)  # Edges of all trees

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        # Whether query and key are two positions with the same token, [batch, query, key]; under a
        # causal mask only keys before the query.
        is_query = batch.queries
        ids = batch.input_ids
        same = (ids[:, :, None] == ids[:, None, :]) & is_query[:, :, None] & batch.keys[:, None, :]
        same.diagonal(dim1=1, dim2=2).fill_(False)
        same = same.tril() if batch.causal else same

        # Count the queries of each quantity: most are means over all queries.
        queries_of = dict.fromkeys(self.quantities, is_query) | {
            "relative_entropy": is_query & (batch.visible >= 2),
            "duplicate_rate": same.any(dim=2),
            "long_entropy": is_query & (batch.visible >= LONG),
            "first_token": batch.sink_queries,
        }
        queries = torch.stack([mask.sum(dim=1) for mask in queries_of.values()], dim=1)
        self.count(queries, _expected(batch, same))
        self.units += batch.size[0]
        self.left_out += batch.left_out
        self.tree_edges += batch.tree_edges
        self.long_units += int((queries[:, self.quantities.index("long_entropy")] > 0).sum())

        # Add each sentence's sums over queries.
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        itself = rows.argmax == position  # [batch, heads, pos]
        query_ids = ids[:, None].expand_as(rows.argmax)
        attended_ids = query_ids.gather(2, rows.argmax)
        has_copy = same.any(dim=2)[:, None]
        copy = (attended_ids == query_ids) & ~itself & has_copy
        relative_entropy, long_entropy = rows.relative.unbind(dim=-1)
        special, first_special, last_special, punctuation, *by_role = rows.mass.unbind(dim=-1)
        sums = {
            "confidence": rows.top,
            "entropy": rows.entropy,
            "relative_entropy": relative_entropy,
            "special_mass": special,
            "first_special_mass": first_special,
            "last_special_mass": last_special,
            "punctuation_mass": punctuation,
            "self_rate": (itself & is_query[:, None]).sum(dim=2),
            "duplicate_rate": (copy & is_query[:, None]).sum(dim=2),
            "long_entropy": long_entropy,
            "first_token": rows.first_token,
            **dict(zip(self._roles, by_role, strict=True)),
        }
        self.add(torch.stack([sums[name] for name in self.quantities], dim=-1), queries)


def _expected(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """Return what uniform attention gives each query, in the order of ``Profile.baselines``."""

    def seen(mark: Tensor) -> Tensor:
        """How many marked tokens each query may look at."""
        return mark.cumsum(dim=1) if batch.causal else mark.sum(dim=1, keepdim=True)

    is_query = batch.queries
    n_visible = widest(batch.visible.clamp(min=1))
    n_keys = widest(seen(batch.keys).clamp(min=1))
    by_role = [is_query * keys.sum(dim=2) / n_visible for keys in keys_of_roles(batch)]
    return (
        is_query * seen(batch.special) / n_visible,
        is_query * seen(batch.punctuation) / n_visible,
        is_query / n_keys,
        same.sum(dim=2) / n_keys,
        batch.sink_queries / n_visible,
        *by_role,
    )


class Rare(QueryMeans, RowMeasure):
    """Rare-word heads: does a head look at the sentence's least frequent word?

    Word level, over sentences whose rarest word is not among the 500 most frequent. Every word
    except the rarest is a query; a hit when its argmax is a rarest word. Two baselines: ``chance``,
    the rate of a head that picks any other word at random, and ``uniform``, the rate of evenly
    spread attention: rare words are long, and summing over pieces favours them, so that a head
    which has learnt nothing scores far above chance. All queries of a sentence share its target, so
    the sentence is the unit that was sampled (Voita et al. 2019, arXiv:1905.09418, section 5.3).
    """

    #: Rates on the rarest word and on the two rarest; hits beyond those that a baseline expects.
    quantities = ("rate", "two_rarest", "over_chance", "over_uniform")
    baselines = ("over_chance", "over_uniform")  # Their expected values are the baselines' rates

    def __init__(self, n_layers: int, n_heads: int) -> None:
        super().__init__(n_layers, n_heads)
        #: Sentences that are passed over as their script puts no space between words
        self.unspaced = np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        # Count the queries and what the baselines give to each sentence.
        rare = batch.rare  # marks queries and target words at first pieces
        n_queries = rare.query.sum(dim=1)
        queries = n_queries[:, None].expand(-1, len(self.quantities))
        by_chance = rare.chance
        by_uniform = rare.uniform.sum(dim=1)
        self.count(queries, [by_chance, by_uniform])
        self.units += int((n_queries > 0).sum())
        self.unspaced += batch.unspaced

        # Add each sentence's hits, (batch, heads).
        rarest = _hits(rows.word_argmax, rare.query, rare.rarest)
        two_rarest = _hits(rows.word_argmax, rare.query, rare.two_rarest)
        over_chance = rarest - by_chance[:, None]
        over_uniform = rarest - by_uniform[:, None]
        sums = torch.stack([rarest, two_rarest, over_chance, over_uniform], dim=-1)
        self.add(sums, queries)


def _hits(word_argmax: Tensor, is_query: Tensor, is_target: Tensor) -> Tensor:
    """Count the queries that attend to a target word: (batch, heads).

    ``word_argmax`` (batch, heads, pos); which positions are queries and targets, (batch, pos).
    """
    targets = is_target[:, None].expand_as(word_argmax)
    hits = targets.gather(2, word_argmax) & is_query[:, None]
    return widest(hits.sum(dim=2))


class MeanPattern(RowMeasure):
    """Mean attention between the first tokens and the last: the picture of a head."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.weights = np.zeros((n_layers, n_heads, SIDE, SIDE))
        self.sentences = np.zeros((SIDE, SIDE), dtype=np.int64)  # Sentences that have both tokens

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        self.weights += numpy(rows.corner).reshape(self.weights.shape)
        _, exists = corners(batch.attention_mask)  # [batch, SIDE]
        in_picture = numpy(exists).astype(np.int64)
        self.sentences += in_picture.T @ in_picture

    def pictures(self) -> list[list[str]]:
        """Base64 of a byte a cell, row by row: 255 times the square root of the mean weight."""
        means = self.weights / np.maximum(self.sentences, 1)
        cells = np.rint(255 * np.sqrt(means.clip(0, 1))).astype(np.uint8)
        return [[base64.b64encode(head.tobytes()).decode() for head in layer] for layer in cells]


class HeadMeasures(Parts):
    """All sums of one stack of self-attention; every attribute is one measurement."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.positional = Positional(n_layers, n_heads)
        self.syntactic = Syntactic(n_layers, n_heads)
        #: As ``syntactic``, against other sentences' trees
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads)
        self.rare = Rare(n_layers, n_heads)
        self.profile = Profile(n_layers, n_heads)
        self.mean_pattern = MeanPattern(n_layers, n_heads)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        for measure in self.parts().values():
            measure.update(rows, batch)


class StackSums(Parts):
    """Sums of every stack that a run measures; those of stacks that a pass does not run stay 0.

    ``shapes`` are (n_layers, n_heads) by stack.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]], *, labelled: bool = False) -> None:
        #: Sums of cross-attention on a user's pairs of words; ``labelled``: whether there are some
        self.labelled: LabelledHeads | None = None
        if labelled and "cross" in shapes:
            self.labelled = LabelledHeads(*shapes["cross"])
        self.by_stack: dict[str, HeadMeasures | CrossHeads] = {
            stack: CrossHeads(*shape) if stack == "cross" else HeadMeasures(*shape)
            for stack, shape in shapes.items()
        }

    def parts(self) -> Mapping[str, Any]:
        """Return the sums of each stack, and those on a user's pairs of words.

        The latter have an empty name, which no stack can have.
        """
        if self.labelled is None:
            return self.by_stack
        return {**self.by_stack, "": self.labelled}
