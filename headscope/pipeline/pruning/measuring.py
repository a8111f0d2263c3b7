"""Pruned models measured on the evaluation data: points, curves, and the random baseline."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headscope.measures.metrics import Outputs
from headscope.models.loading import LoadedModel
from headscope.models.output_maps import replaced_outputs
from headscope.pipeline.pruning.repairing import Repaired
from headscope.pipeline.tasks import Task
from headscope.pruning.units import Units
from headscope.results.prune import Baseline, Draw, Point

__all__ = ["Measurer"]

Place = tuple[int, int]


class Measurer:
    """Measures pruned models against the full one, each set of removed heads only once.

    Parameters
    ----------
    loaded : LoadedModel
    task : Task
        On the evaluation data.
    units : Units
    seed : int
        Of the bootstrap.
    roles : mapping of (layer, head) to the head's roles
        By the heads' places in the loaded model.
    tick : callable, optional
        Called after every measurement.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        units: Units,
        *,
        seed: int,
        roles: Mapping[Place, Sequence[str]],
        tick: Callable[[], None] | None = None,
    ) -> None:
        self._loaded, self._task, self._units, self._seed = loaded, task, units, seed
        self._roles, self._tick = roles, tick
        self._n_heads = sum(site.n_heads for site in loaded.sites)
        self._full: Outputs = task.outputs(loaded)
        self._known: dict[tuple[int, ...], Point] = {}

    def baseline(self) -> Baseline:
        """Describe the unpruned model."""
        found = self._task.interval(self._full, seed=self._seed)
        return Baseline(found.value, (found.low, found.high), self._task.metrics(self._full))

    def point(self, repaired: Repaired) -> Point:
        """Measure one pruned model."""
        plain = self._is_plain(repaired)
        if plain and repaired.removed in self._known:
            return self._known[repaired.removed]
        outputs = self.outputs(repaired)
        found = self._task.interval(outputs, self._full, seed=self._seed)
        heads = self._units.heads(repaired.removed)
        assert found.difference_low is not None
        assert found.difference_high is not None
        point = Point(
            fraction=len(heads) / self._n_heads,
            heads_removed=self.names(heads),
            value=found.value,
            ci=(found.low, found.high),
            difference=found.difference,
            difference_ci=(found.difference_low, found.difference_high),
            p_value=found.p_value,
            metrics=self._task.metrics(outputs),
            roles_left=self._left(set(heads)),
        )
        if plain:
            self._known[repaired.removed] = point
        return point

    def random_point(self, draws: Sequence[tuple[int, Repaired]]) -> Point:
        """Measure random sets of one size: mean, extremes and standard deviation over draws."""
        points = [(seed, self.point(repaired)) for seed, repaired in draws]
        values = [point.value for _, point in points]
        first = points[0][1]
        if len({point.heads_removed for _, point in points}) == 1:  # nothing, or everything
            return first
        return dataclasses.replace(
            first,
            value=statistics.fmean(values),
            ci=(min(values), max(values)),
            difference=None,
            difference_ci=None,
            p_value=None,
            metrics=None,
            roles_left=None,
            draws=tuple(Draw(seed, point.heads_removed, point.value) for seed, point in points),
            spread=statistics.stdev(values),
        )

    def outputs(self, repaired: Repaired) -> dict[str, Any]:
        """Run a pruned model over the evaluation data."""
        if self._tick is not None:
            self._tick()
        if not repaired.removed:
            return dict(self._full)
        gates = repaired.gates.to(self._loaded.device)
        with replaced_outputs(self._loaded, repaired.maps):
            return self._task.outputs(self._loaded, gates)

    def names(self, heads: Sequence[Place]) -> tuple[tuple[int, ...], ...]:
        """Call heads by the numbers they were born with."""
        sites = self._loaded.sites
        return tuple((layer, sites[layer].head_ids[head]) for layer, head in heads)

    def _is_plain(self, repaired: Repaired) -> bool:
        bare = self._units.expand(self._units.gates(repaired.removed))
        return not repaired.maps and bool((repaired.gates == bare).all())

    def _left(self, removed: set[Place]) -> dict[str, int] | None:
        if not self._roles:
            return None
        left = {role: 0 for roles in self._roles.values() for role in roles}
        for head, roles in self._roles.items():
            for role in roles if head not in removed else ():
                left[role] += 1
        return dict(sorted(left.items()))
