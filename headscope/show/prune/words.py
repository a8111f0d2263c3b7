"""The sentences and numbers of ``prune``."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headscope.results import (
    Curve,
    EvenPrice,
    ExportedModel,
    KeptModel,
    MaxDrop,
    Point,
    PruneResult,
    SavedModel,
)
from headscope.results.metric_words import METRIC_NAMES as METRIC_NAMES
from headscope.results.metric_words import number as number
from headscope.results.metric_words import span as span
from headscope.results.prune import Area, AreaGap

#: What the stacks are called.
STACK_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
    "all": "heads of all stacks compete; then each stack alone",
}


def stack_line(result: PruneResult) -> str | None:
    """Say where heads were removed; None for a model that has an encoder only."""
    removed = (p.heads_removed for c in result.curves for p in c.points if p.heads_removed)
    if result.stack == "encoder" and len(next(removed, ((),))[0]) < 3:
        return None
    text = STACK_NAMES[result.stack]
    return text if result.stacks or result.stack != "all" else "heads of all stacks"


def pooling_line(result: PruneResult) -> str | None:
    """Say how texts were embedded, where a task is about embeddings; None for the usual mean."""
    model = result.provenance.get("model", {})
    how, origin = model.get("pooling"), model.get("pooling_from")
    usual = origin != "option" and how in (None, "mean", "mean, normalize")
    if usual or result.task not in ("fidelity", "similarity"):
        return None
    whose = "as asked for" if origin == "option" else f"as the model's {origin} says"
    return f"{how}, {whose}"


def stacks_sentence(result: PruneResult) -> str | None:
    """Say which stack's curve is lowest, and whether it is apart from the others."""
    areas = leading_areas(result)
    if not areas:
        return None
    first, metric = areas[0], result.metric
    lowest = min(areas, key=lambda area: result.sign * area.compared[0])
    gaps = [gap for gap in gaps_of(result, first.method, first.repair) if gap.other == lowest.stack]
    each = " and ".join(_against(result, gap) for gap in gaps)
    return (
        f"Stack by stack ({version_name(first.method, first.repair)}), {STACK_NAMES[lowest.stack]} "
        f"is the costliest to prune: mean {metric} {number(lowest.compared[0], metric)}; {each}."
    )


def _against(result: PruneResult, gap: AreaGap) -> str:
    """``the encoder's self-attention +13.27 (+12.60 to +13.95)``."""
    difference, ci = gap.compared
    change = number(difference, result.metric, signed=True)
    interval = span(ci, result.metric, signed=True)
    doubt = "" if is_apart(gap) else ", not apart"
    return f"{STACK_NAMES[gap.stack]} {change} ({interval}{doubt})"


def leading_areas(result: PruneResult) -> list[Area]:
    """Return every stack's area under the first curve that chooses heads."""
    first = next(iter(chosen_curves(result)), None)
    names = (first.method, first.repair) if first is not None else ("random", "none")
    return [area for area in result.areas if (area.method, area.repair) == names]


def gaps_of(result: PruneResult, method: str, repair: str) -> list[AreaGap]:
    """Return the gaps between the areas of one curve, both ways round."""
    return [gap for gap in result.gaps if (gap.method, gap.repair) == (method, repair)]


def is_apart(gap: AreaGap) -> bool:
    """Whether the interval of a gap leaves zero out."""
    _, (low, high) = gap.compared
    return low > 0 or high < 0


def verdict(result: PruneResult) -> str:
    """Say how many heads can go: by the curve that allows most without a significant loss."""
    if result.max_drop is not None:
        return most_sentence(result, result.max_drop)
    kept = _kept_curve(result)
    if result.curves and result.curves[0].method == "manual":
        point = (kept or result.curves[0]).points[0]
        return _one(result, f"these {len(point.heads_removed)} of {result.n_heads} heads", point)
    if result.task == "fidelity":
        return _nearness(result)
    if kept is not None:  # the model that the user holds in hand
        point = kept.points[-1]
        without = f"{len(point.heads_removed)} of {result.n_heads} heads, by {kept.name}"
        return _one(result, without, point)
    allowed = [
        ((len(point.heads_removed), result.sign * point.value), curve, point)
        for curve in result.curves
        for point in curve.points
        if point.p_value is not None and not _is_worse(result, point)
    ]
    best = max(allowed, key=lambda item: item[0], default=None)
    if best is None or best[0][0] == 0:
        return (
            "Every number of removed heads that was tried makes the model significantly worse "
            "(95% paired bootstrap)."
        )
    (count, _), curve, point = best
    return (
        f"{count} of {result.n_heads} heads ({point.fraction:.0%}) can go without a significant "
        f"loss: {_by(curve)}, {number(result.baseline.value, result.metric)} -> "
        f"{number(point.value, result.metric)} (95% paired bootstrap)."
    )


