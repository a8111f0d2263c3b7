"""Claim 2: heads of a few kinds do the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.rounding import ROUNDING
from headscope.pruning.result import Area, AreaGap, Curve, PruneResult
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    Measurement,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart, KeptRoles
from headscope.stats.paired_change import FEWEST

__all__ = [
    "ROLES",
    "judge_cross_attention",
    "NO_TASK",
    "Survivors",
    "needs_its_heads",
    "judge_survivors",
]

ROLES = ("positional", "syntactic", "rare")  # The kinds that the claim names.
_UNKNOWN = "classify was not part of this run"


def judge_labelled_heads(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 2 by the metric with only labelled heads, against as many random heads.

    Of an encoder-decoder model also by where the cross-attention heads lie that a joint pruning of
    all its stacks leaves.
    """
    rule, kept = _rule(thresholds), evidence.kept
    last = judge_survivors(evidence.prune) if "cross" in evidence.stacks else None
    beside = () if last is None else (last.part,)
    values = {} if last is None else last.values
    shown = "" if last is None else f" {last.sentence}"
    if kept is None:
        why = f"classify was not part of this run.{shown}" if shown else _UNKNOWN
        return Finding("not measured yet", rule, why, values=values, parts=beside)
    if kept.value is None:
        found = f"{len(kept.kept) or 'none'} of {kept.n_heads} heads have one of the roles"
        why = f"On {kept.classified_on}, {found} {_named(kept)}: nothing to compare.{shown}"
        return Finding("not applicable", rule, why, values=values, parts=beside)
    return _judged(kept, kept.value, thresholds, rule, last)


def _judged(
    kept: KeptRoles,
    value: float,
    thresholds: InsightThresholds,
    rule: str,
    last: Survivors | None,
) -> Finding:
    sign = 1.0 if kept.higher_is_better else -1.0
    random = sign * np.array(kept.random)
    own, equal = sign * value, ROUNDING * abs(value)
    draws, as_well = len(random), int((random >= own - equal).sum())
    p, p_worse = (
        (1 + int(count)) / (1 + draws) for count in (as_well, (random <= own + equal).sum())
    )
    beats = _told(kept, p, thresholds.random_p)
    worse = _told(kept, p_worse, thresholds.random_p) == HOLDS
    lost = sign * (kept.baseline - value)
    scale = abs(kept.baseline) or 1.0
    ends = sorted(-sign * end / scale for end in kept.difference_ci or ())
    low, high = ends or (None, None)
    loss = Measurement(lost / scale, low, high)
    values: dict[str, object] = {
        "kept": len(kept.kept),
        "heads": kept.n_heads,
        "metric": kept.metric,
        "baseline": kept.baseline,
        "value": value,
        "loss": loss.mean,
        "loss_interval": None if loss.low is None else [loss.low, loss.high],
        "random_mean": float(np.mean(kept.random)),
        "random_as_well": as_well,
        "draws": draws,
        "sets": kept.sets,
        "p": p,
        "worse_than_random": worse,
        **({} if last is None else last.values),
    }
    few = "" if beats != UNKNOWN else f"; only {kept.sets} sets have as many heads per layer"
    parts = (
        InsightPart(
            "labelled heads do better than random ones",
            beats,
            f"{as_well} of {draws} random sets do as well, p {p:.3f}{few}",
        ),
        InsightPart(
            "little is lost without the others",
            _little(kept, loss, thresholds.metric_loss),
            f"{loss.mean:.1%} {loss.interval('.1%')}",
        ),
        *(() if last is None else (last.part,)),
    )
    how = "of all heads alike" if kept.sets is None else "with as many heads in every layer"
    return Finding.concluded(
        parts,
        f"With only the {len(kept.kept)} of {kept.n_heads} heads that are {_named(kept)} on "
        f"{kept.classified_on}, {kept.metric} on {kept.measured_on} is {value:.4g} "
        f"(whole model {kept.baseline:.4g}): {loss.mean:.1%} lost {loss.interval('.1%')}. "
        f"{_plainly(beats, worse, as_well, draws)}{'' if last is None else f' {last.sentence}'}",
        f"{draws} random sets of {len(kept.kept)} heads, {how}: mean {np.mean(kept.random):.4g}, "
        f"{np.min(kept.random):.4g} to {np.max(kept.random):.4g}.",
        rule,
        values,
        refuted=worse and (last is None or last.part.verdict != HOLDS),
    )


def _told(kept: KeptRoles, p: float, limit: float) -> str:
    """Whether labelled heads are told from random ones; unknown where no p could be so small."""
    if kept.sets is not None and 1 / kept.sets > limit:
        return UNKNOWN
    return HOLDS if p <= limit else FAILS


def _rule(t: InsightThresholds) -> str:
    return (
        "Holds if keeping only labelled heads beats random sets with as many heads in every layer "
        f"((1 + sets that do as well) / (1 + sets) at most {t.random_p:g}) and (upper end of the "
        f"95% interval) loses less than {t.metric_loss:.0%} of the metric; of an encoder-decoder "
        "model also, if the cross-attention heads that a joint pruning of all stacks leaves lie "
        "in later decoder layers than as many random ones. Does not hold if none of these, or if "
        "labelled heads do worse than random ones by the same test."
    )


