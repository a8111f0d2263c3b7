"""Claims 2 and 4: which heads do the work, and how much depends on cross-attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headscope.core.rounding import ROUNDING
from headscope.pruning.result import Area, Curve, PruneResult
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    below,
    shown,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate
from headscope.stats.paired_change import FEWEST

ROLES = ("positional", "syntactic", "rare")  # The kinds of heads that claim 2 names


def judge_labelled_heads(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 2 by the metric with only labelled heads, against as many random heads.

    Of an encoder-decoder model also by the layers of the cross-attention heads that a joint pruning
    of all its stacks leaves.
    """
    limit, most = thresholds.random_p, thresholds.metric_loss
    rule = (
        "Holds if the model with only its labelled heads beats random sets with as many heads in "
        f"every layer (p = (1 + sets that do as well) / (1 + sets) at most {limit:g}) and loses "
        f"less than {most:.0%} of the metric (upper end of the 95% interval); of an "
        "encoder-decoder model also, if the cross-attention heads that a joint pruning of all "
        "stacks leaves lie in later decoder layers than as many random ones. Does not hold if none "
        "of these is so, or if labelled heads do worse than random ones by the same test."
    )
    kept = evidence.kept
    survivors = judge_survivors(evidence.prune) if "cross" in evidence.stacks else None
    cross_parts = () if survivors is None else (survivors.part,)
    cross_values = {} if survivors is None else survivors.values
    cross_text = f" {survivors.sentence}" if survivors and survivors.sentence else ""
    if kept is None:
        why = f"classify was not part of this run{'.' if cross_text else ''}{cross_text}"
        return Finding("not measured yet", rule, why, values=cross_values, parts=cross_parts)
    *first, last = [{"rare": "rare-word"}.get(role, role) for role in kept.roles]
    roles = f"{', '.join(first)} or {last}" if first else last
    if kept.value is None:
        why = (
            f"On {kept.classified_on}, {len(kept.kept) or 'none'} of {kept.n_heads} heads have one "
            f"of the roles {roles}: nothing to compare.{cross_text}"
        )
        return Finding("not applicable", rule, why, values=cross_values, parts=cross_parts)

    sign = 1.0 if kept.higher_is_better else -1.0
    own, equal, random = sign * kept.value, ROUNDING * abs(kept.value), sign * np.array(kept.random)
    draws, as_well = len(random), int((random >= own - equal).sum())
    p, p_worse = (1 + as_well) / (1 + draws), (1 + int((random <= own + equal).sum())) / (1 + draws)
    # Of a few sets the labelled heads are one, so that no p could be small enough.
    too_few = kept.sets is not None and 1 / kept.sets > limit
    beats = UNKNOWN if too_few else HOLDS if p <= limit else FAILS
    worse = not too_few and p_worse <= limit

    scale = abs(kept.baseline) or 1.0
    loss = sign * (kept.baseline - kept.value) / scale
    interval = sorted(-sign * end / scale for end in kept.difference_ci or ()) or (None, None)
    lost = Estimate(loss, *interval)
    if lost.interval is None and kept.examples >= FEWEST:
        # All examples changed alike, or not at all beyond rounding: resamples do not differ.
        little = HOLDS if loss < most else FAILS
    else:
        little = below(lost, most)

    does = "worse than" if worse else "no better than" if beats != HOLDS else "better than"
    few = f"; only {kept.sets} sets have as many heads per layer" if too_few else ""
    how = "of all heads alike" if kept.sets is None else "with as many heads in every layer"
    return Finding.concluded(
        (
            InsightPart(
                "labelled heads do better than random ones",
                beats,
                f"{as_well} of {draws} random sets do as well, p {p:.3f}{few}",
            ),
            InsightPart("little is lost without the others", little, shown(lost, ".1%")),
            *cross_parts,
        ),
        f"With only the {len(kept.kept)} of {kept.n_heads} heads that are {roles} on "
        f"{kept.classified_on}, {kept.metric} on {kept.measured_on} is {kept.value:.4g} "
        f"(whole model {kept.baseline:.4g}): {shown(lost, '.1%')} is lost. Labelled heads do "
        f"{does} random ones: {as_well} of {draws} random sets do as well.{cross_text}",
        f"{draws} random sets of {len(kept.kept)} heads, {how}: mean {np.mean(kept.random):.4g}, "
        f"{np.min(kept.random):.4g} to {np.max(kept.random):.4g}.",
        rule,
        {
            "kept": len(kept.kept),
            "heads": kept.n_heads,
            "metric": kept.metric,
            "baseline": kept.baseline,
            "value": kept.value,
            "loss": loss,
            "loss_interval": None if lost.interval is None else [*lost.interval],
            "random_mean": float(np.mean(kept.random)),
            "random_as_well": as_well,
            "draws": draws,
            "sets": kept.sets,
            "p": p,
            "worse_than_random": worse,
            **cross_values,
        },
        refuted=worse and (survivors is None or survivors.part.verdict != HOLDS),
    )


