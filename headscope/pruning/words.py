"""The sentences and numbers of ``prune``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from rich.console import RenderableType
from rich.text import Text

from headscope.pruning.kept_result import ExportedModel, FailedArtefact, KeptModel, SavedModel
from headscope.pruning.metric_words import METRIC_NAMES as METRIC_NAMES
from headscope.pruning.metric_words import SHORT_NAMES, refused_words
from headscope.pruning.metric_words import amount as amount
from headscope.pruning.metric_words import change_words as change_words
from headscope.pruning.metric_words import number as number
from headscope.pruning.metric_words import percent as percent
from headscope.pruning.metric_words import span as span
from headscope.pruning.result import Area, AreaGap, Curve, EvenPrice, MaxDrop, Point, PruneResult
from headscope.show.cells import make_table

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
    """Say what is left of the metric at one point, which was settled before it was measured.

    That is the number that ``max_drop`` confirmed, the model that is kept, the heads that were
    named, or else :func:`leading_point`. What may be lost is the bad end of the paired interval.
    """
    if result.max_drop is not None:
        return drop_sentence(result, result.max_drop)
    leading = leading_point(result)
    if leading is None:
        return "Nothing was removed."
    curve, point = leading
    if result.task == "fidelity" and curve.method != "manual":
        return _nearness(result, curve, point)
    metric = result.metric
    if curve.method == "manual":
        repaired = f" (repair {curve.repair})" if curve.repair != "none" else ""
        text = f"Without these {_of_all(result, point)} heads{repaired}"
    elif curve.method == "random":
        text = f"With {_of_all(result, point)} heads removed at random"
    else:
        text = f"With {_of_all(result, point)} heads removed ({_by(curve)})"
    text += f": {SHORT_NAMES.get(metric, metric)} "
    text += f"{number(result.baseline.value, metric)} -> {number(point.value, metric)}"
    if curve.method == "random":
        return f"{text}, mean of {len(point.draws)} draws ({span(point.ci, metric)})."
    return f"{text}; {change_words(metric, point.difference, point.difference_ci, point.level)}."


def leading_point(result: PruneResult) -> tuple[Curve, Point] | None:
    """Return the curve and the point that are spoken of; their values have no say in the choice.

    The model that is kept; else, of the method and repair that were named first, the point nearest
    to half of the heads. None where nothing was removed anywhere.
    """
    kept = result.kept
    curves = chosen_curves(result) or list(result.curves)
    if kept is not None:
        curves = [result.curve(kept.method, kept.repair)]
    for curve in curves:
        points = [point for point in curve.points if point.heads_removed]
        if points:
            return curve, min(points, key=lambda point: abs(point.fraction - 0.5))
    return None


def _of_all(result: PruneResult, point: Point) -> str:
    return f"{len(point.heads_removed)} of {result.n_heads}"


def loss(
    result: PruneResult, difference: float, ci: Iterable[float] | None
) -> tuple[float, float, float]:
    """Turn a change of the metric into a loss and both ends of its interval, lower end first.

    The ends of an interval that is unknown are infinite.
    """
    low, high = sorted(0.0 - result.sign * end for end in ci or (-math.inf, math.inf))  # no -0.0
    return 0.0 - result.sign * difference, low, high


def drop_sentence(result: PruneResult, found: MaxDrop) -> str:
    """Say what the half that had no say in the choice confirms, and what one more head costs."""
    name, metric = version_name(found.method, found.repair), result.metric
    part = found.confirmed
    return (
        f"{found.count} of {result.n_heads} heads ({found.count / result.n_heads:.0%}) are "
        f"confirmed to cost at most {amount(found.wanted, metric)}: on the {part.examples:,} "
        f"examples that had no say in the choice, {SHORT_NAMES.get(metric, metric)} "
        f"{number(part.baseline, metric)} -> {number(part.value, metric)} without them ({name}); "
        f"{change_words(metric, part.difference, part.ci, part.level)}."
        f"{refused_words(metric, found)} {_one_more(result, found)}"
    )


def _one_more(result: PruneResult, found: MaxDrop) -> str:
    more, metric = found.one_more, result.metric
    if more is None:
        return "One more would be all of them."
    count = more.heads - found.count
    where = "the same" if found.measured_on == "confirming" else "all"
    return (
        f"With {'one head' if count == 1 else f'{count} heads'} more, on {where} examples: "
        f"{number(more.value, metric)}, {change_words(metric, more.difference, more.ci)}."
    )


def search_notes(result: PruneResult, found: MaxDrop) -> list[str]:
    """Say how sure the number is, and what else a reader should know of the search."""
    notes = [
        "Of searches like this one at most 1 in 20 names a number that costs more (as far as the "
        "intervals hold). It is a number that is confirmed, not the largest: a larger one may be "
        "allowed too, since values need not fall with every head."
    ]
    if found.refused is not None:
        notes.append(
            f"{found.refused.heads} heads were chosen, and the other half did not confirm them. Of "
            f"{found.planned} smaller numbers that were planned for it, {found.count} is the first "
            f"that holds, each at {percent(found.confirmed.level)}."
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


def _nearness(result: PruneResult, curve: Curve, point: Point) -> str:
    """Say how near to the full model a pruned one stays, beside as many random heads.

    The full model is at 1 by definition, so what is lost is plain from the value itself.
    """
    metric = result.metric
    controls = [c for c in result.curves if c.method == "random" and c is not curve]
    beside = [p for c in controls for p in c.points if p.fraction == point.fraction]
    random = f"; random heads: {number(beside[0].value, metric)}" if beside else ""
    return (
        f"With {_of_all(result, point)} heads removed ({_by(curve)}) the pooled states keep a "
        f"cosine of {number(point.value, metric)} to the full model's "
        f"({'draws' if point.draws else '95%'}: {span(point.ci, metric)}){random}."
    )


def _by(curve: Curve) -> str:
    return curve.method + (f", repair {curve.repair}" if curve.repair != "none" else "")


def chosen_curves(result: PruneResult) -> list[Curve]:
    """Return the curves of methods that choose heads, not of random heads."""
    return [curve for curve in result.curves if curve.method != "random"]


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
    text += (
        f" Loaded again and measured: {metric} {number(saved.measured, metric)}, on the curve "
        f"{number(saved.value, metric)}"
    )
    if saved.max_difference is None:
        return f"{text}."
    return f"{text}; largest difference of any output {saved.max_difference:.1e}."


def failed_sentence(failed: FailedArtefact) -> str:
    """Say what could not be made, and why."""
    where = "" if failed.folder is None else f" {failed.folder}"
    return f"Not made: {failed.option}{where}. {failed.reason}"


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


Part = tuple[str, Sequence[Curve]]  # A stack and the curves of one run on it.


def stacks_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show each stack pruned alone, one column a stack, and which curves are apart."""
    if not result.stacks:
        return
    parts: list[Part] = [(stack.stack, stack.curves) for stack in result.stacks]
    sizes = ", ".join(f"{stack.stack} {stack.n_heads}" for stack in result.stacks)
    yield Text(f"\nEach stack alone, the others whole (heads: {sizes}): {result.metric} and 95%")
    table = make_table(("removed by", "heads", *(x for stack, _ in parts for x in (stack, "95%"))))
    for (method, repair), share, points in _rows(parts):
        cells = (_value_cells(result, points.get(stack)) for stack, _ in parts)
        name = short_name(method, repair)
        table.add_row(name, f"{share:.0%}", *(cell for pair in cells for cell in pair))
    yield table
    yield from _areas(result)


