"""Writing result folders: every file whole or not at all.

Whoever writes no folder draws no figure, so matplotlib is loaded only when a folder is written.
"""

from __future__ import annotations

from pathlib import Path

from headscope.results import ClassifyResult, PruneResult, RankResult, to_json
from headscope.show.classify.tables import heads_csv, relations_csv
from headscope.show.folders import ready_folder, write_files
from headscope.show.prune.tables import curves_csv, effects_csv, scores_csv
from headscope.show.rank.tables import rank_csv, shared_csv

__all__ = [
    "STATE",
    "drop_state",
    "ready_folder",
    "write_classify",
    "write_files",
    "write_prune",
    "write_rank",
]

#: Where a run saves its sums while it runs.
STATE = ".classify.state.safetensors"
#: Files that not every run of prune writes.
_PRUNE_MAYBE = (
    "scores.csv", "scores.png", "scores.svg", "survivors.png", "survivors.svg", "ablation.csv",
    "kept_alone.csv", "ablation.png", "ablation.svg",
)  # fmt: skip
#: Files that only a run with gold trees writes.
_NEED_TREES = {"relations.csv", "relations.png", "relations.svg"}


def write_classify(result: ClassifyResult, folder: Path) -> None:
    """Write classify.json, heads.csv, relations.csv and the figures, then drop the run's state."""
    from headscope.show.classify.figures import relation_bars, role_map
    from headscope.show.drawing import figure_files

    files: dict[str, bytes] = {"heads.csv": heads_csv(result).encode()}
    figures = {"roles": role_map(result)}
    if result.corpus.trees:
        files["relations.csv"] = relations_csv(result).encode()
        figures["relations"] = relation_bars(result)
    files |= figure_files(figures)
    files["classify.json"] = to_json(result).encode() + b"\n"
    write_files(folder, files, stale=_NEED_TREES)
    drop_state(folder, STATE)


def write_rank(result: RankResult, folder: Path) -> None:
    """Write rank.json, rank.csv, the figures and, if asked for, shared_projections.csv."""
    from headscope.show.drawing import figure_files
    from headscope.show.rank.figures import rank_figures

    files = {"rank.csv": rank_csv(result).encode()}
    if result.shared is not None:
        files["shared_projections.csv"] = shared_csv(result).encode()
    files |= figure_files(rank_figures(result))
    files["rank.json"] = to_json(result).encode() + b"\n"
    write_files(
        folder, files, stale=[f"shared_projections.{kind}" for kind in ("csv", "png", "svg")]
    )


def write_prune(result: PruneResult, folder: Path) -> None:
    """Write prune.json, curves.csv, the tables of scores and single heads, and the figures."""
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
    files |= figure_files(figures)
    files["prune.json"] = to_json(result).encode() + b"\n"
    write_files(folder, files, stale=_PRUNE_MAYBE)


def drop_state(folder: Path, name: str) -> None:
    """Delete the saved state of a run that is complete."""
    for leftover in (name, f".{name}.part"):  # the latter of a run killed while it saved
        (folder / leftover).unlink(missing_ok=True)