def loss(
    result: PruneResult, difference: float, ci: Iterable[float] | None
) -> tuple[float, float, float]:
    """Turn a change of the metric into a loss and both ends of its interval, lower end first.

    The ends of an interval that is unknown are infinite.
    """
    low, high = sorted(0.0 - result.sign * end for end in ci or (-math.inf, math.inf))  # no -0.0
    return 0.0 - result.sign * difference, low, high


def most_sentence(result: PruneResult, found: MaxDrop) -> str:
    """Say how many heads can go for the loss that was allowed, and what one more costs."""
    name, metric = version_name(found.method, found.repair), result.metric
    lost, *interval = loss(result, found.confirmed.difference, found.confirmed.ci)
    text = (
        f"{found.count} of {result.n_heads} heads ({found.count / result.n_heads:.0%}) can go for "
        f"a loss of at most {found.wanted:g}: without them ({name}) the loss of {metric} is "
        f"{number(lost, metric)} ({100 * found.confirmed.level:.4g}% interval "
        f"{span(interval, metric)}) on the {found.confirmed.examples:,} examples that the number "
        "was not chosen on."
    )
    return f"{text} {_one_more(result, found)}"


def _one_more(result: PruneResult, found: MaxDrop) -> str:
    more, metric = found.one_more, result.metric
    if more is None:
        return "One more would be all of them."
    lost, *interval = loss(result, more.difference, more.ci)
    step, *ends = loss(result, more.step, more.step_ci)
    count = more.heads - found.count
    return (
        f"With {'one head' if count == 1 else f'{count} heads'} more it is {number(lost, metric)} "
        f"({span(interval, metric)}) on all examples, {number(step, metric, signed=True)} "
        f"({span(ends, metric, signed=True)}) beyond this model's."
    )


def search_notes(result: PruneResult, found: MaxDrop) -> list[str]:
    """Say how sure the number is, and what else a reader should know of the search."""
    notes = [
        "Of searches like this one at most 1 in 20 names a number that costs more (as far as "
        "intervals hold). A larger number may be allowed too: values need not fall with "
        "every head."
    ]
    if found.refused is not None:
        lost, *interval = loss(result, found.refused.difference, found.refused.ci)
        notes.append(
            f"{found.refused.heads} heads were chosen, and the other half did not confirm them "
            f"(loss {number(lost, result.metric)}, up to {number(interval[1], result.metric)}). Of "
            f"{found.planned} smaller numbers that were planned for it, {found.count} is the first "
            f"that holds, each at {100 * found.confirmed.level:.4g}%."
        )
    if found.shared:
        notes.append(f"{found.shared:,} sentences stand in both halves: too many hang together.")
    return notes


def even_sentence(result: PruneResult) -> str | None:
    """Say what even layers cost at the last number of heads that was tried; None without any."""
    if not result.even:
        return None
    price: EvenPrice = result.even[-1]
    gained = -loss(result, price.difference, price.ci)[0]
    sign = result.sign if gained > 0 else -result.sign
    ends = price.ci and sorted(0.0 + sign * end for end in price.ci)
    name, metric = version_name(price.method, price.repair), result.metric
    return (
        f"Even layers ({price.per_layer} heads from each, {name}) "
        f"{'gain' if gained > 0 else 'cost'} {number(abs(gained), metric)} "
        f"({span(ends, metric)}) of {metric}, beside {price.heads} "
        "heads from any layer."
    )


def _nearness(result: PruneResult) -> str:
    """Compare the best curve with random heads where about half is removed.

    Any change takes the cosine to the full model below 1, so its significance says nothing.
    """
    chosen = chosen_curves(result)
    best = max(chosen or result.curves, key=lambda curve: middle(curve).value)
    found = _kept_curve(result) or best
    point = middle(found)
    random = next((middle(c) for c in result.curves if c.method == "random" and chosen), None)
    beside = "" if random is None else f"; random heads: {number(random.value, result.metric)}"
    return (
        f"With {len(point.heads_removed)} of {result.n_heads} heads removed by {_by(found)} the "
        f"pooled states keep a cosine of {number(point.value, result.metric)} to the "
        f"full model's{beside}."
    )


