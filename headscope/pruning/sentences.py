"""The sentences about a result of ``prune``: the answer, stacks, searches, speed."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.core.safe_text import visible
from headscope.pruning.result import (
    Area,
    Curve,
    MaxDrop,
    Point,
    PruneResult,
    SpeedResult,
    TestedCount,
    way,
)
from headscope.removal.metric_words import (
    SHORT_NAMES,
    amount,
    change_words,
    number,
    span,
)
from headscope.show.cells import plural

STACK_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}
_MOST_QUERIES = 8  # Queries named in a sentence; all of them are in the JSON.


def verdict(result: PruneResult) -> str:
    """Say what is left of the metric at :func:`leading_point`, and what may be lost.

    That is the bad end of the paired interval.
    """
    leading = leading_point(result)
    metric = result.metric
    if leading is None:
        return "Nothing was removed."
    curve, point = leading
    name = SHORT_NAMES.get(metric, metric)
    random = curve.method == "random"
    full, value = (number(each.value.value, metric) for each in (result.baseline, point))
    values = f"{name} {full} -> {value}"
    change = change_words(metric, point.difference)
    if (search := result.max_drop) is not None:
        return (
            f"{search.count} of {result.n_heads} heads ({search.count / result.n_heads:.0%}) are "
            f"confirmed to cost at most {amount(search.wanted, metric)}: {values} without them "
            f"({curve.name}); {change}. {scheme_words(result, search)}"
        )
    heads = f"{len(point.heads_removed)} of {result.n_heads}"
    repair = "" if curve.repair == "none" else f"repair {curve.repair}"
    by = f"{curve.method}, {repair}" if curve.repair not in ("none", curve.method) else curve.name
    if result.task == "fidelity" and curve.method != "manual":
        # The full model is at 1 by definition: what is lost is plain from the value itself.
        beside = None if random else random_beside(result, point)
        others = f"; random heads: {number(beside.value.value, metric)}" if beside else ""
        return (
            f"With {heads} heads removed ({by}) embeddings stay at a cosine of {value} to the full "
            f"model's ({'draws' if point.draws else '95%'}: {span(point.value, metric)}){others}."
        )
    if random:
        ends = f"mean of {len(point.draws)} draws ({span(point.value, metric)})"
        return f"With {heads} heads removed at random: {values}, {ends}."
    if curve.method == "manual":
        return f"Without these {heads} heads{repair and f' ({repair})'}: {values}; {change}."
    return f"With {heads} heads removed ({by}): {values}; {change}."


def scheme_words(result: PruneResult, search: MaxDrop) -> str:
    """Say what a search settled beforehand, and on how many of the examples it tested what.

    Two sentences, for the headline and for cards.
    """

    def refusal(test: TestedCount) -> str:
        if test.most_lost is None:
            return f"{test.heads} heads (what is lost at most is not known)"
        lost = f"up to {amount(test.most_lost, result.metric)}"
        if test.most_lost < 0:
            lost = f"a gain of {amount(-test.most_lost, result.metric)} or more"
        return f"{test.heads} heads ({lost}, 95%)"

    refused = ", ".join(map(refusal, search.refusals))
    examples = f"all {result.data.examples:,} examples"
    if search.left_out:
        examples = (
            f"the {result.measured_examples:,} of {result.data.examples:,} examples that share no "
            "sentence with what heads were chosen on"
        )
    n = len(search.sequence)
    order = f"the order of {n} numbers of heads" if n > 1 else "the number of heads"
    end = f"up to the first refusal: {refused}" if refused else "and none was refused"
    return (
        f"Which heads go, the repair and {order} were settled beforehand, without these examples. "
        f"The numbers were tested one after the other, each on {examples}, {end}."
    )


def leading_point(result: PruneResult) -> tuple[Curve, Point] | None:
    """Return the curve and the point of the headline, chosen without looking at their values.

    The model that is kept, or that ``max_drop`` confirmed; else, of the method and repair that were
    named first, the point nearest to half of the heads. None where nothing was removed anywhere.
    """
    curves = chosen_curves(result.curves) or list(result.curves)
    if (chosen := result.kept) is not None:
        curves = [result.curve(chosen.method, chosen.repair)]
    for curve in curves:
        points = [point for point in curve.points if point.heads_removed]
        if points:
            return curve, min(points, key=lambda point: abs(point.fraction - 0.5))
    return None


def stacks_sentence(result: PruneResult) -> str:
    """Say which stack's curve is lowest, and whether it is apart from the others."""
    areas = leading_areas(result)
    metric = result.metric
    if not areas:
        return ""
    method = areas[0].method
    repair = areas[0].repair
    lowest = min(areas, key=lambda area: result.sign * (area.inner.value or 0.0))
    others = []
    for gap in result.gaps:
        if (gap.method, gap.repair, gap.other) == (method, repair, lowest.stack):
            change = number(gap.inner.value, metric, signed=True)
            doubt = "" if gap.is_apart else "; not clearly different"
            ends = span(gap.inner, metric, signed=True)
            others.append(f"{STACK_NAMES[gap.stack]} {change} ({ends}{doubt})")
    return (
        f"Stack by stack ({way(method, repair)}), {STACK_NAMES[lowest.stack]} is the costliest "
        f"to prune: mean {metric} {number(lowest.inner.value, metric)}; compared with that, "
        f"{' and '.join(others)}."
    )


def changed_sentence(result: PruneResult) -> str:
    """Name the queries whose first ten documents changed, at the point that headlines speak of."""
    leading = leading_point(result)
    if leading is None or leading[1].changed is None:
        return ""
    point = leading[1]
    names = leading[1].changed
    few = ", ".join(visible(name) for name in names[:_MOST_QUERIES])
    more = f" and {len(names) - _MOST_QUERIES:,} more" if len(names) > _MOST_QUERIES else ""
    return (
        f"With {len(point.heads_removed)} of {result.n_heads} heads removed {len(names):,} of "
        f"{result.measured_examples:,} queries find other documents among their first "
        f"ten{': ' if names else ''}{few}{more}."
    )


def speed_sentence(speed: SpeedResult) -> str:
    """Say how many times as fast the saved model is, and how much smaller."""
    less = 1 - speed.parameters_pruned / speed.parameters_full
    ends = speed.speed.interval
    interval = "" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})"
    return (
        f"It is {speed.speed.value:.2f}{interval} times as fast as the whole model (torch, batches "
        f"of {speed.batch_size} texts, {speed.threads} {plural(speed.threads, 'thread')}, "
        f"{speed.device}), with {less:.1%} fewer parameters."
    )


def chosen_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Leave out random heads."""
    return [curve for curve in curves if curve.method != "random"]


def random_beside(result: PruneResult, point: Point) -> Point | None:
    """Return the point of as many random heads."""
    points = (p for c in result.curves if c.method == "random" for p in c.points)
    return next((p for p in points if p.fraction == point.fraction), None)


def leading_areas(result: PruneResult) -> list[Area]:
    """Return every stack's area under the first curve that chooses heads."""
    first = next(iter(chosen_curves(result.curves)), None)
    name = (first.method, first.repair) if first is not None else ("random", "none")
    return [area for area in result.areas if (area.method, area.repair) == name]