def _little(kept: KeptRoles, loss: Measurement, limit: float) -> str:
    """Whether little is lost: by the interval, or by the loss that all examples agree on.

    Where outputs of all examples changed alike, or not at all beyond rounding, resamples do not
    differ and give no interval; a few examples may agree by chance.
    """
    if loss.low is None and kept.examples >= FEWEST:
        return HOLDS if loss.mean < limit else FAILS
    return loss.below(limit)


def _plainly(beats: str, worse: bool, as_well: int, draws: int) -> str:
    """Say in plain words how labelled heads compare with random ones."""
    if beats == HOLDS:
        return f"Labelled heads do better than random ones: {as_well} of {draws} sets do as well."
    words = "worse than random ones" if worse else "no better than random ones can"
    return f"Labelled heads do {words}: {as_well} of {draws} random sets do as well."


def _named(kept: KeptRoles) -> str:
    *first, last = [{"rare": "rare-word"}.get(role, role) for role in kept.roles]
    return f"{', '.join(first)} or {last}" if first else last


#: Random sets of survivors; they are drawn from numbers of layers, so many cost nothing.
_DRAWS = 9999
_NAME = "cross-attention survives in the last decoder layers"
#: Why nothing is said of a model that :func:`needs_its_heads` turns down: an untrained translator
#: with 0.5% of tokens right had all the areas that claim 4 asks for, a fifth of a point apart.
NO_TASK = "the model does the task no better than without any head"


@dataclass(frozen=True)
class Survivors:
    """What a joint pruning says, as a part of a claim, a sentence and numbers."""

    part: InsightPart
    sentence: str
    values: dict[str, object]


def judge_survivors(pruned: PruneResult | None) -> Survivors:
    """Compare the mean layer of the cross-attention heads that are left with random survivors'.

    Read at the point of the joint curve, by the first method that chooses heads, where the share of
    cross-attention heads left is nearest to a half (of two, the one with more left). What is drawn
    at random is which heads survive: as many, of all cross-attention heads alike. Examples are not
    resampled: heads were chosen once, on the calibration data.
    """
    curve = _joint_curve(pruned)
    if pruned is None or curve is None:
        why = "heads of all stacks were not pruned together over a whole curve"
        return Survivors(InsightPart(_NAME, "not measured yet", why), "", {})
    if not needs_its_heads(pruned):
        return Survivors(InsightPart(_NAME, UNKNOWN, NO_TASK), "", {})
    of_layer = _cross(curve.points[-1].heads_removed)
    n = of_layer.total()
    gone = [_cross(point.heads_removed) for point in curve.points]
    between = [removed for removed in gone if 0 < removed.total() < n]
    if not between or len(of_layer) < 2:
        why = "no point of the joint curve has some cross-attention heads and lacks others"
        if len(of_layer) < 2:
            why = "the decoder has one layer with cross-attention"
        return Survivors(InsightPart(_NAME, UNKNOWN, why), "", {})
    removed = min(between, key=lambda found: (abs(2 * found.total() - n), found.total()))
    left = {layer: of_layer[layer] - removed[layer] for layer in sorted(of_layer)}
    return _compared(curve.method, left, of_layer)


def needs_its_heads(pruned: PruneResult) -> bool:
    """Whether the whole model is better than the one without any head, by the paired interval.

    True where heads of all stacks were not pruned together, so that nobody looked.
    """
    curve = _joint_curve(pruned)
    if curve is None or curve.points[-1].difference_ci is None:
        return True
    return max(pruned.sign * end for end in curve.points[-1].difference_ci) < 0


def _joint_curve(pruned: PruneResult | None) -> Curve | None:
    return None if pruned is None else next(filter(_is_joint, pruned.curves), None)


def _is_joint(curve: Curve) -> bool:
    if curve.method == "random" or curve.points[-1].fraction < 1.0:
        return False
    stacks = {place[0] for place in curve.points[-1].heads_removed if len(place) == 3}
    return {"decoder", "cross"} <= stacks


def _cross(heads: tuple[tuple[object, ...], ...]) -> Counter[int]:
    """Count cross-attention heads by layer."""
    layers = (int(str(place[1])) for place in heads if len(place) == 3 and place[0] == "cross")
    return Counter(layers)


