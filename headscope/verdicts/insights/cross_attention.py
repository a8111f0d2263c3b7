"""Claim 4: cross-attention depends on many heads more than self-attention does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from headscope.results import InsightPart
from headscope.results.prune import Area, PruneResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]

_RULE = (
    "Holds if the area under the pruning curve of cross-attention (the metric, averaged over all "
    "shares of the stack's heads removed) lies below that of the encoder and below that of the "
    "decoder, 95% intervals apart; does not hold if it lies above both so."
)
_NEEDS = (
    "Needs the pruning curves of all three stacks: give the task seq2seq with pairs of source and "
    "target as its data."
)


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 4 by the areas under the curves of the first method that chooses heads."""
    if evidence.stacks and "cross" not in evidence.stacks:
        why = "The model has no cross-attention: it is no encoder-decoder."
        return Finding("not applicable", _RULE, why)
    pruned = evidence.prune
    areas = _areas(pruned)
    if pruned is None or areas.keys() != {"encoder", "decoder", "cross"}:
        return Finding("not measured yet", _RULE, _NEEDS)
    cross = areas["cross"]
    parts = tuple(
        InsightPart(
            f"the curve of cross-attention lies below the {stack}'s",
            _below(cross, areas[stack], pruned.sign),
            f"{_shown(cross)} against {_shown(areas[stack])}",
        )
        for stack in ("encoder", "decoder")
    )
    random = {a.stack: a for a in pruned.areas if a.method == "random"}
    return Finding.concluded(
        parts,
        f"Area under the curve of {pruned.metric} with heads removed by {_name(cross)} "
        f"({pruned.data.examples:,} examples of {pruned.data.name}): {_listed(areas.values())}; "
        f"the whole model has {pruned.baseline.value:.1f}.",
        " ".join(_controls(areas, random)),
        _RULE,
        {
            "metric": pruned.metric,
            "baseline": pruned.baseline.value,
            "method": cross.method,
            "repair": cross.repair,
            "areas": {stack: _values(area) for stack, area in areas.items()},
            "random_areas": {stack: _values(area) for stack, area in random.items()},
            "gaps": [
                {"stack": g.stack, "other": g.other, "difference": g.difference, "ci": [*g.ci]}
                for g in pruned.gaps
                if (g.stack, g.method, g.repair) == ("cross", cross.method, cross.repair)
            ],
        },
    )


def _controls(areas: dict[str, Area], random: dict[str, Area]) -> Iterator[str]:
    """Say what random heads give, and what is left without the point that has no head at all."""
    if random:
        yield f"Random heads: {_listed(random.values())}."
    if all(area.inner is not None for area in areas.values()):
        inner = (_shown_as(a.stack, a.inner, a.inner_ci) for a in areas.values())
        yield (
            "Without the last point, where the stack has lost every head (without cross-attention "
            f"a decoder knows nothing of the source): {', '.join(inner)}."
        )


def _areas(pruned: PruneResult | None) -> dict[str, Area]:
    """Return the areas of the first method that is not random, by stack."""
    chosen = [a for a in (pruned.areas if pruned else ()) if a.method != "random"]
    return {a.stack: a for a in chosen if (a.method, a.repair) == _key(chosen[0])}


def _key(area: Area) -> tuple[str, str]:
    return area.method, area.repair


def _below(area: Area, other: Area, sign: int) -> str:
    """Whether one area is the worse one, intervals apart; ``sign`` is -1 for a loss."""
    (low, high), (other_low, other_high) = (
        sorted(sign * end for end in each.ci) for each in (area, other)
    )
    return HOLDS if high < other_low else FAILS if low > other_high else OPEN


def _name(area: Area) -> str:
    return area.method if area.repair == "none" else f"{area.method} with repair {area.repair}"


def _shown(area: Area) -> str:
    return f"{area.value:.1f} [{area.ci[0]:.1f}, {area.ci[1]:.1f}]"


def _shown_as(name: str, value: float | None, ci: tuple[float, ...] | None) -> str:
    low, high = ci or (math.nan, math.nan)
    return f"{name} {value:.1f} [{low:.1f}, {high:.1f}]"


def _listed(areas: Iterable[Area]) -> str:
    return ", ".join(f"{area.stack} {_shown(area)}" for area in areas)


def _values(area: Area) -> dict[str, object]:
    inner = None if area.inner_ci is None else [*area.inner_ci]
    return {"area": area.value, "ci": [*area.ci], "inner": area.inner, "inner_ci": inner}
