"""The files of ``rank``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import RankResult
from headscope.show.rank.tables import rank_csv, shared_csv

__all__ = ["STALE", "rank_files"]

#: Only a run with shared projections writes these.
STALE = ("shared_projections.csv", "shared_projections.png", "shared_projections.svg")


def rank_files(result: RankResult) -> dict[str, bytes]:
    """Return rank.csv, the figures and, if asked for, shared_projections.csv."""
    from headscope.show.drawing import figure_files
    from headscope.show.rank.figures import rank_figures

    files = {"rank.csv": rank_csv(result).encode()}
    if result.shared is not None:
        files["shared_projections.csv"] = shared_csv(result).encode()
    return files | figure_files(rank_figures(result))
