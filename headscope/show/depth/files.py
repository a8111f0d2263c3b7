"""The files of ``depth``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.depth import DepthResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def depth_files(result: DepthResult, *, log: bool = False) -> dict[str, bytes]:
    """Return depth.csv, protected.csv and the figures; ``log``: ratios on a logarithmic axis."""
    from headscope.show.depth.figures import protection_bars, ratio_curves

    csv = {"depth": to_csv(result), "protected": frame_csv(result.protected_frame())}
    figures = {"depth": ratio_curves(result, log=log), "protected": protection_bars(result)}
    return folder_files(csv, figures)
