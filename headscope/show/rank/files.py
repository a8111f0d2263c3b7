"""The files of ``rank``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.rank import RankResult
from headscope.show.cells import fields_csv, to_csv
from headscope.show.folders import folder_files

_SHARED = ("width", "score_error", "control_score_error", "fidelity")
_CUT = ("truncated_rank", "truncated_score_error", "truncated_fidelity")
_SAVED = ("parameters", "parameters_saved", "share_saved")


def rank_files(result: RankResult) -> dict[str, bytes]:
    """Return rank.csv, the figures and, if asked for, shared_projections.csv."""
    from headscope.show.rank.figures import rank_figures

    csv = {"rank": to_csv(result)}
    if result.shared is not None:
        csv["shared_projections"] = fields_csv((*_SHARED, *_CUT, *_SAVED), result.shared.widths)
    return folder_files(csv, rank_figures(result))
