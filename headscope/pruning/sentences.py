"""The sentences about a result of ``prune``: the answer, stacks, queries, speed.

The answer speaks of one point of one curve, :func:`leading_point`. The terminal, the page and model
cards share these sentences.
"""

from __future__ import annotations

from collections.abc import Iterable

from headscope.core.safe_text import visible
from headscope.pruning.options import DEFAULT
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
    amount,
    change_words,
    number,
    span,
    with_interval,
)
from headscope.show.cells import plural
from headscope.show.estimates import ranged
from headscope.show.metric_names import SHORT_NAMES

STACK_NAMES = {
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "cross": "cross-attention",
}
_MOST_QUERIES = 8  # Queries named in a sentence; all of them are in the JSON.


# --- what the sentences speak of ------------------------------------------------------------------


def leading_point(result: PruneResult) -> tuple[Curve, Point] | None:
    """Return the curve and the point that the answer speaks of, chosen without their values.

    The model that is kept, or that ``max_drop`` confirmed; else the point nearest to half of the
    heads, of the method that was named first. Of several repairs it is that of a run which names
    none, or the one that was named first. None where nothing was removed anywhere.
    """
    curves = chosen_curves(result.curves) or list(result.curves)
    usual = [curve for curve in curves if curve.repair == DEFAULT]
    if usual and usual[0].method == curves[0].method:
        curves = [usual[0], *curves]
    if result.kept is not None:
        curves = [result.curve(result.kept.method, result.kept.repair)]
    for curve in curves:
        points = [point for point in curve.points if point.heads_removed]
        if points:
            return curve, min(points, key=lambda point: abs(point.fraction - 0.5))
    return None