_SURVIVORS = "cross-attention survives in the last decoder layers"
_DRAWS = 9999  # Random sets of survivors: they are drawn from numbers of layers and cost nothing.
#: Why nothing is said of a model that :func:`_needs_its_heads` refuses: an untrained translator
#: with 0.5% of tokens right had all the areas that claim 4 asks for, a fifth of a point apart.
_NO_TASK = "the model does the task no better than without any head"


@dataclass(frozen=True)
class Survivors:
    """What a joint pruning leaves of cross-attention: a part of claim 2, a sentence and numbers."""

    part: InsightPart
    sentence: str = ""
    values: dict[str, object] = field(default_factory=dict)


def judge_survivors(pruned: PruneResult | None) -> Survivors:
    """Compare the mean layer of the cross-attention heads that are left with random survivors'.

    Read at the point of the joint curve, by the first method that chooses heads, where the share of
    cross-attention heads left is nearest to a half (of two, the one with more left). What is drawn
    at random is which heads survive: as many, of all cross-attention heads alike. Examples are not
    resampled: heads were chosen once, on the calibration data.
    """

    def undecided(why: str, verdict: str = UNKNOWN) -> Survivors:
        return Survivors(InsightPart(_SURVIVORS, verdict, why))

    curve = _joint_curve(pruned)
    if pruned is None or curve is None:
        why = "heads of all stacks were not pruned together over a whole curve"
        return undecided(why, "not measured yet")
    if not _needs_its_heads(pruned):
        return undecided(_NO_TASK)
    gone = [
        Counter(
            int(str(place[1]))
            for place in point.heads_removed
            if len(place) == 3 and place[0] == "cross"
        )
        for point in curve.points
    ]
    heads = gone[-1]  # Cross-attention heads by layer: the last point has none left
    n = heads.total()
    if len(heads) < 2:
        return undecided("the decoder has one layer with cross-attention")
    between = [removed for removed in gone if 0 < removed.total() < n]
    if not between:
        return undecided("no point of the joint curve has some cross-attention heads left, not all")
    removed = min(between, key=lambda heads: (abs(2 * heads.total() - n), heads.total()))
    left = {layer: heads[layer] - removed[layer] for layer in sorted(heads)}

    layers = np.repeat(list(left), [heads[layer] for layer in left])
    k, own = sum(left.values()), sum(layer * count for layer, count in left.items())
    order = np.random.default_rng(0).random((_DRAWS, n)).argsort(axis=1)
    sums = layers[order[:, :k]].sum(axis=1)  # of layers, so whole numbers

    def p(total: int) -> float:
        """Share of random sets whose layers add up to as extreme a number, on the same side."""
        later = total * n >= k * int(layers.sum())
        return float((1 + (sums >= total if later else sums <= total).sum()) / (1 + _DRAWS))

    verdict = OPEN
    if min(p(int(layers[:k].sum())), p(int(layers[-k:].sum()))) > 0.025:
        verdict = UNKNOWN  # too few heads for any choice of them to be told from chance
    elif p(own) <= 0.025:
        verdict = HOLDS if own / k > layers.mean() else FAILS
    low, high = np.quantile(sums, (0.025, 0.975), method="closest_observation") / k
    shares = ", ".join(f"L{layer} {left[layer]}/{heads[layer]}" for layer in left)
    text = (
        f"mean layer {own / k:.2f}, of random survivors {layers.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    return Survivors(
        InsightPart(_SURVIVORS, verdict, text),
        f"Where {curve.method} has pruned all stacks together, {k} of {n} cross-attention heads "
        f"are left: {shares}; {text}.",
        {
            "survivors": {str(layer): count for layer, count in left.items()},
            "survivors_of": {str(layer): heads[layer] for layer in left},
            "survivors_mean_layer": own / k,
            "survivors_random": float(layers.mean()),
            "survivors_random_interval": [float(low), float(high)],
            "survivors_p": p(own),
        },
    )


