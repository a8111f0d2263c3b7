"""Optimal Brain Surgeon on a whole model: an order of removal, and the refit that belongs to it.

The heads of each layer are eliminated by what passed through it
(:mod:`headscope.pruning.elimination`), and layers share the number of heads that go so that the sum
of their costs is least. An eighth of the heads goes at a time; after each step the refitted model,
which keeps its whole shape with zeros for heads that went, is run again, and *all* heads are ranked
anew. It goes only as far as the sets that are asked for: a search that ends early pays for no more.

The repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. A set chosen on the way needs no pass: its second moments are interpolated linearly, in the
number of heads gone, between the two measured sizes around it. Any other set is refitted to what
passes through the whole model, and once more to what passes through the model that this gives. No
labels are used, and no weight outside W_O and b_O changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.errors import UnsupportedModelError
from headscope.core.memory import release_memory
from headscope.core.widest import exact
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pruning.elimination import (
    Elimination,
    Layer,
    Moments,
    MomentSums,
    cheapest_counts,
    eliminate,
    refitted,
)
from headscope.pruning.ranking import Context, Ranking, Repaired

STEPS = 8  # From all heads to none
DIRECTIONS = 2  # Random directions of the output for each batch


def can_refit(loaded: LoadedModel) -> bool:
    """Whether every layer's output map reads its heads and nothing else."""
    for site in loaded.sites:
        if not site.n_heads:
            continue
        out = site.projections.out
        if out.module.weight.dim() != 2 or out.in_features != site.n_heads * site.d_head:
            return False
    return True


class Surgeon(Ranking):
    """Which units are removed for each count, and the maps refitted to the remaining ones.

    The sets of its path come from the moments measured nearest below their size; sets of different
    sizes need not be nested. A unit's score is the share of units in the smallest set that removes
    it, as known so far.
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
        first_site = {site.module: site for site in reversed(self._model.sites) if site.n_heads}
        self._layers = []
        for site in sorted(first_site.values(), key=lambda site: site.row):
            units = tuple(context.units.unit((site.row, head)) for head in range(site.n_heads))
            out = output_map(site)
            W = exact(torch.cat([out.W, out.b[None]])).cpu()
            self._layers.append(Layer(site, units, W))
        n_units = len(context.units)
        sizes = sorted({n_units * i // STEPS for i in range(STEPS)})
        #: Sizes at which moments may be measured: no set is larger than the context's largest.
        self._sizes = sizes[: bisect_left(sizes, context.largest or n_units) + 1]
        self._paths: list[list[Elimination]] = []
        self._full: list[Tensor] = []  # A of the whole model in float64
        #: A of every layer at each size, (n_heads * d_head + 1, same); float32 is enough to keep.
        self._inputs: list[list[Tensor]] = []
        self._last: list[Tensor] = []  # A in float64 at the last of these sizes

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,)."""
        values = torch.zeros(len(self._context.units)).double()
        seen: set[int] = set()
        for count in range(1, len(values) + 1):
            first_removed = set(self._removed(count)) - seen
            seen |= first_removed
            values[sorted(first_removed)] = count / len(values)
        return values

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        self._measure_sizes(bisect_left(self._sizes, count))
        return self._removed(count)

    def refit(self, removed: Sequence[int]) -> Repaired:
        """Refit W_O and b_O of every layer to what all heads put out, on calibration text."""
        remaining = [
            [head for head, unit in enumerate(layer.units) if unit not in set(removed)]
            for layer in self._layers
        ]
        if self._paths and self.remove(len(removed)) == tuple(removed):
            inputs = self._inputs_of(len(removed))
        else:  # by what passes through the whole model, then through the model that this gives
            self._full = self._full or _inputs(self._moments(0, {}))
            inputs = _inputs(self._moments(1, self._refitted(remaining, self._full)))
        gates = self._context.units.expand(self._context.units.gates(removed))
        return Repaired(tuple(removed), gates, self._refitted(remaining, inputs))

    def _measure_sizes(self, number: int) -> None:
        """Measure the model at each of the first sizes, where that was not done before."""
        for i in range(len(self._paths), min(max(number, 1), len(self._sizes))):
            maps: dict[int, OutputMap] = {}
            if i > 0:
                paths = self._paths[-1]
                counts = cheapest_counts(paths, self._sizes[i])
                remaining = [path.order[gone:] for path, gone in zip(paths, counts, strict=True)]
                maps = self._refitted(remaining, self._last)
                self._last = []  # as large as what is measured next
            moments = self._moments(i, maps)
            self._last = _inputs(moments)
            self._full = self._full or self._last
            layers = zip(self._layers, moments, strict=True)
            self._paths.append([eliminate(layer, passed) for layer, passed in layers])
            self._inputs.append([A.float() for A in self._last])

    def _removed(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go, by the moments measured nearest below that size."""
        self._measure_sizes(1)
        measured_below = [i for i in range(len(self._paths)) if self._sizes[i] < count]
        paths = self._paths[max(measured_below, default=0)]
        counts = cheapest_counts(paths, count)
        removed: list[int] = []
        for layer, path, gone in zip(self._layers, paths, counts, strict=True):
            removed += [layer.units[head] for head in path.order[:gone]]
        return tuple(sorted(removed))

    def _inputs_of(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units gone, interpolated between two sizes."""
        self._measure_sizes(bisect_left(self._sizes, count) + 1)
        sizes = self._sizes[: len(self._inputs)]
        above = min(bisect_left(sizes, count), len(sizes) - 1)
        below = max(above - 1, 0)
        share = min((count - sizes[below]) / max(sizes[above] - sizes[below], 1), 1.0)
        layers = zip(self._inputs[below], self._inputs[above], strict=True)
        return [torch.lerp(lower.double(), upper.double(), share) for lower, upper in layers]

    def _refitted(
        self, remaining: Sequence[Collection[int]], inputs: Sequence[Tensor]
    ) -> dict[int, OutputMap]:
        """Refit, by row, every map that loses heads to the second moments of its inputs.

        ``remaining`` are the heads of each layer that stay.
        """
        maps = {}
        for layer, A, heads in zip(self._layers, inputs, remaining, strict=True):
            if len(heads) < layer.site.n_heads:
                maps[layer.site.row] = refitted(layer, A, heads)
        return maps

    def _moments(self, step: int, maps: Mapping[int, OutputMap]) -> list[Moments]:
        """Run the model with other maps over all calibration examples; sum up what passes."""
        modules = [layer.site.projections.out.module for layer in self._layers]
        sums = [
            MomentSums(layer, module) for layer, module in zip(self._layers, modules, strict=True)
        ]
        uses: list[Use] = []

        def note(layer: int) -> Any:
            return lambda _, args, output: uses.append(Use(layer, args[0], output))

        n_examples = 0
        width = 0
        seed = self._context.seed + 1 + step
        release_memory()  # what threads that ran the last model have left behind
        with (
            replaced_outputs(self._model, maps),
            hooked(module.register_forward_hook(note(i)) for i, module in enumerate(modules)),
        ):
            for number, batch in enumerate(self._context.calibration.batches(labels=False)):
                generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**64)
                uses.clear()
                out = batch.embed(batch.gates("example"))
                gradients = _random_gradients(out, uses, generator)
                for use, gradients_of_use in zip(uses, gradients, strict=True):
                    sums[use.layer].add(use.inputs, gradients_of_use)
                n_examples += batch.size
                width = out.shape[-1]
                del out, gradients  # the graph is gone before the next one is made
                uses.clear()
        release_memory()
        scale = width / (DIRECTIONS * max(n_examples, 1))  # A unit direction has E[r r^T] = I / d.
        return [layer_sums.moments(scale) for layer_sums in sums]


