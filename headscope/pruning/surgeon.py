"""Optimal Brain Surgeon on a whole model: an order of removal, and the refit that belongs to it.

The heads of each layer are eliminated by what passes through it
(:mod:`headscope.pruning.elimination`, :mod:`headscope.pruning.moments`), and layers share the
number of heads that go so that the sum of their costs is least. An eighth of the heads goes at a
time; after each step the refitted model, which keeps its whole shape with zeros for heads that
went, is run again, and *all* heads are ranked anew. It goes only as far as the sets that are asked
for: a search that ends early pays for no more.

The repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. A set chosen on the way needs no pass: its second moments are interpolated linearly, in the
number of heads gone, between the two measured sizes around it. Any other set is refitted to what
passes through the whole model, and once more to what passes through the model that this gives. No
labels are used, and no weight outside W_O and b_O changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.core.widest import exact
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pruning.elimination import Elimination, cheapest_counts, eliminate, refitted
from headscope.pruning.moments import Layer, Moments, measure_moments
from headscope.pruning.ranking import Context, Ranking, Repaired

STEPS = 8  # From all heads to none


def surgeon(context: Context) -> Ranking:
    """Rank heads by removing them step by step."""
    ranking = surgeon_of(context)
    ranking.remove(0)  # the repair asks of any set whether it is one of this path
    return ranking


def surgeon_of(context: Context) -> Surgeon:
    """Return the surgeon that a context's methods and repairs share."""
    return context.remember("surgeon", lambda: Surgeon(context))


def can_refit(loaded: LoadedModel) -> bool:
    """Whether every layer's output map reads its heads and nothing else."""
    for site in loaded.sites:
        if not site.n_heads:
            continue
        out = site.projections.out
        if out.module.weight.dim() != 2 or out.in_features != site.n_heads * site.d_head:
            return False
    return True


class MeasuredSize(NamedTuple):
    """What was measured of the model with some number of units gone, by layer."""

    paths: list[Elimination]
    inputs: list[Tensor]  # A, (n_heads * d_head + 1, same); float32 is enough to keep


