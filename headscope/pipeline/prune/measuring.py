"""Pruned models measured on the evaluation data: points, curves, and the random baseline."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.metrics import Outputs
from headscope.measures.paired_change import Change
from headscope.models.compact import remove_heads
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import make_permanent, replaced_outputs
from headscope.pipeline.prune.findings import Findings, name_of
from headscope.pipeline.prune.repairing import Repaired
from headscope.pruning.units import Units
from headscope.results import HeadResult
from headscope.results.points import Draw, Point
from headscope.results.prune import Baseline
from headscope.tasks.base import Task

#: A head's row and place in the loaded model, and its name: layer and head, perhaps the stack.
Place = tuple[int, int]
Name = tuple[Any, ...]
#: By the heads' places in the loaded model.
ByPlace = Mapping[Place, HeadResult]


class Measurer:
    """Measures pruned models against the full one, each set of removed heads only once.

    Heads are removed for real before a model is measured, so a point of a curve is the value of
    the very model that is saved.

    Parameters
    ----------
    loaded : LoadedModel
        The full model.
    task : Task
        On the evaluation data.
    units : Units
        What can be removed on its own.
    seed : int
        Of the bootstrap.
    roles : mapping of (layer, head) to HeadResult
        By the heads' places in the loaded model; empty where none are known.
    findings : Findings, optional
        What an interrupted run had measured.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        units: Units,
        seed: int,
        roles: Mapping[Place, HeadResult],
        findings: Findings | None = None,
    ) -> None:
        self._findings = findings or Findings()
        self._loaded, self._task, self._units, self._seed = loaded, task, units, seed
        self._roles = roles
        self._places: Array | None = None
        self._n_heads = sum(site.n_heads for site in loaded.sites)
        self._full = self._findings.arrays(["full"], lambda: task.outputs(loaded, all_metrics=True))
        self._drawn = task.resampled(self._full, seed=seed)
        self._points: dict[tuple[tuple[int, ...], bool], Point] = {}
        self._values: dict[tuple[int, ...], float] = {}
        #: By id(point): the point, what its model puts out, and its value in every resample.
        self._measured_points: dict[int, tuple[Point, Outputs, Array]] = {}

    def on(self, places: Array) -> Measurer:
        """Return what measures the same models on some of the examples only.

        Parameters
        ----------
        places : array of int
            Places of these examples among all.
        """
        part = copy.copy(self)
        part._places = places
        part._drawn = self._task.resampled(part.here(self._full), seed=self._seed)
        part._points, part._values, part._measured_points = {}, {}, {}
        return part

    def here(self, outputs: Outputs) -> Outputs:
        """Pick the examples that are measured on from the outputs of all."""
        return at(outputs, self._places)

    def baseline(self) -> Baseline:
        """Describe the unpruned model."""
        full = self.here(self._full)
        found = self._task.interval(full, seed=self._seed)
        return Baseline(found.value, found.ci, self._task.metrics(full))

    def degenerate(self) -> str | None:
        """Say why the unpruned model's values mean nothing, if they do not."""
        return self._task.degenerate(self._full)

    @property
    def full(self) -> Outputs:
        """The unpruned model's outputs, example by example."""
        return self._full

    def point(
        self, repaired: Repaired, *, all_metrics: bool = True, outputs: Outputs | None = None
    ) -> Point:
        """Measure one pruned model.

        ``all_metrics`` as in :meth:`Task.outputs`: without it metrics that cost far more than the
        task's value may be missing. ``outputs`` are what :meth:`outputs` gave, if it was asked.
        """
        if outputs is not None:
            lacking = set(self._task.metrics(self._full)) - set(self._task.metrics(outputs))
            if not (all_metrics and lacking):
                return self._described(repaired, outputs)
        if not self._is_plain(repaired):
            return self._measured(repaired, all_metrics)
        known = self._points.get((repaired.removed, True))
        if known is not None:
            return known
        key = repaired.removed, all_metrics
        if key not in self._points:
            self._points[key] = self._measured(repaired, all_metrics)
        return self._points[key]

    def random_point(self, draws: Sequence[tuple[int, Repaired]], did: Callable[[], None]) -> Point:
        """Measure random sets of one size: mean, extremes and standard deviation over draws."""
        first = draws[0][1]
        if len({repaired.removed for _, repaired in draws}) == 1:  # nothing, or everything
            return self.point(first)
        found = []
        for seed, repaired in draws:
            found.append(Draw(seed, self._names(repaired), self._value(repaired)))
            did()
        values = [draw.value for draw in found]
        return Point(
            fraction=self._fraction(first),
            heads_removed=self._names(first),
            value=statistics.fmean(values),
            ci=(min(values), max(values)),
            draws=tuple(found),
            spread=statistics.stdev(values),
        )

    def _measured(self, repaired: Repaired, all_metrics: bool) -> Point:
        return self._described(repaired, self.outputs(repaired, all_metrics))

    def _described(self, repaired: Repaired, outputs: Outputs) -> Point:
        """Make the point of a model whose outputs on all examples are known."""
        itself = outputs is self._full  # differs by nothing, whatever the examples
        outputs, full = self.here(outputs), self.here(self._full)
        values = self._task.resampled(outputs, seed=self._seed)
        alone = self._task.interval(outputs, seed=self._seed, values=values)
        beside = self._task.change(full, outputs, seed=self._seed, drawn=self._drawn, values=values)
        point = Point(
            fraction=self._fraction(repaired),
            heads_removed=self._names(repaired),
            value=alone.value,
            ci=alone.ci,
            difference=beside.difference,
            difference_ci=None if itself else beside.ci,
            p_value=1.0 if itself else beside.p_value,
            metrics=self._task.metrics(outputs),
            roles_left=self._left(set(self._units.heads(repaired.removed))),
        )
        self._measured_points[id(point)] = (point, outputs, values)
        return point

    def change(self, baseline: Point, point: Point) -> Change:
        """Compare two points that :meth:`point` gave, on the same examples."""
        (_, old, drawn), (_, new, values) = (
            self._measured_points[id(each)] for each in (baseline, point)
        )
        return self._task.change(old, new, seed=self._seed, drawn=drawn, values=values)

    def judged(
        self, point: Point, difference: float, ci: tuple[float, ...] | None, level: float
    ) -> Point:
        """Return a point with the interval that it was judged by, its resamples known as before."""
        judged = dataclasses.replace(point, difference=difference, difference_ci=ci, level=level)
        self._measured_points[id(judged)] = (judged, *self._measured_points[id(point)][1:])
        return judged

    def resamples(self, point: Point) -> Array:
        """Return a point's value in every bootstrap resample, or in every draw of random heads."""
        if point.draws:
            return np.array([draw.value for draw in point.draws])
        return self._measured_points[id(point)][2]

    def _value(self, repaired: Repaired) -> float:
        """Return the metric alone: no interval is shown of a single draw."""
        if repaired.removed not in self._values:
            outputs = self.here(self.outputs(repaired, False))
            self._values[repaired.removed] = self._task.value(outputs)
        return self._values[repaired.removed]

    def outputs(self, repaired: Repaired, all_metrics: bool) -> Outputs:
        """Run a pruned model over all evaluation data: its outputs, example by example."""
        if not repaired.removed:
            return self._full
        what = ["outputs", all_metrics, *name_of(self._loaded, repaired)]
        return self._findings.arrays(what, lambda: self._run(repaired, all_metrics))

    def _run(self, repaired: Repaired, all_metrics: bool) -> Outputs:
        if len(repaired.removed) == len(self._units):  # no model is left that could be built
            with replaced_outputs(self._loaded, repaired.maps):
                gates = repaired.gates.to(self._loaded.device)
                return self._task.outputs(self._loaded, gates, all_metrics=all_metrics)
        compact = compact_model(self._loaded, self._units, repaired)
        return self._task.outputs(compact, all_metrics=all_metrics)

    def _fraction(self, repaired: Repaired) -> float:
        return len(self._units.heads(repaired.removed)) / self._n_heads

    def _names(self, repaired: Repaired) -> tuple[Name, ...]:
        return original_names(self._loaded, self._units.heads(repaired.removed))

    def _is_plain(self, repaired: Repaired) -> bool:
        bare = Repaired.bare(self._units, repaired.removed)
        return not repaired.maps and bool((repaired.gates == bare.gates).all())

    def _left(self, removed: set[Place]) -> dict[str, int] | None:
        if not self._roles:
            return None
        left = Counter({name: 0 for role in self._roles.values() for name in role.roles})
        for head, role in self._roles.items():
            if head not in removed:
                left.update(role.roles)
        return dict(sorted(left.items()))


def at(outputs: Outputs, places: Array | None) -> Outputs:
    """Pick examples from outputs by their places; None for all."""
    return outputs if places is None else {name: values[places] for name, values in outputs.items()}


def original_names(loaded: LoadedModel, heads: Sequence[Place]) -> tuple[Name, ...]:
    """Call heads by what they were born as: (layer, head), or (stack, layer, head).

    The stack is named in models that have more than an encoder.
    """
    named = (loaded.whole or loaded).stacks != ("encoder",)
    sites = ((loaded.sites[row], head) for row, head in heads)
    return tuple(
        (*((site.stack,) if named else ()), site.layer, site.head_ids[head]) for site, head in sites
    )


def compact_model(loaded: LoadedModel, units: Units, made: Repaired) -> LoadedModel:
    """Make the pruned, repaired model for real; it shares what is no attention with ``loaded``."""
    compact = remove_heads(loaded, original_names(loaded, units.heads(made.removed)), share=True)
    make_permanent(compact, loaded, made.gates, made.maps)
    return compact