def _by(curve: Curve) -> str:
    return curve.method + (f" and repair {curve.repair}" if curve.repair != "none" else "")


def middle(curve: Curve) -> Point:
    """Return the point nearest to half of the heads removed."""
    return min(curve.points, key=lambda point: abs(point.fraction - 0.5))


def chosen_curves(result: PruneResult) -> list[Curve]:
    """Return the curves of methods that choose heads, not of random heads."""
    return [curve for curve in result.curves if curve.method != "random"]


def _is_worse(result: PruneResult, point: Point) -> bool:
    """Whether the whole interval of the change lies on the bad side of zero."""
    if point.difference_ci is None or not point.heads_removed:
        return False
    return all(result.sign * end < 0 for end in point.difference_ci)


def _one(result: PruneResult, without: str, point: Point) -> str:
    """Say what one pruned model is worth."""
    metric = result.metric
    return (
        f"Without {without}: {number(result.baseline.value, metric)} -> "
        f"{number(point.value, metric)} (change {number(point.difference, metric, signed=True)}, "
        f"{'95% interval ' if point.difference_ci else ''}"
        f"{span(point.difference_ci, metric, signed=True)})."
    )


def _kept_curve(result: PruneResult) -> Curve | None:
    kept = result.kept
    return None if kept is None else result.curve(kept.method, kept.repair)


def kept_sentence(result: PruneResult, kept: KeptModel) -> str:
    """Name the model that is saved and timed, and say why it is this one."""
    count = round(kept.fraction * result.n_heads)
    name = version_name(kept.method, kept.repair)
    text = f"Kept    {name}: {count} of {result.n_heads} heads removed"
    if not kept.candidates:
        return f"{text}."
    digits = 4 if result.metric in ("cosine", "loss") else 2
    values = ", ".join(
        f"{version_name(c.method, c.repair)} {c.value:.{digits}f}" for c in kept.candidates
    )
    return f"{text}; the best of {len(kept.candidates)} on the calibration data ({values})."


#: What opens a folder, by what its result says; by its form in results of earlier versions.
_OPENS = {
    "import headscope": "headscope.load (or transformers after import headscope)",
    "trust_remote_code": "AutoModel.from_pretrained(..., trust_remote_code=True)",
    "transformers": "AutoModel.from_pretrained",
    "compact": "headscope.load",
    "dense": "AutoModel.from_pretrained",
}


def saved_sentence(saved: SavedModel, metric: str) -> str:
    """Say what was written where, and what it is worth when it is opened again."""
    form = "heads removed for real" if saved.form == "compact" else "zeros where heads were"
    text = f"Saved to {saved.folder}: {form}; {_OPENS.get(saved.opens or saved.form)} opens it."
    if saved.measured is None:
        return text
    return (
        f"{text} Loaded again and measured: {metric} {number(saved.measured, metric)}, on the "
        f"curve {number(saved.value, metric)}."
    )


def exported_sentence(exported: ExportedModel, metric: str) -> str:
    """Say what graph was written, how near it is to the model, and what it is worth."""
    where = f"{exported.folder}/{exported.file} ({exported.size / 1e6:.1f} MB, {exported.weights})"
    found = f"in onnxruntime {metric} {number(exported.measured, metric)}"
    if exported.difference is None or exported.difference_ci is None:
        return (
            f"Exported to {where}: {found}, in torch {number(exported.value, metric)}; largest "
            f"difference of any output {exported.max_difference:.1e} on {exported.texts} texts."
        )
    change = number(exported.difference, metric, signed=True)
    interval = span(exported.difference_ci, metric, signed=True)
    return f"Exported to {where}: {found}, {change} against float32 (95% interval {interval})."


def version_name(method: str, repair: str) -> str:
    """Name a method with its repair: ``fisher-joint + scale``."""
    return method if repair == "none" else f"{method} + {repair}"


def short_name(method: str, repair: str) -> str:
    """Name a curve shortly enough for a column: ``imp.-token +scale``."""
    added = f" +{repair}" if repair != "none" else ""
    return f"{method.replace('importance', 'imp.')}{added}"
