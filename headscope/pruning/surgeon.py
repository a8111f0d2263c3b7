"""Optimal Brain Surgeon on a whole model: an order of removal, and the refit that belongs to it.

What can be removed is a unit: a head, or the heads of several layers that can only go together. The
model is measured in STEPS steps, an eighth of the units removed at each. At a step, what passes
through each layer (:mod:`headscope.pruning.moments`) gives the order in which the layer's heads
should go and what that costs (:mod:`headscope.pruning.elimination`); layers share the number of
removed heads so that the sum of their costs is least. The maps of the heads that stay are then
refitted, the model, in its whole shape with zeros for removed heads, is run again, and *all* heads
are ranked anew. Steps are measured only as far as the sets that are asked for need them.

The repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. For a set that the method itself chose no pass is needed: the second moments are interpolated
linearly, in the number of removed units, between the two steps around it. Any other set is refitted
to what passes through the whole model, and once more to what passes through the model that this
gives. No labels are used, and no weight outside W_O and b_O changes.
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
    """Rank heads by removing them step by step: the method ``surgeon``.

    ``context`` holds the model, its calibration examples and its units.
    """
    ranking = surgeon_of(context)
    # Measure the first step now: by that a later repair knows that the method was used too.
    ranking.remove(0)
    return ranking


def surgeon_of(context: Context) -> Surgeon:
    """Return the one surgeon that the method and the repair of a context share."""
    return context.remember("surgeon", lambda: Surgeon(context))


def can_refit(loaded: LoadedModel) -> bool:
    """Whether every layer's output map reads its heads and nothing else."""
    for site in loaded.sites:
        if not site.n_heads:
            continue
        if not site.has_weights:
            return False
        out = site.projections.out
        if out.module.weight.dim() != 2 or out.in_features != site.n_heads * site.d_head:
            return False
    return True


class MeasuredStep(NamedTuple):
    """What was measured of the model with some number of units removed, layer by layer."""

    paths: list[Elimination]  # In which order heads go, and what that costs
    inputs: list[Tensor]  # A, the second moment of the map's inputs; float32 is enough to keep