def chosen_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Return the curves of heads that were chosen, without that of random heads."""
    return [curve for curve in curves if curve.method != "random"]


def random_beside(result: PruneResult, point: Point) -> Point | None:
    """Return the point where as many random heads were removed; None if there is none."""
    for curve in result.curves:
        if curve.method == "random":
            for random_point in curve.points:
                if random_point.fraction == point.fraction:
                    return random_point
    return None


def leading_areas(result: PruneResult) -> list[Area]:
    """Return the areas of all stacks for the method and repair of the first chosen curve.

    Those of random heads where nothing else was measured.
    """
    method = "random"
    repair = "none"
    if chosen := chosen_curves(result.curves):
        method = chosen[0].method
        repair = chosen[0].repair
    return [area for area in result.areas if (area.method, area.repair) == (method, repair)]


# --- the answer -----------------------------------------------------------------------------------


def verdict(result: PruneResult) -> str:
    """Say what is left of the metric at the leading point, and what may be lost.

    What may be lost is the bad end of the paired interval.
    """
    leading = leading_point(result)
    if leading is None:
        return "Nothing was removed."
    curve, point = leading
    if result.max_drop is not None:
        return _search_verdict(result, result.max_drop, curve, point)
    if result.task == "fidelity" and curve.method != "manual":
        return _fidelity_verdict(result, curve, point)
    heads = f"{len(point.heads_removed)} of {result.n_heads}"
    values = _before_and_after(result, point)
    change = change_words(result.metric, point.difference)
    if curve.method == "random":
        draws = f"mean of {len(point.draws)} draws {span(point.value, result.metric)}"
        return f"With {heads} heads removed at random: {values}, {draws}."
    if curve.method == "manual":
        repair = "" if curve.repair == "none" else f" (repair {curve.repair})"
        random = _random_words(result, point)
        these = "this one" if len(point.heads_removed) == 1 else f"these {len(point.heads_removed)}"
        return f"Without {these} of {result.n_heads} heads{repair}: {values}; {change}{random}."
    return (
        f"With {heads} heads removed ({_by(curve)}): {values}; {change}"
        f"{_random_words(result, point)}."
    )


def _random_words(result: PruneResult, point: Point) -> str:
    """Say what the metric is with as many random heads removed, or that it was not measured."""
    random = random_beside(result, point)
    if random is None:
        return "; random heads were not measured"
    value = f"{number(random.value.value, result.metric)} {span(random.value, result.metric)}"
    return f"; as many random heads, drawn {len(random.draws)} times: {value}"


def short_verdict(result: PruneResult) -> str:
    """Say the same shortly: which heads went, the metric with its interval, and random heads.

    ``36 of 72 heads removed by surgeon: cosine 0.9431 [0.9400, 0.9460]; random heads 0.7512``.
    Empty where nothing was removed.
    """
    leading = leading_point(result)
    if leading is None:
        return ""
    curve, point = leading
    metric = result.metric
    name = SHORT_NAMES.get(metric, metric).removeprefix("the ")
    chosen = {"random": "at random", "manual": "by name"}.get(curve.method, f"by {_by(curve)}")
    text = (
        f"{len(point.heads_removed)} of {result.n_heads} heads removed {chosen}: "
        f"{name} {with_interval(point.value, metric)}"
    )
    if result.task != "fidelity":
        text += f"; all heads {number(result.baseline.value.value, metric)}"
    random = random_beside(result, point)
    if random is not None and curve.method != "random":
        text += f"; random heads {number(random.value.value, metric)}"
    return text


def _fidelity_verdict(result: PruneResult, curve: Curve, point: Point) -> str:
    """Say how near the embeddings stay; the full model's cosine to itself is 1 by definition.

    Of a causal language model also how far its predictions of next tokens go.
    """
    metric = result.metric
    control = "" if curve.method == "random" else _random_words(result, point)
    return (
        f"With {len(point.heads_removed)} of {result.n_heads} heads removed ({_by(curve)}) "
        f"embeddings stay at a cosine of {with_interval(point.value, metric)} to the full model's"
        f"{control}.{_next_tokens(result, point)}"
    )


def _next_tokens(result: PruneResult, point: Point) -> str:
    """Say how far a causal language model's predictions go from the whole one's; else nothing."""
    divergence = (point.metrics or {}).get("kl")
    if divergence is None or not writes_next_tokens(result):
        return ""
    return f" Its next tokens differ by a KL divergence of {number(divergence, 'kl')} nats."


def writes_next_tokens(result: PruneResult) -> bool:
    """Whether the model is a causal language model, whose outputs were compared too."""
    return result.stack == "decoder" and "kl" in result.baseline.metrics


def _search_verdict(result: PruneResult, search: MaxDrop, curve: Curve, point: Point) -> str:
    """Say which number of heads was confirmed to cost no more than allowed, and how."""
    return (
        f"{search.count} of {result.n_heads} heads ({search.count / result.n_heads:.0%}) are "
        f"confirmed to cost at most {amount(search.wanted, result.metric)}: "
        f"{_before_and_after(result, point)} without them ({curve.name}); "
        f"{change_words(result.metric, point.difference)}. {scheme_words(result, search)}"
    )


def scheme_words(result: PruneResult, search: MaxDrop) -> str:
    """Say what was settled before the tests, and on how many examples each number was tested.

    Two sentences, for the headline and for cards.
    """
    examples = f"all {result.data.examples:,} examples"
    if search.left_out:
        examples = (
            f"the {result.measured_examples:,} of {result.data.examples:,} examples that share no "
            "sentence with what heads were chosen on"
        )
    n = len(search.sequence)
    order = f"the order of {n} numbers of heads" if n > 1 else "the number of heads"
    refused = ", ".join(_refusal(test, result.metric) for test in search.refusals)
    until = f"up to the first refusal: {refused}" if refused else "and none was refused"
    return (
        f"Which heads go, the repair and {order} were settled beforehand, without these examples. "
        f"The numbers were tested one after the other, each on {examples}, {until}."
    )


def _refusal(test: TestedCount, metric: str) -> str:
    """Write a number of heads that was refused, with the upper end of what it costs."""
    if test.most_lost is None:
        return f"{test.heads} heads (what is lost at most is not known)"
    lost = f"up to {amount(test.most_lost, metric)}"
    if test.most_lost < 0:
        lost = f"a gain of {amount(-test.most_lost, metric)} or more"
    return f"{test.heads} heads ({lost}, 95%)"


def _before_and_after(result: PruneResult, point: Point) -> str:
    """Write the metric with all heads and at a point: ``Spearman 82.03 -> 83.10``.

    Beside the loss of a causal language model stands its perplexity.
    """
    metric = result.metric
    full = number(result.baseline.value.value, metric)
    value = number(point.value.value, metric)
    values = f"{SHORT_NAMES.get(metric, metric)} {full} -> {value}"
    before = result.baseline.metrics.get("perplexity")
    after = (point.metrics or {}).get("perplexity")
    if metric == "nll" and before is not None and after is not None:
        values += f" (perplexity {before:.2f} -> {after:.2f})"
    return values


def _by(curve: Curve) -> str:
    """Name a curve in a sentence: ``surgeon``, or ``fisher, repair scale``."""
    if curve.repair in ("none", curve.method):
        return curve.name
    return f"{curve.method}, repair {curve.repair}"


# --- stacks, queries, speed -----------------------------------------------------------------------


def stacks_sentence(result: PruneResult) -> str:
    """Say which stack is the costliest to prune, and how far the others are from it.

    Empty where stacks were not pruned apart.
    """
    areas = leading_areas(result)
    metric = result.metric
    if not areas:
        return ""
    method = areas[0].method
    repair = areas[0].repair
    costliest = min(areas, key=lambda area: result.sign * (area.inner.value or 0.0))
    gaps = []
    for gap in result.gaps:
        if (gap.method, gap.repair, gap.other) == (method, repair, costliest.stack):
            change = with_interval(gap.inner, metric, signed=True)
            doubt = "" if gap.is_apart else " (not clearly different)"
            gaps.append(f"{STACK_NAMES[gap.stack]} {change}{doubt}")
    return (
        f"Stack by stack ({way(method, repair)}), {STACK_NAMES[costliest.stack]} is the costliest "
        f"to prune: mean {metric} {number(costliest.inner.value, metric)}; compared with that, "
        f"{' and '.join(gaps)}."
    )


def changed_sentence(result: PruneResult) -> str:
    """Name the queries whose first ten documents changed, at the leading point."""
    leading = leading_point(result)
    if leading is None:
        return ""
    _, point = leading
    names = point.changed
    if names is None:
        return ""
    listed = ""
    if names:
        listed = ": " + ", ".join(visible(name) for name in names[:_MOST_QUERIES])
    if len(names) > _MOST_QUERIES:
        listed += f" and {len(names) - _MOST_QUERIES:,} more"
    return (
        f"With {len(point.heads_removed)} of {result.n_heads} heads removed {len(names):,} of "
        f"{result.measured_examples:,} queries find other documents among their first "
        f"ten{listed}."
    )


def speed_sentence(speed: SpeedResult) -> str:
    """Say how many times as fast the saved model is, and how much smaller."""
    share_removed = 1 - speed.parameters_pruned / speed.parameters_full
    return (
        f"It is {ranged(speed.speed, 2)} times as fast as the whole model (torch, batches "
        f"of {speed.batch_size} texts, {speed.threads} {plural(speed.threads, 'thread')}, "
        f"{speed.device}), with {share_removed:.1%} fewer parameters."
    )