def _joint_curve(pruned: PruneResult | None) -> Curve | None:
    """Return the first curve that removes heads of all stacks to the last, by a chosen order."""
    for curve in pruned.curves if pruned else ():
        last = curve.points[-1]
        stacks = {place[0] for place in last.heads_removed if len(place) == 3}
        if curve.method != "random" and last.fraction >= 1.0 and {"decoder", "cross"} <= stacks:
            return curve
    return None


def _needs_its_heads(pruned: PruneResult) -> bool:
    """Whether the whole model is better than the one without any head, by the paired interval.

    True where heads of all stacks were not pruned together, so that nobody looked.
    """
    curve = _joint_curve(pruned)
    if curve is None or curve.points[-1].difference_ci is None:
        return True
    return max(pruned.sign * end for end in curve.points[-1].difference_ci) < 0


def judge_cross_attention(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 4 by the areas under the curves of the first method that chooses heads."""
    rule = (
        "Holds if the area under the pruning curve of cross-attention between the first and the "
        "last head removed (the metric, averaged over the shares of a stack's heads in between) "
        "lies below the encoder's and below the decoder's, each by the paired 95% interval of the "
        "gap; does not hold if it lies above both by theirs. Not measured of a model that does the "
        "task no better than without any head."
    )
    if evidence.stacks and "cross" not in evidence.stacks:
        why = "The model has no cross-attention: it is no encoder-decoder."
        return Finding("not applicable", rule, why)
    pruned = evidence.prune
    chosen = [area for area in (pruned.areas if pruned else ()) if area.method != "random"]
    areas = {
        area.stack: area
        for area in chosen
        if (area.method, area.repair) == (chosen[0].method, chosen[0].repair)
    }
    if pruned is None or areas.keys() != {"encoder", "decoder", "cross"}:
        why = (
            "Needs the pruning curves of all three stacks: give the task seq2seq with pairs of "
            "source and target as its data."
        )
        return Finding("not measured yet", rule, why)
    cross = areas["cross"]
    gaps = {
        gap.other: gap
        for gap in pruned.gaps
        if (gap.stack, gap.method, gap.repair) == ("cross", cross.method, cross.repair)
    }
    does_the_task = _needs_its_heads(pruned)
    parts = []
    for stack in ("encoder", "decoder"):
        gap = gaps.get(stack)
        if not does_the_task:
            verdict, text = UNKNOWN, _NO_TASK
        elif gap is None or gap.inner is None or gap.inner_ci is None:
            verdict = UNKNOWN
            text = "no point between the first and the last head removed in all stacks"
        else:
            low, high = sorted(pruned.sign * end for end in gap.inner_ci)  # a loss: larger is worse
            equal = ROUNDING * max(abs(areas[name].inner or 0.0) for name in ("cross", stack))
            verdict = HOLDS if high < -equal else FAILS if low > equal else OPEN
            text = f"gap {gap.inner:+.1f} [{gap.inner_ci[0]:+.1f}, {gap.inner_ci[1]:+.1f}]"
        name = f"the curve of cross-attention lies below the {stack}'s"
        parts.append(InsightPart(name, verdict, text))

    random = {area.stack: area for area in pruned.areas if area.method == "random"}
    repair = "" if cross.repair == "none" else f" with repair {cross.repair}"
    whole = ", ".join(
        f"{area.stack} {shown(Estimate(area.value, *area.ci), '.1f')}" for area in areas.values()
    )
    return Finding.concluded(
        parts,
        f"Area under the curve of {pruned.metric} with heads removed by {cross.method}{repair}, "
        f"between the first and the last head ({pruned.data.examples:,} examples of "
        f"{pruned.data.name}): {_inner_areas(areas.values())}; the whole model has "
        f"{pruned.baseline.value:.1f}.",
        (f"Random heads: {_inner_areas(random.values())}. " if random else "")
        + "With the two ends of the curves, where a stack has all its heads and none, which do not "
        "count (without cross-attention a decoder knows nothing of the source): "
        f"{whole}.",
        rule,
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


def _inner_areas(areas: Iterable[Area]) -> str:
    inner = ((area.stack, Estimate(area.inner, *(area.inner_ci or ()))) for area in areas)
    return ", ".join(f"{stack} {shown(area, '.1f', 'unknown')}" for stack, area in inner)


def _area_values(area: Area) -> dict[str, object]:
    inner = None if area.inner_ci is None else [*area.inner_ci]
    return {"area": area.value, "ci": [*area.ci], "inner": area.inner, "inner_ci": inner}
