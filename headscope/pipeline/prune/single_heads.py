"""The two tables of Michel et al.: each head removed alone, and all heads of a layer but one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from headscope.measures.rounding import tied
from headscope.measures.statistics import adjust
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.findings import Findings
from headscope.pipeline.prune.measuring import Measurer, original_names
from headscope.pipeline.prune.repairing import Repaired
from headscope.pruning.method import Given
from headscope.results.points import Point
from headscope.results.prune import HeadEffect
from headscope.tasks.units import Units

#: False discovery rate.
Q = 0.05


def ablation_table(
    units: Units, measure: Measurer, did: Callable[[], None]
) -> tuple[HeadEffect, ...]:
    """Measure the model without each unit, alone; p-values adjusted over all of them."""
    points = []
    for unit in range(len(units)):
        points.append(measure.point(Repaired.bare(units, [unit]), all_metrics=False))
        did()
    return _effects([point.heads_removed[0] for point in points], points)


def kept_alone_table(
    loaded: LoadedModel,
    given: Given,
    measure: Measurer,
    findings: Findings,
    did: Callable[[], None],
) -> tuple[HeadEffect, ...]:
    """Measure the model with one head left in one layer: the best on the calibration data."""
    units = given.units
    points, places = [], []
    for layer in sorted(set(units.layers.tolist())):
        here = (units.layers == layer).nonzero().flatten().tolist()
        found = {}
        for unit in here:
            gates = units.gates([other for other in here if other != unit])
            found[unit] = findings.number(
                ["kept alone", list(loaded.stacks), unit],
                partial(given.calibration.quality, units.expand(gates)),
            )
            did()
        best = here[int(tied([found[unit] for unit in here]).argmax())]
        alone = Repaired.bare(units, [u for u in here if u != best])
        points.append(measure.point(alone, all_metrics=False))
        places.append(original_names(loaded, units.members[best])[0])
    return _effects(places, points)


def _effects(places: Sequence[tuple[Any, ...]], points: Sequence[Point]) -> tuple[HeadEffect, ...]:
    """Put points into a table; a model that is the full one differs with p = 1."""
    p = np.array([1.0 if point.p_value is None else point.p_value for point in points])
    return tuple(map(_effect, places, points, p.tolist(), adjust(p).tolist()))


def _effect(place: tuple[Any, ...], point: Point, p_value: float, adjusted: float) -> HeadEffect:
    assert point.difference is not None  # only random draws have none
    *stack, layer, head = place
    return HeadEffect(
        layer,
        head,
        stack=stack[0] if stack else "encoder",
        value=point.value,
        ci=point.ci,
        difference=point.difference,
        difference_ci=point.difference_ci,
        p_value=p_value,
        p_adjusted=adjusted,
        significant=adjusted < Q,
    )
