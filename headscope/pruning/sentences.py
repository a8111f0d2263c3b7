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
    percent,
    span,
)
from headscope.show.cells import plural
from headscope.stats.estimate import Estimate

STACK_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}
_MOST_QUERIES = 8  # Queries named in a sentence; all of them are in the JSON.


def verdict(result: PruneResult) -> str:
    """Say what is left of the metric at one point, which was settled before it was measured.

    That is the number that ``max_drop`` confirmed, the model that is kept, the heads that were
    named, or else :func:`leading_point`. What may be lost is the bad end of the paired interval.
    """
    metric = result.metric
    name = SHORT_NAMES.get(metric, metric)
    if (search := result.max_drop) is not None:
        part = search.confirmed
        return (
            f"{search.count} of {result.n_heads} heads ({search.count / result.n_heads:.0%}) are "
            f"confirmed to cost at most {amount(search.wanted, metric)}: {name} "
            f"{number(part.baseline, metric)} -> {number(part.value, metric)} without them "
            f"({way(search.method, search.repair)}); "
            f"{change_words(metric, part.difference, part.level)}. "
            f"{scheme_words(metric, search, result.data.examples)}"
        )
    leading = leading_point(result)
    if leading is None:
        return "Nothing was removed."
    curve, point = leading
    heads, value = f"{len(point.heads_removed)} of {result.n_heads}", point.value
    repair = "" if curve.repair == "none" else f"repair {curve.repair}"
    by = f"{curve.method}, {repair}" if curve.repair not in ("none", curve.method) else curve.name
    if result.task == "fidelity" and curve.method != "manual":
        # The full model is at 1 by definition: what is lost is plain from the value itself.
        random = None if curve.method == "random" else random_beside(result, point)
        others = "" if random is None else f"; random heads: {number(random.value.value, metric)}"
        return (
            f"With {heads} heads removed ({by}) embeddings stay at a cosine of "
            f"{number(value.value, metric)} to the full model's "
            f"({'draws' if point.draws else '95%'}: {span(value, metric)}){others}."
        )
    text = f"With {heads} heads removed ({by})"
    if curve.method == "manual":
        text = f"Without these {heads} heads{repair and f' ({repair})'}"
    elif curve.method == "random":
        text = f"With {heads} heads removed at random"
    text += f": {name} {number(result.baseline.value.value, metric)} -> "
    text += number(value.value, metric)
    if curve.method == "random":
        return f"{text}, mean of {len(point.draws)} draws ({span(value, metric)})."
    return f"{text}; {change_words(metric, point.difference, point.level)}."


def scheme_words(metric: str, search: MaxDrop, of: int) -> str:
    """Say what a search settled beforehand, on how many of the ``of`` examples it tested what.

    Two sentences, for the headline and for cards.
    """

    def refusal(test: TestedCount) -> str:
        lost = f"up to {amount(test.most_lost, metric)}"
        if test.most_lost < 0:
            lost = f"a gain of {amount(-test.most_lost, metric)} or more"
        return f"{test.heads} heads ({lost}, {percent(test.level)})"

    refused = ", ".join(map(refusal, search.refusals))
    examples = f"all {of:,} examples"
    if search.left_out:
        examples = (
            f"the {search.confirmed.examples:,} of {of:,} examples that share no sentence with "
            "what heads were chosen on"
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

    The model that is kept; else, of the method and repair that were named first, the point nearest
    to half of the heads. None where nothing was removed anywhere.
    """
    kept = result.kept
    curves = chosen_curves(result.curves) or list(result.curves)
    if kept is not None:
        curves = [result.curve(kept.method, kept.repair)]
    for curve in curves:
        points = [point for point in curve.points if point.heads_removed]
        if points:
            return curve, min(points, key=lambda point: abs(point.fraction - 0.5))
    return None


def stacks_sentence(result: PruneResult) -> str:
    """Say which stack's curve is lowest, and whether it is apart from the others."""
    areas, metric = leading_areas(result), result.metric
    if not areas:
        return ""
    method, repair = areas[0].method, areas[0].repair
    lowest = min(areas, key=lambda area: result.sign * (area.compared.value or 0.0))
    others = []
    for gap in result.gaps:
        if (gap.method, gap.repair, gap.other) == (method, repair, lowest.stack):
            change = number(gap.compared.value, metric, signed=True)
            doubt = "" if gap.is_apart else "; not clearly different"
            ends = span(gap.compared, metric, signed=True)
            others.append(f"{STACK_NAMES[gap.stack]} {change} ({ends}{doubt})")
    return (
        f"Stack by stack ({way(method, repair)}), {STACK_NAMES[lowest.stack]} is the costliest "
        f"to prune: mean {metric} {number(lowest.compared.value, metric)}; compared with that, "
        f"{' and '.join(others)}."
    )


def changed_sentence(result: PruneResult) -> str:
    """Name the queries whose first ten documents changed, at the point that headlines speak of."""
    leading = leading_point(result)
    if leading is None or leading[1].changed is None:
        return ""
    point, names = leading[1], leading[1].changed
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
    return (
        f"It is {number_of_times(speed.speed)} times as fast as the whole model (torch, batches "
        f"of {speed.batch_size} texts, {speed.threads} {plural(speed.threads, 'thread')}, "
        f"{speed.device}), with {less:.1%} fewer parameters."
    )


def number_of_times(speed: Estimate) -> str:
    """Write a ratio with its interval: ``1.42 (1.38 to 1.47)``."""
    ends = speed.interval
    return f"{speed.value:.2f}" + ("" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")


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
