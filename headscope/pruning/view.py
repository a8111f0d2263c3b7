"""What ``prune`` puts on the report's page: the curves, and what becomes of each head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain

from headscope.core.safe_text import visible
from headscope.pruning import figures as draw
from headscope.pruning import tables, words
from headscope.pruning.result import HeadEffect, HeadScores, PruneResult
from headscope.pruning.tables import even_csv, looks_csv
from headscope.pruning.words import number
from headscope.show.cells import csv_text, p_text, to_csv
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

__all__ = ["VIEW"]


SCALES = (Scale("importance", "Pruning rank (1 is kept longest)"),)


def section(result: PruneResult) -> Part:
    """What is left without some heads, the curves, and what was exported."""
    sentences = [words.verdict(result), words.stacks_sentence(result), words.even_sentence(result)]
    if result.max_drop is not None:
        sentences += words.search_notes(result, result.max_drop)
    sentences += [words.exported_sentence(found, result.metric) for found in result.exported]
    sentences += [words.failed_sentence(failed) for failed in result.failed]
    sentences += result.warnings
    texts = [visible(text) for text in sentences if text is not None]
    return Part("prune", "Pruning", texts, _chart(result))


def _chart(result: PruneResult) -> Chart:
    """Metric by share of heads removed, one line a method; random heads with their extremes."""
    lines = []
    for i, curve in enumerate(result.curves):
        points = [(p.fraction, p.value) for p in curve.points]
        ends = (p.ci or (p.value, p.value) for p in curve.points)
        band = [(low, high) for low, high in ends]
        lines.append(Line(curve.name, points, i % 8, dashed=curve.method == "random", band=band))
    values = [v for line in lines for pair in line.band for v in pair]
    return chart(
        lines,
        label=f"{result.metric} by share of heads removed, one line for each method; the "
        "numbers are in curves.csv.",
        x_title="heads removed",
        y_title=words.METRIC_NAMES.get(result.metric, result.metric).partition(" (")[0],
        y_limits=(min(values), max(values)),
        percent=True,
    )


def facts(result: PruneResult, places: Sequence[Place]) -> Iterator[Card]:
    """Rank of every known head, when it is removed first, and what the model is without it.

    The page has a place for each head of one stack: the encoder, or the only one that was pruned.
    """
    ranks, first = _ranks(result, places), _first_removed(result)
    here = _stack(result)
    alone = {(row.layer, row.head): row for row in result.ablation if row.stack == here}
    for place in places:
        card = Card(*place, values={"importance": ranks.get(place)})
        if place in ranks:
            by = f"by {result.scores[0].method} (1 is kept longest)"
            card.facts.append(("Pruning rank", f"{ranks[place]} of {len(ranks)} {by}"))
        if place in first:
            fraction, method = first[place]
            text = f"at {fraction:.0%} of heads ({method})" if fraction else "never"
            card.facts.append(("First removed", text))
        if place in alone:
            row, metric = alone[place], result.metric
            change = f"{number(row.difference, metric, signed=True)} {metric}"
            interval = words.span(row.difference_ci, metric, signed=True)
            text = f"{change} ({interval}, adj. p {p_text(row.p_adjusted)})"
            card.facts.append(("Removed alone", text))
        yield card


def _stack(result: PruneResult) -> str:
    return "encoder" if result.stack == "all" else result.stack


def _ranks(result: PruneResult, places: Sequence[Place]) -> dict[Place, int]:
    """Rank heads by the first method's scores; a row counts the heads that its layer still has."""
    scores: dict[Place, float] = {}
    first = result.scores[0] if result.scores else None
    for (stack, layer), row in zip(first.places, first.values, strict=True) if first else ():
        if stack != _stack(result):
            continue
        heads = [place for place in places if place[0] == layer]
        scores |= zip(heads, [value for value in row if value is not None], strict=False)
    order = sorted(scores, key=lambda place: -scores[place])
    return {place: rank for rank, place in enumerate(order, start=1)}


def _first_removed(result: PruneResult) -> dict[Place, tuple[float, str]]:
    """For each head, the smallest fraction at which the first method removes it."""
    first: dict[Place, tuple[float, str]] = {}
    for curve in words.chosen_curves(result)[:1]:
        for point in sorted(curve.points, key=lambda p: p.fraction):
            for *stack, layer, head in point.heads_removed:
                if not stack or stack[0] == _stack(result):
                    first.setdefault((layer, head), (point.fraction, curve.method))
    return first


