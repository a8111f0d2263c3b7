"""The facts of ``headscope prune``."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.results import Curve
from headscope.results.heads import place_name
from headscope.results.prune import PruneResult
from headscope.results.serialise import to_dict
from headscope.verdicts.diff.facts.fact import Facts, Number


def collect(result: PruneResult, facts: Facts) -> None:
    """Add the metric of every model that was measured, and which heads it lost."""
    metric = result.metric
    whole = Number.within(result.baseline.value, result.baseline.ci, result.sign)
    facts.metric("unpruned model", metric, whole)
    _add_curves(result, facts, result.curves, "")
    for stack in result.stacks:
        _add_curves(result, facts, stack.curves, f"{stack.stack} alone, ")
    for area in result.areas:
        where = f"{area.stack} alone, {area.method}, {area.repair}"
        sign = 0 if area.method == "random" else result.sign
        facts.metric(where, f"mean {metric}", Number.within(area.value, area.ci, sign))
    if (found := result.max_drop) is not None:
        where = f"confirmed to cost at most {found.wanted:g}"
        facts.number(where, "heads removed", Number(found.count, None, 1))
    for price in result.even:
        where = f"{price.method}, {price.repair}, {price.per_layer} heads from every layer"
        even = Number.within(price.difference, price.ci, result.sign)
        facts.number(where, f"{metric} against uneven layers", even)
    for row in result.ablation:
        facts.number(f"without {row.name}", metric, Number.within(row.value, row.ci))
    for kept in result.kept_alone:
        where = f"layer {kept.layer} with one head"
        facts.number(where, metric, Number.within(kept.value, kept.ci))


def _add_curves(result: PruneResult, facts: Facts, curves: Sequence[Curve], before: str) -> None:
    """Add every point of some curves; ``before`` says which heads could be removed."""
    for curve in curves:
        control = curve.method == "random"  # what random heads cost is no merit of the model
        for point in curve.points:
            where = f"{before}{curve.name}, {_percent(point.fraction)} removed"
            value = Number.within(point.value, point.ci, 0 if control else result.sign)
            facts.metric(where, result.metric, value)
            if not control:
                removed = (place_name(place) for place in point.heads_removed)
                facts.label(where, "heads removed", removed)


def settings(result: PruneResult) -> dict[str, object]:
    """Return the task and its data."""
    found: dict[str, object] = {
        "task": result.task,
        "metric": result.metric,
        "stack": result.stack,
        "examples": result.data.examples,
        "evaluation data": result.data.name,
    }
    if result.calibration is not None:
        chosen_on = {k: v for k, v in to_dict(result.calibration).items() if k != "sha256"}
        found["calibration"] = ", ".join(f"{k} {v}" for k, v in chosen_on.items())
    return found


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"
