"""Heads ranked, removed and repaired, and what is left measured on the evaluation data."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.analyses.classify.result import HeadResult
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.surgery.copies import remove_heads
from headscope.models.surgery.output_maps import make_permanent, replaced_outputs
from headscope.pruning.methods import rank
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Context, Ranking, Repaired, scale_gates
from headscope.pruning.result import Baseline, Draw, Point
from headscope.pruning.surgeon import refitted_maps
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change
from headscope.tasks.base import Task
from headscope.tasks.units import Head, Units, units_of

Name = tuple[Any, ...]  # A head's original name: layer and head, perhaps the stack.


class Measurer:
    """Measures pruned models against the full one, each set of removed heads only once.

    Heads are removed for real before a model is measured, so a point of a curve is the value of
    the very model that is saved. ``task`` is on the evaluation data, ``roles`` go by the heads'
    positions in the loaded model.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        units: Units,
        seed: int,
        roles: Mapping[Head, HeadResult],
    ) -> None:
        # Every model that is cut remembers where it came from, by a checksum of all weights.
        self._loaded = dataclasses.replace(loaded, origin=origin_of(loaded))
        self._task, self._units, self._seed = task, units, seed
        self._roles = roles
        self._examples: Array | None = None
        self._n_heads = sum(site.n_heads for site in loaded.sites)
        #: The unpruned model's outputs, example by example.
        self.full: Outputs = task.outputs(loaded, all_metrics=True)
        self._drawn = task.resampled(self.full, seed=seed)
        #: By model: what it puts out, all metrics included or not. The models' maps are told apart
        #: by identity, so the models stay here too.
        self._outputs: dict[tuple[Any, ...], tuple[Repaired, Outputs]] = {}
        #: By id(point): the point, and its value in every resample.
        self._measured: dict[int, tuple[Point, Array]] = {}

    def on(self, examples: Array) -> Measurer:
        """Return a measurer of the same models on some of the examples only."""
        part = copy.copy(self)
        part._examples = examples
        part._drawn = self._task.resampled(at(self.full, examples), seed=self._seed)
        part._measured = {}
        return part

    def baseline(self) -> Baseline:
        """Describe the unpruned model."""
        full = at(self.full, self._examples)
        value = self._task.interval(full, seed=self._seed).estimate()
        return Baseline(value, self._task.metrics(full))

    def degenerate(self) -> str | None:
        """Say why the unpruned model's values mean nothing, if they do not."""
        return self._task.degenerate(self.full)

    def point(
        self,
        repaired: Repaired,
        *,
        all_metrics: bool = True,
        run: Callable[[LoadedModel], Outputs] | None = None,
    ) -> Point:
        """Measure one pruned model; without ``all_metrics`` those of written texts are left out.

        ``run`` runs it over the evaluation data, where the caller has a faster way.
        """
        outputs = self.outputs(repaired, all_metrics, run)
        itself = outputs is self.full  # differs by nothing, whatever the examples
        outputs, full = at(outputs, self._examples), at(self.full, self._examples)
        task, seed = self._task, self._seed
        values = task.resampled(outputs, seed=seed)
        change = task.change(full, outputs, seed=seed, drawn=self._drawn, values=values)
        left = Counter({name: 0 for role in self._roles.values() for name in role.roles})
        removed = self._units.heads(repaired.removed)
        for head in self._roles.keys() - set(removed):
            left.update(self._roles[head].roles)
        point = Point(
            fraction=len(removed) / self._n_heads,
            heads_removed=original_names(self._loaded, removed),
            value=task.interval(outputs, seed=seed, values=values).estimate(),
            difference=Estimate(0.0) if itself else change.estimate(),
            p_value=1.0 if itself else change.p_value,
            metrics=task.metrics(outputs),
            roles_left=dict(sorted(left.items())) if self._roles else None,
            changed=task.changed(outputs),
        )
        self._measured[id(point)] = (point, values)
        return point

    def random_point(self, draws: Sequence[tuple[int, Repaired]]) -> Point:
        """Measure random sets of one size: mean, extremes and standard deviation over draws."""
        if len({repaired.removed for _, repaired in draws}) == 1:  # nothing, or everything
            return self.point(draws[0][1])
        measured = []
        for seed, repaired in draws:
            names = original_names(self._loaded, self._units.heads(repaired.removed))
            outputs = at(self.outputs(repaired, False), self._examples)
            # With a single draw no interval is shown.
            measured.append(Draw(seed, names, self._task.value(outputs)))
        values, first = [draw.value for draw in measured], measured[0].heads_removed
        return Point(
            fraction=len(first) / self._n_heads,
            heads_removed=first,
            value=Estimate(statistics.fmean(values), min(values), max(values)),
            draws=tuple(measured),
            spread=statistics.stdev(values),
        )

    def change_of(self, repaired: Repaired, baseline: Repaired | None = None) -> Change:
        """Compare one pruned model with the full one, or with another pruned one."""
        old = self.full if baseline is None else self.outputs(baseline, False)
        full, outputs = (at(each, self._examples) for each in (old, self.outputs(repaired, False)))
        drawn = self._drawn if baseline is None else None
        return self._task.change(full, outputs, seed=self._seed, drawn=drawn)

    def resamples(self, point: Point) -> Array:
        """Return a point's value in every bootstrap resample, or in every draw of random heads."""
        if point.draws:
            return np.array([draw.value for draw in point.draws])
        return self._measured[id(point)][1]

    def outputs(
        self,
        repaired: Repaired,
        all_metrics: bool,
        run: Callable[[LoadedModel], Outputs] | None = None,
    ) -> Outputs:
        """Run a pruned model over all evaluation data, once: its outputs, example by example."""
        if not repaired.removed:
            return self.full
        maps = tuple((layer, id(made)) for layer, made in sorted(repaired.maps.items()))
        model = (repaired.removed, repaired.gates.numpy(force=True).tobytes(), maps)
        wanted = [True] if all_metrics and self._task.writes else [True, False]
        for every in wanted:
            if (every, model) in self._outputs:
                return self._outputs[every, model][1]
        outputs = self._run(repaired, wanted[-1], run)
        self._outputs[wanted[-1], model] = repaired, outputs
        return outputs

    def _run(
        self,
        repaired: Repaired,
        all_metrics: bool,
        run: Callable[[LoadedModel], Outputs] | None,
    ) -> Outputs:
        if len(repaired.removed) == len(self._units):  # no model is left that could be built
            with replaced_outputs(self._loaded, repaired.maps):
                gates = repaired.gates.to(self._loaded.device)
                return self._task.outputs(self._loaded, gates, all_metrics=all_metrics)
        compact = compact_model(self._loaded, self._units, repaired)
        if run is not None:
            return run(compact)
        return self._task.outputs(compact, all_metrics=all_metrics)