class Use(NamedTuple):
    """One run of a layer's output map."""

    layer: int
    inputs: Tensor  # (rows, pos, n_heads * d_head)
    outputs: Tensor  # (rows, pos, d_model)


def _random_gradients(
    out: Tensor, uses: Sequence[Use], generator: torch.Generator
) -> list[list[Tensor]]:
    """Return the gradients of random directions of the model's output, by what each use put out.

    A use that the output does not depend on has none.
    """
    outputs = [use.outputs for use in uses]
    gradients: list[list[Tensor]] = [[] for _ in uses]
    for _ in range(DIRECTIONS):
        drawn = torch.randn(out.shape, generator=generator)
        direction = F.normalize(drawn, dim=-1).to(out)
        by_use = torch.autograd.grad(out, outputs, direction, retain_graph=True, allow_unused=True)
        for gradients_of_use, gradient in zip(gradients, by_use, strict=True):
            if gradient is not None:
                gradients_of_use.append(gradient)
    return gradients


def _inputs(moments: Sequence[Moments]) -> list[Tensor]:
    """Return the second moments of what entered every layer's map."""
    return [of_layer.A for of_layer in moments]


def surgeon_of(context: Context) -> Surgeon:
    """Return the surgeon that a context's methods and repairs share."""
    return context.remember("surgeon", lambda: Surgeon(context))


def surgeon(context: Context) -> Ranking:
    """Rank heads by removing them step by step."""
    ranking = surgeon_of(context)
    ranking.remove(0)  # the repair asks of any set whether it is one of this path
    return ranking
