"""The files of ``prune``: tables as CSV and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import chain

from headscope.results.prune import HeadEffect, HeadScores, PruneResult
from headscope.show.cells import csv_text, to_csv
from headscope.show.folders import folder_files
from headscope.show.prune.max_drop import even_csv, looks_csv


def prune_files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the other tables that there are, and the figures."""
    from headscope.show.prune import figures as draw

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