@dataclass(frozen=True)
class Pruner:
    """Ranks heads, removes and repairs them, and measures what is left."""

    loaded: LoadedModel  # the full model, with the task head that the task needs
    evaluation: Task
    units: Units
    counts: tuple[int, ...]  # units that the points of a curve remove
    context: Context  # what methods look at
    measure: Measurer  # on the evaluation data
    draws: int  # random sets of heads at each count
    tell: Progress

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        evaluation: Task,
        calibration: Task | None,
        roles: Mapping[Head, HeadResult],
        *,
        shares: Sequence[float],
        draws: int,
        labels: bool,
        seed: int,
        tell: Progress,
    ) -> Pruner:
        """Gather what a run works with, and measure the unpruned model."""
        units = units_of(loaded)
        n = len(units)
        counts = tuple(sorted({int(share * n + 0.5) for share in shares}))
        context = Context.of_task(
            loaded,
            calibration or evaluation,
            roles=roles,
            use_labels=labels,
            largest=max((count for count in counts if 0 < count < n), default=n),
            seed=seed,
        )
        measure = Measurer(loaded, evaluation, units, seed, roles)
        return cls(loaded, evaluation, units, counts, context, measure, draws, tell)

    def rankings(self, methods: Sequence[str], normalise: bool | None) -> dict[str, Ranking]:
        """Rank the units by every method, before anything is measured.

        So a method that cannot be run is refused early.
        """
        rankings = {}
        for i, name in enumerate(methods):

            def tell(_: str, done: int, total: int, i: int = i) -> None:
                share = round(1000 * (i + done / max(total, 1)))
                self.tell("choosing heads", share, 1000 * len(methods))

            tell(name, 0, 1)
            context = dataclasses.replace(self.context, progress=tell)
            rankings[name] = rank(name, context, normalise=normalise)
        return rankings

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left."""
        if kind is Repair.none or not 0 < len(removed) < len(self.units):
            return Repaired.bare(self.units, removed)
        if kind is Repair.scale:
            gates = scale_gates(self.context, removed)
            return Repaired(tuple(removed), self.units.expand(gates).float())
        return refitted_maps(self.context, removed)

    def random_point(self, count: int) -> Point:
        """Measure the model without ``count`` units, drawn at random several times."""
        seed, made = self.context.seed, []
        for draw in range(seed, seed + self.draws):
            ranking = rank("random", dataclasses.replace(self.context, seed=draw))
            made.append((draw, Repaired.bare(self.units, ranking.remove(count))))
        return self.measure.random_point(made)


def at(outputs: Outputs, examples: Array | None) -> Outputs:
    """Pick examples from outputs; None for all."""
    if examples is None:
        return outputs
    return {name: values[examples] for name, values in outputs.items()}


def original_names(loaded: LoadedModel, heads: Sequence[Head]) -> tuple[Name, ...]:
    """Return the original names of heads: (layer, head), or (stack, layer, head).

    The stack is named in models that have more than an encoder.
    """
    named = (loaded.whole or loaded).stacks != ("encoder",)
    sites = ((loaded.sites[row], head) for row, head in heads)
    return tuple(
        (*((site.stack,) if named else ()), site.layer, site.head_ids[head]) for site, head in sites
    )


def compact_model(loaded: LoadedModel, units: Units, made: Repaired) -> LoadedModel:
    """Make the pruned, repaired model for real; all but attention is shared with ``loaded``."""
    compact = remove_heads(loaded, original_names(loaded, units.heads(made.removed)), share=True)
    make_permanent(compact, loaded, made.gates, made.maps)
    return compact