def _compared(method: str, left: dict[int, int], of_layer: Counter[int]) -> Survivors:
    layers = np.repeat(list(left), [of_layer[layer] for layer in left])
    k, own = sum(left.values()), sum(layer * count for layer, count in left.items())
    order = np.random.default_rng(0).random((_DRAWS, len(layers))).argsort(axis=1)
    sums = layers[order[:, :k]].sum(axis=1)  # of layers, so whole numbers

    def p(extreme: int) -> float:
        later = extreme * len(layers) >= k * int(layers.sum())
        as_far = sums >= extreme if later else sums <= extreme
        return float((1 + as_far.sum()) / (1 + _DRAWS))

    low, high = np.quantile(sums, (0.025, 0.975), method="closest_observation") / k
    verdict = OPEN
    if min(p(int(layers[:k].sum())), p(int(layers[-k:].sum()))) > 0.025:
        verdict = UNKNOWN  # too few heads for any choice of them to be told from chance
    elif p(own) <= 0.025:
        verdict = HOLDS if own / k > layers.mean() else FAILS
    shares = ", ".join(f"L{layer} {left[layer]}/{of_layer[layer]}" for layer in left)
    text = (
        f"mean layer {own / k:.2f}, of random survivors {layers.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    return Survivors(
        InsightPart(_NAME, verdict, text),
        f"Where {method} has pruned all stacks together, {k} of {len(layers)} cross-attention "
        f"heads are left: {shares}; {text}.",
        {
            "survivors": {str(layer): count for layer, count in left.items()},
            "survivors_of": {str(layer): of_layer[layer] for layer in left},
            "survivors_mean_layer": own / k,
            "survivors_random": float(layers.mean()),
            "survivors_random_interval": [float(low), float(high)],
            "survivors_p": p(own),
        },
    )


_OTHERS = ("encoder", "decoder")  # The stacks that cross-attention is compared with.

_CROSS_RULE = (
    "Holds if the area under the pruning curve of cross-attention between the first and the last "
    "head removed (the metric, averaged over the shares of a stack's heads in between) lies below "
    "the encoder's and below the decoder's, by the paired 95% interval of the gap; does not hold "
    "if it lies above both so. Not measured of a model that does the task no better than without "
    "any head."
)
_CROSS_NEEDS = (
    "Needs the pruning curves of all three stacks: give the task seq2seq with pairs of source and "
    "target as its data."
)


def judge_cross_attention(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 4 by the areas under the curves of the first method that chooses heads."""
    if evidence.stacks and "cross" not in evidence.stacks:
        why = "The model has no cross-attention: it is no encoder-decoder."
        return Finding("not applicable", _CROSS_RULE, why)
    pruned = evidence.prune
    chosen = [a for a in (pruned.areas if pruned else ()) if a.method != "random"]
    areas = {a.stack: a for a in chosen if (a.method, a.repair) == _area_key(chosen[0])}
    if pruned is None or areas.keys() != {"encoder", "decoder", "cross"}:
        return Finding("not measured yet", _CROSS_RULE, _CROSS_NEEDS)
    cross = areas["cross"]
    gaps = {
        gap.other: gap
        for gap in pruned.gaps
        if (gap.stack, gap.method, gap.repair) == ("cross", cross.method, cross.repair)
    }
    parts = tuple(_area_part(stack, areas, gaps.get(stack), pruned.sign) for stack in _OTHERS)
    if not needs_its_heads(pruned):
        parts = tuple(InsightPart(part.name, UNKNOWN, NO_TASK) for part in parts)
    random = {a.stack: a for a in pruned.areas if a.method == "random"}
    return Finding.concluded(
        parts,
        f"Area under the curve of {pruned.metric} with heads removed by {_area_name(cross)}, "
        f"between the first and the last head ({pruned.data.examples:,} examples of "
        f"{pruned.data.name}): {_area_list(areas.values())}; the whole model has "
        f"{pruned.baseline.value:.1f}.",
        " ".join(_area_controls(areas, random)),
        _CROSS_RULE,
        {
            "metric": pruned.metric,
            "baseline": pruned.baseline.value,
            "method": cross.method,
            "repair": cross.repair,
            "areas": {stack: _area_values(area) for stack, area in areas.items()},
            "random_areas": {stack: _area_values(area) for stack, area in random.items()},
            "gaps": [vars(gap) for gap in gaps.values()],
        },
    )


def _area_part(stack: str, areas: dict[str, Area], gap: AreaGap | None, sign: int) -> InsightPart:
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


def _area_controls(areas: dict[str, Area], random: dict[str, Area]) -> Iterator[str]:
    """Say what random heads give, and the areas with the points that do not count."""
    if random:
        yield f"Random heads: {_area_list(random.values())}."
    whole = ", ".join(f"{a.stack} {_area_text(a.value, a.ci)}" for a in areas.values())
    yield (
        "With the points where a stack has all its heads and none, which do not count (without "
        f"cross-attention a decoder knows nothing of the source): {whole}."
    )


def _area_key(area: Area) -> tuple[str, str]:
    return area.method, area.repair


def _area_name(area: Area) -> str:
    return area.method if area.repair == "none" else f"{area.method} with repair {area.repair}"


def _area_text(value: float | None, ci: Sequence[float] | None) -> str:
    if value is None or ci is None:
        return "unknown"
    return f"{value:.1f} [{ci[0]:.1f}, {ci[1]:.1f}]"


def _area_list(areas: Iterable[Area]) -> str:
    return ", ".join(f"{area.stack} {_area_text(area.inner, area.inner_ci)}" for area in areas)


def _area_values(area: Area) -> dict[str, object]:
    inner = None if area.inner_ci is None else [*area.inner_ci]
    return {"area": area.value, "ci": [*area.ci], "inner": area.inner, "inner_ci": inner}
