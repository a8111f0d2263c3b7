"""The facts of ``headscope prune``."""

from __future__ import annotations

import dataclasses

from headscope.results import PruneResult, to_dict
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: PruneResult, facts: Facts) -> None:
    """Add the metric of every model that was measured, and which heads it lost."""
    metric = result.metric
    whole = Number.within(result.baseline.value, result.baseline.ci, result.sign)
    facts.metric("unpruned model", metric, whole)
    for curve in result.curves:
        control = curve.method == "random"  # what random heads cost is no merit of the model
        for point in curve.points:
            where = f"{curve.name}, {_percent(point.fraction)} removed"
            value = Number.within(point.value, point.ci, 0 if control else result.sign)
            facts.metric(where, metric, value)
            if not control:
                removed = ("L" + "H".join(map(str, place)) for place in point.heads_removed)
                facts.label(where, "heads removed", removed)
    for row in result.ablation:
        facts.number(f"without {row.name}", metric, Number.within(row.value, row.ci))
    for kept in result.kept_alone:
        where = f"layer {kept.layer} with one head"
        facts.number(where, metric, Number.within(kept.value, kept.ci))


def settings(result: PruneResult) -> dict[str, object]:
    """Return the task and its data."""
    found: dict[str, object] = {
        "task": result.task,
        "metric": result.metric,
        "examples": result.data.examples,
        "evaluation data": result.data.name,
    }
    if result.calibration is not None:
        calibration = to_dict(dataclasses.replace(result.calibration, sha256=""))
        found["calibration"] = ", ".join(map(str, calibration.values()))
    return found


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"
