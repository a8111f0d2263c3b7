"""The files of ``prune``: curves, scores and single heads as CSV and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from headscope.results import HeadEffect, HeadScores, PruneResult
from headscope.show.cells import csv_text
from headscope.show.folders import folder_files, names_of
from headscope.show.prune.tables import curves_csv

#: Not every run has scores, roles and tables of single heads.
STALE = names_of("scores", "survivors", "ablation", "kept_alone")


def prune_files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the tables of scores and single heads, and the figures."""
    from headscope.show.prune import figures as draw

    tables, figures = {"curves": curves_csv(result)}, {"curves": draw.curve_figure(result)}
    if result.scores:
        tables["scores"] = _scores_csv(result.scores)
        figures["scores"] = draw.score_map(result, result.scores[0])
    if (survivors := draw.survivor_figure(result)) is not None:
        figures["survivors"] = survivors
    if result.ablation:
        tables["ablation"] = _effects_csv(result.ablation)
        tables["kept_alone"] = _effects_csv(result.kept_alone)
        figures["ablation"] = draw.ablation_map(result)
    return folder_files(tables, figures)


def _scores_csv(every: Sequence[HeadScores]) -> str:
    """One line per head, one column per method."""
    places = [
        (layer, head)
        for layer, row in enumerate(every[0].values)
        for head, value in enumerate(row)
        if value is not None
    ]
    return csv_text(
        ("layer", "head", *(scores.method for scores in every)),
        [
            (layer, head, *(scores.values[layer][head] for scores in every))
            for layer, head in places
        ],
    )


def _effects_csv(rows: Sequence[HeadEffect]) -> str:
    """One line per head removed alone, or left alone in its layer."""
    header: list[str] = []
    for name in (field.name for field in fields(HeadEffect)):
        header += [f"{name}_low", f"{name}_high"] if "ci" in name else [name]
    return csv_text(header, map(_flat, rows))


def _flat(row: HeadEffect) -> list[object]:
    flat: list[object] = []
    for field in fields(row):
        value = getattr(row, field.name)
        flat += value if isinstance(value, tuple) else [value]
    return flat