class Surgeon(Ranking):
    """Which units are removed for each count, and the maps refitted to the remaining ones.

    A set of units comes from the largest measured size below its own; sets of different sizes need
    not be nested. A unit's score is the share of units in the smallest set that removes it, as far
    as the model was measured.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._model = context.calibration.loaded
        if not can_refit(self._model):
            raise UnsupportedModelError(
                f"surgeon cannot refit the output map of {self._model.name} "
                f"({self._model.family}), into which attention writes more than heads; choose "
                "another method and repair."
            )
        self._layers = _layers(context)
        n_units = len(context.units)
        sizes = sorted({n_units * i // STEPS for i in range(STEPS)})
        #: Units gone when the model is measured; no set is larger than the context's largest.
        self._sizes = sizes[: bisect_left(sizes, context.largest or n_units) + 1]
        #: The first of these sizes, as far as any set has asked for.
        self._measured: list[MeasuredSize] = []
        # A of every layer in float64: of the whole model, and at the last measured size.
        self._full_inputs: list[Tensor] = []
        self._last_inputs: list[Tensor] = []

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        self._measure_sizes(bisect_left(self._sizes, count))
        return self._remove_as_measured(count)

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,)."""
        values = torch.zeros(len(self._context.units)).double()
        seen: set[int] = set()
        for count in range(1, len(values) + 1):
            first_removed = set(self._remove_as_measured(count)) - seen
            seen |= first_removed
            values[sorted(first_removed)] = count / len(values)
        return values

    def refit(self, removed: Sequence[int]) -> Repaired:
        """Refit W_O and b_O of every layer to what all heads put out, on calibration text."""
        remaining = [
            [head for head, unit in enumerate(layer.units) if unit not in set(removed)]
            for layer in self._layers
        ]
        if self._measured and self.remove(len(removed)) == tuple(removed):
            inputs = self._interpolated_inputs(len(removed))
        else:  # by what passes through the whole model, then through the model that this gives
            self._full_inputs = self._full_inputs or _inputs(self._moments(0, {}))
            maps = self._refitted(remaining, self._full_inputs)
            inputs = _inputs(self._moments(1, maps))
        gates = self._context.units.expand(self._context.units.gates(removed))
        return Repaired(tuple(removed), gates, self._refitted(remaining, inputs))

    # --- how the model is measured ------------------------------------------------------------

    def _measure_sizes(self, number: int) -> None:
        """Measure the model at the first sizes, so many but one at least, where not yet done."""
        number = min(max(number, 1), len(self._sizes))
        for step in range(len(self._measured), number):
            maps: dict[int, OutputMap] = {}
            if step > 0:
                paths = self._measured[-1].paths
                counts = cheapest_counts(paths, self._sizes[step])
                remaining = [path.order[gone:] for path, gone in zip(paths, counts, strict=True)]
                maps = self._refitted(remaining, self._last_inputs)
                self._last_inputs = []  # as large as what is measured next
            moments = self._moments(step, maps)
            self._last_inputs = _inputs(moments)
            self._full_inputs = self._full_inputs or self._last_inputs
            layers = zip(self._layers, moments, strict=True)
            self._measured.append(
                MeasuredSize(
                    paths=[eliminate(layer, layer_moments) for layer, layer_moments in layers],
                    inputs=[A.float() for A in self._last_inputs],
                )
            )

    def _moments(self, step: int, maps: Mapping[int, OutputMap]) -> list[Moments]:
        """Measure what passes through the model with other maps.

        Every step draws other random directions.
        """
        batches = self._context.calibration.batches(labels=False)
        with replaced_outputs(self._model, maps):
            return measure_moments(self._layers, batches, seed=self._context.seed + 1 + step)

    # --- what follows from the measured sizes -------------------------------------------------

    def _remove_as_measured(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go, by the largest measured size below that number."""
        self._measure_sizes(1)
        sizes_below = [i for i in range(len(self._measured)) if self._sizes[i] < count]
        paths = self._measured[max(sizes_below, default=0)].paths
        counts = cheapest_counts(paths, count)
        removed: list[int] = []
        for layer, path, gone in zip(self._layers, paths, counts, strict=True):
            removed += [layer.units[head] for head in path.order[:gone]]
        return tuple(sorted(removed))

    def _interpolated_inputs(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units gone, interpolated between two sizes."""
        self._measure_sizes(bisect_left(self._sizes, count) + 1)
        sizes = self._sizes[: len(self._measured)]
        above = min(bisect_left(sizes, count), len(sizes) - 1)
        below = max(above - 1, 0)
        share = min((count - sizes[below]) / max(sizes[above] - sizes[below], 1), 1.0)
        layers = zip(self._measured[below].inputs, self._measured[above].inputs, strict=True)
        return [torch.lerp(lower.double(), upper.double(), share) for lower, upper in layers]

    def _refitted(
        self, remaining: Sequence[Collection[int]], inputs: Sequence[Tensor]
    ) -> dict[int, OutputMap]:
        """Refit every map that loses heads, by the row of its site.

        ``remaining`` are the heads of each layer that stay, ``inputs`` A of each layer.
        """
        maps = {}
        for layer, A, heads in zip(self._layers, inputs, remaining, strict=True):
            if len(heads) < layer.site.n_heads:
                maps[layer.site.row] = refitted(layer, A, heads)
        return maps


def _layers(context: Context) -> list[Layer]:
    """Return every output map of the model once, with the units of its heads."""
    first_site: dict[nn.Module, AttentionSite] = {}
    for site in context.calibration.loaded.sites:
        if site.n_heads:
            first_site.setdefault(site.module, site)
    layers = []
    for site in first_site.values():
        units = tuple(context.units.unit((site.row, head)) for head in range(site.n_heads))
        out = output_map(site)
        W = exact(torch.cat([out.W, out.b[None]])).cpu()
        layers.append(Layer(site, units, W))
    return layers


def _inputs(moments: Sequence[Moments]) -> list[Tensor]:
    """Return A of every layer."""
    return [layer_moments.A for layer_moments in moments]
