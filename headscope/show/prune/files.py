"""The files of ``prune``: curves, scores and single heads as CSV and figures."""

from __future__ import annotations

from headscope.results import PruneResult
from headscope.show.prune.tables import curves_csv, effects_csv, scores_csv

__all__ = ["STALE", "prune_files"]

#: Not every run has scores, roles and tables of single heads.
STALE = tuple(
    f"{name}.{kind}"
    for name in ("scores", "survivors", "ablation", "kept_alone")
    for kind in ("csv", "png", "svg")
)


def prune_files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the tables of scores and single heads, and the figures."""
    from headscope.show.drawing import figure_files
    from headscope.show.prune import figures as draw

    files = {"curves.csv": curves_csv(result).encode()}
    figures = {"curves": draw.curve_figure(result)}
    if result.scores:
        files["scores.csv"] = scores_csv(result).encode()
        figures["scores"] = draw.score_map(result, result.scores[0])
    if (survivors := draw.survivor_figure(result)) is not None:
        figures["survivors"] = survivors
    if result.ablation:
        files["ablation.csv"] = effects_csv(result.ablation).encode()
        files["kept_alone.csv"] = effects_csv(result.kept_alone).encode()
        figures["ablation"] = draw.ablation_map(result)
    return files | figure_files(figures)
