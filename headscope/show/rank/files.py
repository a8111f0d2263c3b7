"""The files of ``rank``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import RankResult, SharedProjections
from headscope.show.cells import csv_text, to_csv
from headscope.show.folders import folder_files, names_of

#: Only a run with shared projections writes these.
STALE = names_of("shared_projections")
_SHARED = ("width", "score_error", "control_score_error", "fidelity")
_CUT = ("truncated_rank", "truncated_score_error", "truncated_fidelity")
_SAVED = ("parameters", "parameters_saved", "share_saved")


def rank_files(result: RankResult) -> dict[str, bytes]:
    """Return rank.csv, the figures and, if asked for, shared_projections.csv."""
    from headscope.show.rank.figures import rank_figures

    tables = {"rank": to_csv(result)}
    if result.shared is not None:
        tables["shared_projections"] = _shared_csv(result.shared)
    return folder_files(tables, rank_figures(result))


def _shared_csv(shared: SharedProjections) -> str:
    """One line per width of the shared projections."""
    names = (*_SHARED, *_CUT, *_SAVED)
    return csv_text(names, ([getattr(item, name) for name in names] for item in shared.widths))