def _value_cells(result: PruneResult, point: Point | None) -> tuple[str, str]:
    if point is None:
        return "-", "-"
    ends = (number(end, result.metric, short=True) for end in point.ci or ())
    return number(point.value, result.metric, short=True), " ".join(ends) or "-"


def _rows(
    parts: Sequence[Part],
) -> Iterator[tuple[tuple[str, str], float, dict[str, Point]]]:
    """Yield method and repair, the share of heads removed, and each part's point there."""
    names = dict.fromkeys((curve.method, curve.repair) for _, curves in parts for curve in curves)
    for name in names:
        found: dict[float, dict[str, Point]] = {}
        for stack, curves in parts:
            of_name = (curve for curve in curves if (curve.method, curve.repair) == name)
            for point in (point for curve in of_name for point in curve.points):
                if point.heads_removed:
                    found.setdefault(round(point.fraction, 3), {})[stack] = point
        for share, points in sorted(found.items()):
            yield name, share, points


def _areas(result: PruneResult) -> Iterator[RenderableType]:
    """Areas under the curves, and the gaps between each two stacks."""
    if not result.areas:
        return
    stacks = [stack.stack for stack in result.stacks]
    names = dict.fromkeys((area.method, area.repair) for area in result.areas)
    area_of = {(area.stack, area.method, area.repair): area for area in result.areas}
    inner = all(area.inner is not None for area in result.areas)
    over = "from the first to the last head removed" if inner else "over all shares removed"
    yield Text(f"\nArea under each curve: mean {result.metric} {over}")
    table = make_table(("removed by", *(x for stack in stacks for x in (stack, "95%"))))
    for name in names:
        cells: list[str] = []
        for stack in stacks:
            value, ci = area_of[(stack, *name)].compared
            low, high = (number(end, result.metric, short=True) for end in ci)
            cells += number(value, result.metric), f"{low} {high}"
        table.add_row(short_name(*name), *cells)
    yield table
    pairs = list(combinations(stacks, 2))
    table = make_table(("gap of areas", *(f"{a} - {b}" for a, b in pairs)))
    for name in names:
        gaps = {(gap.stack, gap.other): gap for gap in gaps_of(result, *name)}
        table.add_row(short_name(*name), *(_gap(result, gaps[pair]) for pair in pairs))
    yield table
    yield Text(
        "Intervals: paired bootstrap over examples; for random heads Student's t over draws.\n"
        "* apart: the interval of the gap leaves zero out",
        style="dim",
    )