class Surgeon(Ranking):
    """Which units are removed for each count, and the maps refitted to the remaining ones.

    Of 16 units, 0, 2, 4, ... 14 are removed at the eight steps. The 5 units that go are those that
    the step with 4 removed would take; sets of different sizes need not be nested. Their refit is
    halfway between the steps with 4 and 6 removed. A unit's score is the share of units in the
    smallest set that removes it, by the steps that were measured.
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
        removed_at_step = sorted({n_units * i // STEPS for i in range(STEPS)})
        n_steps = bisect_left(removed_at_step, context.largest or n_units) + 1
        #: Units removed at each step; none beyond the first that reaches the largest set.
        self._removed_at_step = removed_at_step[:n_steps]
        #: The steps that were measured so far, from the first.
        self._measured: list[MeasuredStep] = []
        # A of every layer in float64, empty until measured: of the whole model, of the last step.
        self._full_inputs: list[Tensor] = []
        self._last_inputs: list[Tensor] = []

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        steps_with_fewer_removed = bisect_left(self._removed_at_step, count)
        self._measure_steps(steps_with_fewer_removed)
        return self._remove_as_measured(count)

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,), from the steps that were measured when they are asked for."""
        values = torch.zeros(len(self._context.units)).double()
        seen: set[int] = set()
        for count in range(1, len(values) + 1):
            first_removed = set(self._remove_as_measured(count)) - seen
            seen |= first_removed
            values[sorted(first_removed)] = count / len(values)
        return values

    def refit(self, removed: Sequence[int]) -> Repaired:
        """Refit W_O and b_O of every layer to what all heads put out: the repair ``surgeon``.

        Returns the pruned model: gates that switch the ``removed`` units off, and the new maps.
        """
        remaining = [
            [head for head, unit in enumerate(layer.units) if unit not in set(removed)]
            for layer in self._layers
        ]
        method_was_used = bool(self._measured)
        if method_was_used and self.remove(len(removed)) == tuple(removed):
            inputs = self._interpolated_inputs(len(removed))
        else:  # by what passes through the whole model, then through the model that this gives
            if not self._full_inputs:
                self._full_inputs = _inputs(self._moments(step=0, maps={}))
            maps = self._refitted(remaining, self._full_inputs)
            inputs = _inputs(self._moments(step=1, maps=maps))
        gates = self._context.units.expand(self._context.units.gates(removed))
        return Repaired(tuple(removed), gates, self._refitted(remaining, inputs))

    # --- how the model is measured ------------------------------------------------------------

    def _measure_steps(self, n_steps: int) -> None:
        """Measure the first ``n_steps`` steps, one at least, those that were not measured yet."""
        n_steps = min(max(n_steps, 1), len(self._removed_at_step))
        for step in range(len(self._measured), n_steps):
            # Refit the model without as many heads, chosen by what the step before measured.
            maps: dict[int, OutputMap] = {}
            if step > 0:
                paths = self._measured[-1].paths
                counts = cheapest_counts(paths, self._removed_at_step[step])
                remaining = [path.order[gone:] for path, gone in zip(paths, counts, strict=True)]
                maps = self._refitted(remaining, self._last_inputs)
                self._last_inputs = []  # frees memory: what is measured next is as large

            # Run it, and rank all heads anew.
            moments = self._moments(step, maps)
            self._last_inputs = _inputs(moments)
            if not self._full_inputs:
                self._full_inputs = self._last_inputs
            paths = []
            for layer, layer_moments in zip(self._layers, moments, strict=True):
                paths.append(eliminate(layer, layer_moments))
            inputs = [A.float() for A in self._last_inputs]
            self._measured.append(MeasuredStep(paths, inputs))

    def _moments(self, step: int, maps: Mapping[int, OutputMap]) -> list[Moments]:
        """Measure what passes through the model with other output maps, by the row of their site.

        Every step draws other random directions.
        """
        batches = self._context.calibration.batches(labels=False)
        with replaced_outputs(self._model, maps):
            return measure_moments(self._layers, batches, seed=self._context.seed + 1 + step)

    # --- what follows from the measured steps -------------------------------------------------

    def _remove_as_measured(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go, by the last measured step with fewer removed."""
        self._measure_steps(1)
        last_step = 0
        for step in range(len(self._measured)):
            if self._removed_at_step[step] < count:
                last_step = step
        paths = self._measured[last_step].paths
        counts = cheapest_counts(paths, count)
        removed: list[int] = []
        for layer, path, gone in zip(self._layers, paths, counts, strict=True):
            removed += [layer.units[head] for head in path.order[:gone]]
        return tuple(sorted(removed))

    def _interpolated_inputs(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units removed, interpolated between two steps."""
        # The two steps: the first with as many removed or more, and the one before it.
        first_with_as_many = bisect_left(self._removed_at_step, count)
        self._measure_steps(first_with_as_many + 1)
        upper_step = min(first_with_as_many, len(self._measured) - 1)
        lower_step = max(upper_step - 1, 0)

        # How far ``count`` lies between them; beyond the last step it is that step itself.
        lower_count = self._removed_at_step[lower_step]
        upper_count = self._removed_at_step[upper_step]
        share = min((count - lower_count) / max(upper_count - lower_count, 1), 1.0)
        lower_inputs = self._measured[lower_step].inputs
        upper_inputs = self._measured[upper_step].inputs
        inputs = []
        for lower_A, upper_A in zip(lower_inputs, upper_inputs, strict=True):
            inputs.append(torch.lerp(lower_A.double(), upper_A.double(), share))
        return inputs

    def _refitted(
        self, remaining: Sequence[Collection[int]], inputs: Sequence[Tensor]
    ) -> dict[int, OutputMap]:
        """Refit every map that loses heads; returned by the row of its site.

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
