"""The rows of a result: means over examples of what parts and heads contribute.

They are made of tables (examples, heads), whose columns :class:`ModelHeads` puts in order. A
``JointEstimate`` has two intervals, of this number alone and of all heads at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.analyses.attribute.parts import ExactSum
from headscope.analyses.attribute.removal import HeadIndex
from headscope.analyses.attribute.result import (
    AttributedHead,
    AttributedLayer,
    HeadGroup,
    PartSum,
)
from headscope.core.accumulator import Array
from headscope.core.heads import layer_name
from headscope.core.rounding import above
from headscope.models.anatomy.layers import Anatomy
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import JOINTLY_UNKNOWN, UNKNOWN, Estimate, JointEstimate
from headscope.stats.metrics import spearman, value_of
from headscope.stats.statistics import joint_mean, t_half_width

#: Tables of numbers of heads, by name: (examples, heads) each.
HeadTables = Mapping[str, Array]


@dataclass(frozen=True)
class ModelHeads:
    """All heads of a model, in the order of the result."""

    indices: list[HeadIndex]  # (row of the attention layer, index in the layer)
    #: Where in ``indices`` the heads are that write to the residual stream that is taken apart: all
    #: but an encoder's where a decoder's stream is. Only these have a direct part.
    writing: list[int]
    writing_sites: list[int]  # The rows of their attention layers
    roles: dict[HeadIndex, str]  # The primary role of each; empty without a classification

    @classmethod
    def of(
        cls, indices: list[HeadIndex], anatomy: Anatomy, roles: dict[HeadIndex, str]
    ) -> ModelHeads:
        """Find which of the heads write to the stream of this anatomy."""
        rows: list[int] = []
        for layer in anatomy.layers:
            rows += [site.row for site in layer.sites]
        writing = [j for j, (row, _) in enumerate(indices) if row in rows]
        return cls(indices, writing, sorted(rows), roles)

    def __len__(self) -> int:
        return len(self.indices)

    def by_head(self, table: Array) -> Array:
        """Return the columns of all heads, (examples, heads), of (examples, n_layers, n_heads)."""
        rows, columns = np.array(self.indices).T
        return np.asarray(table[:, rows, columns])

    def writing_at(self, row: int) -> list[int]:
        """Return where in ``indices`` the writing heads of one site are."""
        return [j for j in self.writing if self.indices[j][0] == row]


# --- statistics -----------------------------------------------------------------------------------


def mean_over_examples(values: Array) -> Estimate:
    """Return the mean of (examples,) with its Student's t interval, which few examples lack."""
    mean = _joint_mean(values, 1)
    return Estimate(mean.value, mean.low, mean.high)


def _joint_mean(values: Array, n_means: int) -> JointEstimate:
    """Return one of ``n_means`` means over examples, with Student's t intervals.

    One interval is of this mean, a wider one of all of them at once; few examples have none.
    """
    n = len(values)
    if np.isnan(values).any():
        return JOINTLY_UNKNOWN
    error = values.std(ddof=1) / np.sqrt(n) if n > 1 else np.inf
    half_width = [float(t_half_width(error, n))]
    return joint_mean([float(values.mean())], half_width, half_width, n_means=n_means, n=n)


def agreement(first: Array, second: Array, columns: Sequence[int]) -> float | None:
    """Return Spearman's correlation over some heads of two means over examples.

    Both tables are (examples, heads). None for fewer than three heads, and where numbers differ by
    rounding alone.
    """
    if len(columns) < 3:
        return None
    first_means = first.mean(0)[columns]
    second_means = second.mean(0)[columns]
    for means in (first_means, second_means):
        if not above(means.max(), means.min()):
            return None
    # The metric of similarity tasks, which is in per cent
    return value_of(spearman, {"similarity": first_means, "gold": second_means}) / 100


# --- rows of the result ---------------------------------------------------------------------------


def part_sums(loaded: LoadedModel, exact_sum: ExactSum, kind: str) -> tuple[PartSum, ...]:
    """Sum the parts of each kind; a target tells self-attention from cross-attention."""
    stacks_of_part: dict[str, tuple[str, ...]] = {"heads": loaded.stacks}
    if kind == "target":
        stacks_of_part = {"self-attention": ("decoder",), "cross-attention": ("cross",)}
    sums = []
    for name, stacks in stacks_of_part.items():
        rows = [site.row for site in loaded.sites if site.stack in stacks]
        sums.append(PartSum(name, mean_over_examples(exact_sum.heads[:, rows].sum((1, 2)))))
    return (
        *sums,
        PartSum("feed-forward", mean_over_examples(exact_sum.feed_forward.sum(1))),
        PartSum("embeddings", mean_over_examples(exact_sum.embeddings)),
        PartSum("biases", mean_over_examples(exact_sum.biases)),
    )


def head_rows(
    loaded: LoadedModel, heads: ModelHeads, tables: HeadTables
) -> Iterator[AttributedHead]:
    """Average every number of every head; ``direct`` is unknown where a head writes elsewhere.

    ``tables`` have the names of fields of :class:`AttributedHead`.
    """
    for j, (row, index) in enumerate(heads.indices):
        site = loaded.sites[row]
        means = {name: _joint_mean(table[:, j], len(heads)) for name, table in tables.items()}
        if j not in heads.writing:
            means["direct"] = JOINTLY_UNKNOWN
        yield AttributedHead(
            site.layer,
            site.head_ids[index],
            **means,
            role=heads.roles.get((row, index), ""),
            stack=site.stack,
        )


def layer_rows(
    loaded: LoadedModel,
    heads: ModelHeads,
    exact_sum: ExactSum,
    tables: HeadTables,
    removal_indices: Sequence[int],
) -> Iterator[AttributedLayer]:
    """Average the parts of every layer, and correlate its heads' parts with removal.

    ``removal_indices`` are the examples on which heads were removed.
    """
    for row in heads.writing_sites:
        site = loaded.sites[row]
        feed_forward = UNKNOWN
        if site.stack != "cross":
            feed_forward = mean_over_examples(exact_sum.feed_forward[:, row])
        in_layer = heads.writing_at(row)
        correlations = {
            name: agreement(tables[name][removal_indices], tables["removed"], in_layer)
            for name in ("direct", "first_order")
            if name in tables
        }
        yield AttributedLayer(
            layer=site.layer,
            heads=mean_over_examples(exact_sum.heads[:, row].sum(-1)),
            feed_forward=feed_forward,
            stack=site.stack,
            spearman=correlations["direct"],
            spearman_first_order=correlations.get("first_order"),
        )


def group_rows(loaded: LoadedModel, heads: ModelHeads, tables: HeadTables) -> Iterator[HeadGroup]:
    """Put heads of one role together, or of one layer where no role is known."""
    members: dict[str, list[int]] = {}
    for j, index in enumerate(heads.indices):
        site = loaded.sites[index[0]]
        name = heads.roles.get(index) or layer_name(site.layer, site.stack)
        members.setdefault(name, []).append(j)
    for name, group in members.items():
        writing = [j for j in group if j in heads.writing]
        direct = UNKNOWN
        if writing:
            direct = mean_over_examples(tables["direct"][:, writing].sum(-1))
        removed = mean_over_examples(tables["removed"][:, group].mean(-1))
        yield HeadGroup(name, len(group), direct, removed)