def _gap(result: PruneResult, gap: AreaGap) -> str:
    difference, ci = gap.compared
    value, *ends = (number(x, result.metric, signed=True, short=True) for x in (difference, *ci))
    return f"{value}{'*' if is_apart(gap) else ''} {' '.join(ends)}"


def decoded_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what only decoding tells: exact matches and BLEU, of every stack side by side."""
    names = [name for name in ("exact_match", "bleu", "bleu_characters") if _knows(result, name)]
    if not names:
        return
    parts: list[Part] = [(result.stack, _chosen(result.curves))]
    parts += [(stack.stack, _chosen(stack.curves)) for stack in result.stacks]
    full = " and ".join(
        f"{METRIC_NAMES[name]} {_metric(result.baseline.metrics, name)}" for name in names
    )
    yield Text(f"\nDecoded greedily, full model: {full}")
    table = make_table(("removed by", "heads", *(stack for stack, _ in parts)))
    for (method, repair), share, points in _rows(parts):
        cells = (_metrics(points.get(stack), names) for stack, _ in parts)
        table.add_row(short_name(method, repair), f"{share:.0%}", *cells)
    yield table


def _chosen(curves: Sequence[Curve]) -> list[Curve]:
    """Leave out random heads: their draws are not decoded."""
    return [curve for curve in curves if curve.method != "random"]


def _knows(result: PruneResult, name: str) -> bool:
    return name in result.baseline.metrics


def _metrics(point: Point | None, names: Sequence[str]) -> str:
    """``21.5 / 77.0``."""
    metrics = (point.metrics if point is not None else None) or {}
    return " / ".join(_metric(metrics, name) for name in names) if metrics else "-"


def _metric(metrics: dict[str, float], name: str) -> str:
    return number(metrics.get(name), name, short=True)