def key_numbers(result: PruneResult) -> Iterator[KeyNumber]:
    """What a search confirmed, and the point that the headline speaks of against random heads."""
    if (found := result.max_drop) is not None:
        part = found.confirmed
        yield KeyNumber(
            f"heads confirmed to cost at most {words.amount(found.wanted, result.metric)} of "
            f"{result.metric}",
            f"{found.count} of {result.n_heads}",
            words.change_words(result.metric, part.difference, part.ci, part.level),
            Estimate(found.count),
        )
    leading = words.leading_point(result)
    if leading is None or leading[0].method == "random":
        return
    (curve, point), metric = leading, result.metric
    beside = [p for c in result.curves if c.method == "random" for p in c.points]
    random = next((p for p in beside if p.fraction == point.fraction), None)
    near = f" [{words.span(point.ci, metric)}]" if point.ci else ""
    yield KeyNumber(
        f"{metric} with {point.fraction:.0%} of heads removed",
        f"{number(point.value, metric)}{near} by {curve.name}",
        f"whole model {number(result.baseline.value, metric)}"
        + (f", random heads {number(random.value, metric)}" if random else ""),
        Estimate(point.value, *(point.ci or ())),
    )


def prune_files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the other tables that there are, and the figures."""
    csv, figures = {"curves": to_csv(result)}, {"curves": draw.curve_figure(result)}
    if result.scores:
        csv["scores"] = _scores_csv(result.scores)
        figures["scores"] = draw.score_map(result, result.scores[0])
    if result.max_drop is not None:
        csv["max_drop"] = looks_csv(result.max_drop)
    if result.even:
        csv["even"] = even_csv(result)
    if result.areas:
        csv["areas"] = _areas_csv(result)
    if (stacks := draw.stack_figure(result)) is not None:
        figures["stacks"] = stacks
    if (survivors := draw.survivor_figure(result)) is not None:
        figures["survivors"] = survivors
    if result.ablation:
        csv["ablation"] = _effects_csv(result.ablation)
        csv["kept_alone"] = _effects_csv(result.kept_alone)
        figures["ablation"] = draw.ablation_map(result)
    return folder_files(csv, figures)


def _scores_csv(every: Sequence[HeadScores]) -> str:
    """One line per head, one column per method."""
    layers = zip(*(scores.values for scores in every), strict=True)
    return csv_text(
        ("layer", "head", "stack", *(scores.method for scores in every)),
        [
            (layer, head, stack, *values)
            for (stack, layer), rows in zip(every[0].places, layers, strict=True)
            for head, values in enumerate(zip(*rows, strict=True))
            if values[0] is not None
        ],
    )


def _areas_csv(result: PruneResult) -> str:
    """One line per area, then one per gap, which names the other stack."""
    areas = [
        (a.stack, "", a.method, a.repair, a.value, *a.ci, a.inner, *(a.inner_ci or (None, None)))
        for a in result.areas
    ]
    gaps = [
        (
            *(g.stack, g.other, g.method, g.repair, g.difference, *g.ci, g.inner),
            *(g.inner_ci or (None, None)),
        )
        for g in result.gaps
    ]
    header = ("stack", "less", "method", "repair", "area", "low", "high")
    return csv_text((*header, "inner", "inner_low", "inner_high"), [*areas, *gaps])


def _effects_csv(rows: Sequence[HeadEffect]) -> str:
    """One line per head removed alone, or left alone in its layer; an interval has two columns."""
    names = [field.name for field in fields(HeadEffect)]
    header = [[f"{name}_low", f"{name}_high"] if "ci" in name else [name] for name in names]
    lines = (
        [getattr(row, n) or (None, None) if "ci" in n else (getattr(row, n),) for n in names]
        for row in rows
    )
    return csv_text(list(chain(*header)), (list(chain(*line)) for line in lines))


VIEW = View(
    tables.prune_report,
    prune_files,
    stale=names_of(
        *("areas", "stacks", "scores", "survivors", "ablation", "kept_alone", "max_drop", "even")
    ),
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
