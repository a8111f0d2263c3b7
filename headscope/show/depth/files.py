"""The files of ``depth``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import DepthResult
from headscope.show.depth.tables import depth_csv, protected_csv

__all__ = ["depth_files"]


def depth_files(result: DepthResult, *, log: bool = False) -> dict[str, bytes]:
    """Return depth.csv, protected.csv and the figures.

    Parameters
    ----------
    result : DepthResult
    log : bool
        Draw the ratios on a logarithmic axis.
    """
    from headscope.show.depth.figures import protection_bars, ratio_curves
    from headscope.show.drawing import figure_files

    return {
        "depth.csv": depth_csv(result).encode(),
        "protected.csv": protected_csv(result).encode(),
        **figure_files(
            {"depth": ratio_curves(result, log=log), "protected": protection_bars(result)}
        ),
    }
