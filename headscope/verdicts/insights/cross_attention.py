"""Claim 4: cross-attention depends on many heads more than self-attention does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headscope.measures.rounding import ROUNDING
from headscope.results.insights import InsightPart
from headscope.results.prune import Area, AreaGap, PruneResult
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, OPEN, UNKNOWN
from headscope.verdicts.insights.last_layers import NO_TASK, needs_its_heads
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]

#: The stacks that cross-attention is compared with.
_OTHERS = ("encoder", "decoder")

_RULE = (
    "Holds if the area under the pruning curve of cross-attention between the first and the last "
    "head removed (the metric, averaged over the shares of a stack's heads in between) lies below "
    "the encoder's and below the decoder's, by the paired 95% interval of the gap; does not hold "
    "if it lies above both so. Not measured of a model that does the task no better than without "
    "any head."
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
    gaps = {
        gap.other: gap
        for gap in pruned.gaps
        if (gap.stack, gap.method, gap.repair) == ("cross", cross.method, cross.repair)
    }
    parts = tuple(_part(stack, areas, gaps.get(stack), pruned.sign) for stack in _OTHERS)
    if not needs_its_heads(pruned):
        parts = tuple(InsightPart(part.name, UNKNOWN, NO_TASK) for part in parts)
    random = {a.stack: a for a in pruned.areas if a.method == "random"}
    return Finding.concluded(
        parts,
        f"Area under the curve of {pruned.metric} with heads removed by {_name(cross)}, between "
        f"the first and the last head ({pruned.data.examples:,} examples of {pruned.data.name}): "
        f"{_listed(areas.values())}; the whole model has {pruned.baseline.value:.1f}.",
        " ".join(_controls(areas, random)),
        _RULE,
        {
            "metric": pruned.metric,
            "baseline": pruned.baseline.value,
            "method": cross.method,
            "repair": cross.repair,
            "areas": {stack: _values(area) for stack, area in areas.items()},
            "random_areas": {stack: _values(area) for stack, area in random.items()},
            "gaps": [vars(gap) for gap in gaps.values()],
        },
    )


def _part(stack: str, areas: dict[str, Area], gap: AreaGap | None, sign: int) -> InsightPart:
    """Whether cross-attention's area is the worse one; ``sign`` is -1 for a loss."""
    name = f"the curve of cross-attention lies below the {stack}'s"
    if gap is None or gap.inner is None or gap.inner_ci is None:
        return InsightPart(
            name, UNKNOWN, "no point between the first and the last head removed in all stacks"
        )
    low, high = sorted(sign * end for end in gap.inner_ci)
    equal = ROUNDING * max(abs(areas[s].inner or 0.0) for s in ("cross", stack))
    verdict = HOLDS if high < -equal else FAILS if low > equal else OPEN
    shown = f"gap {gap.inner:+.1f} [{gap.inner_ci[0]:+.1f}, {gap.inner_ci[1]:+.1f}]"
    return InsightPart(name, verdict, shown)


def _controls(areas: dict[str, Area], random: dict[str, Area]) -> Iterator[str]:
    """Say what random heads give, and the areas with the points that do not count."""
    if random:
        yield f"Random heads: {_listed(random.values())}."
    whole = ", ".join(f"{a.stack} {_shown(a.value, a.ci)}" for a in areas.values())
    yield (
        "With the points where a stack has all its heads and none, which do not count (without "
        f"cross-attention a decoder knows nothing of the source): {whole}."
    )


def _areas(pruned: PruneResult | None) -> dict[str, Area]:
    """Return the areas of the first method that is not random, by stack."""
    chosen = [a for a in (pruned.areas if pruned else ()) if a.method != "random"]
    return {a.stack: a for a in chosen if (a.method, a.repair) == _key(chosen[0])}


def _key(area: Area) -> tuple[str, str]:
    return area.method, area.repair


def _name(area: Area) -> str:
    return area.method if area.repair == "none" else f"{area.method} with repair {area.repair}"


def _shown(value: float | None, ci: Sequence[float] | None) -> str:
    if value is None or ci is None:
        return "unknown"
    return f"{value:.1f} [{ci[0]:.1f}, {ci[1]:.1f}]"


def _listed(areas: Iterable[Area]) -> str:
    return ", ".join(f"{area.stack} {_shown(area.inner, area.inner_ci)}" for area in areas)


def _values(area: Area) -> dict[str, object]:
    inner = None if area.inner_ci is None else [*area.inner_ci]
    return {"area": area.value, "ci": [*area.ci], "inner": area.inner, "inner_ci": inner}
