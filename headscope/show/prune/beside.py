"""Terminal tables of the stacks side by side: their curves, the areas under them, decoded texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from rich.console import RenderableType
from rich.text import Text

from headscope.results.points import Curve, Point
from headscope.results.prune import AreaGap, PruneResult
from headscope.show.cells import make_table
from headscope.show.prune import words
from headscope.show.prune.words import number

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
        name = words.short_name(method, repair)
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
        table.add_row(words.short_name(*name), *cells)
    yield table
    pairs = list(combinations(stacks, 2))
    table = make_table(("gap of areas", *(f"{a} - {b}" for a, b in pairs)))
    for name in names:
        gaps = {(gap.stack, gap.other): gap for gap in words.gaps_of(result, *name)}
        table.add_row(words.short_name(*name), *(_gap(result, gaps[pair]) for pair in pairs))
    yield table
    yield Text(
        "Intervals: paired bootstrap over examples; for random heads Student's t over draws.\n"
        "* apart: the interval of the gap leaves zero out",
        style="dim",
    )


def _gap(result: PruneResult, gap: AreaGap) -> str:
    difference, ci = gap.compared
    value, *ends = (number(x, result.metric, signed=True, short=True) for x in (difference, *ci))
    return f"{value}{'*' if words.is_apart(gap) else ''} {' '.join(ends)}"


def decoded_report(result: PruneResult) -> Iterator[RenderableType]:
    """Show what only decoding tells: exact matches and BLEU, of every stack side by side."""
    names = [name for name in ("exact_match", "bleu", "bleu_characters") if _knows(result, name)]
    if not names:
        return
    parts: list[Part] = [(result.stack, _chosen(result.curves))]
    parts += [(stack.stack, _chosen(stack.curves)) for stack in result.stacks]
    full = " and ".join(
        f"{words.METRIC_NAMES[name]} {_metric(result.baseline.metrics, name)}" for name in names
    )
    yield Text(f"\nDecoded greedily, full model: {full}")
    table = make_table(("removed by", "heads", *(stack for stack, _ in parts)))
    for (method, repair), share, points in _rows(parts):
        cells = (_metrics(points.get(stack), names) for stack, _ in parts)
        table.add_row(words.short_name(method, repair), f"{share:.0%}", *cells)
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
