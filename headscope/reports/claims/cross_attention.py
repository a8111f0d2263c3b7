"""Claim 4: cross-attention depends on many heads more than self-attention does.

``headscope prune`` removes the heads of each stack of an encoder-decoder model (``encoder``,
``decoder``, ``cross``) alone, and measures the metric as they go. An :class:`Area` is the area
under such a curve, an :class:`AreaGap` the difference of two stacks' areas. The claim is decided by
the areas of the first method that chooses heads, rather than draws them at random.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from headscope.core.rounding import ROUNDING
from headscope.pruning.result import Area, AreaGap, PruneResult
from headscope.reports.claims.intervals import (
    FAILS,
    HOLDS,
    NOT_MEASURED,
    OPEN,
    or_dash,
    shown,
)
from headscope.reports.claims.rule import NOT_YET, Claim, ClaimPart, Evidence, Rule
from headscope.reports.claims.survivors import NO_TASK, needs_its_heads
from headscope.reports.result import Insight, InsightPart

#: What decides the claim; ``rule`` says it in words.
PARTS = {
    "encoder": ClaimPart(
        name="the curve of cross-attention lies below the encoder's",
        rule="the area under the pruning curve of cross-attention lies below the encoder's",
    ),
    "decoder": ClaimPart(
        name="the curve of cross-attention lies below the decoder's",
        rule="it lies below the decoder's",
    ),
}


def judge(rule: Rule, evidence: Evidence) -> Insight:
    """Decide by the area under the curve of cross-attention, against those of both other stacks."""
    if evidence.stacks and "cross" not in evidence.stacks:
        why = "The model has no cross-attention: it is no encoder-decoder."
        return rule.insight("not applicable", why)
    pruned = evidence.prune
    areas = _areas_of_first_method(pruned)
    if pruned is None or areas.keys() != {"encoder", "decoder", "cross"}:
        why = (
            "Needs the pruning curves of all three stacks: give the task seq2seq with pairs of "
            "source and target as its data."
        )
        return rule.insight(NOT_YET, why)
    cross = areas["cross"]
    gaps: dict[str, AreaGap] = {}  # from cross-attention to each other stack, by this one's name
    for gap in pruned.gaps:
        if (gap.stack, gap.method, gap.repair) == ("cross", cross.method, cross.repair):
            gaps[gap.other] = gap
    repaired = "" if cross.repair == "none" else f" with repair {cross.repair}"
    measured = (
        f"Area under the curve of {pruned.metric} with heads removed by {cross.method}{repaired}, "
        f"between the first and the last head ({pruned.data.examples:,} examples of "
        f"{pruned.data.name}): {_listed(areas.values())}; the whole model has "
        f"{or_dash(pruned.baseline.value.value, '.1f')}."
    )
    random = {area.stack: area for area in pruned.areas if area.method == "random"}
    control = f"Random heads: {_listed(random.values())}. " if random else ""
    control += (
        "The two ends of the curves, where a stack has all its heads and none, do not count: "
        "without cross-attention a decoder knows nothing of the source."
    )
    return rule.concluded(
        parts=(
            _stack_part(rule, pruned, areas, "encoder", gaps.get("encoder")),
            _stack_part(rule, pruned, areas, "decoder", gaps.get("decoder")),
        ),
        measured=measured,
        control=control,
        values={
            "metric": pruned.metric,
            "baseline": pruned.baseline.value.value,
            "method": cross.method,
            "repair": cross.repair,
            "areas": {stack: asdict(area.inner) for stack, area in areas.items()},
            "random_areas": {stack: asdict(area.inner) for stack, area in random.items()},
            "gaps": [asdict(gap) for gap in gaps.values()],
        },
    )


def _areas_of_first_method(pruned: PruneResult | None) -> dict[str, Area]:
    """Return the areas by stack of the first method that chooses heads, with its first repair."""
    if pruned is None:
        return {}
    not_random = [area for area in pruned.areas if area.method != "random"]
    areas: dict[str, Area] = {}
    for area in not_random:
        if (area.method, area.repair) == (not_random[0].method, not_random[0].repair):
            areas[area.stack] = area
    return areas


def _stack_part(
    rule: Rule,
    pruned: PruneResult,
    areas: dict[str, Area],
    stack: str,
    gap: AreaGap | None,
) -> InsightPart:
    """Decide whether the area of cross-attention lies below another stack's, by the paired gap.

    ``stack`` is ``encoder`` or ``decoder``, and the key of the part; the gap is the area of
    cross-attention minus that of this stack.
    """
    if not needs_its_heads(pruned):
        return rule.decided(stack, NOT_MEASURED, NO_TASK)
    if gap is None or gap.inner.interval is None:
        why = "no point between the first and the last head removed in all stacks"
        return rule.decided(stack, NOT_MEASURED, why)
    # The gap of a metric that is better when larger: of a loss, with its sign reversed.
    low, high = sorted(pruned.sign * limit for limit in gap.inner.interval)
    largest = max(abs(areas[name].inner.value or 0.0) for name in ("cross", stack))
    rounding = ROUNDING * largest
    outcome = OPEN
    if high < -rounding:
        outcome = HOLDS
    elif low > rounding:
        outcome = FAILS
    return rule.decided(stack, outcome, f"gap {shown(gap.inner, '+.1f')}")


def _listed(areas: Iterable[Area]) -> str:
    """List areas between the first and the last head removed, by stack."""
    return ", ".join(f"{area.stack} {shown(area.inner, '.1f', 'unknown')}" for area in areas)


CLAIM = Claim(
    number=4,
    text="Cross-attention depends on many heads more than self-attention does.",
    paper="Michel et al. 2019, Are sixteen heads really better than one?",
    parts=PARTS,
    closing="The area is the metric, averaged over the shares of a stack's heads between the first "
    "and the last one removed, and the interval of the gap is paired. Does not hold if it lies "
    "above both by these intervals. Not measured of a model that does the task no better than "
    "without any head.",
    judge=judge,
)
