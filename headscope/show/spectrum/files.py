"""The files of ``spectrum``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import SpectrumResult
from headscope.show.spectrum.tables import cheap_csv, spectrum_csv

__all__ = ["STALE", "spectrum_files"]

#: Only a run that measured the cheap forms writes these.
STALE = ("spectrum_efficient.csv", "spectrum_efficient.png", "spectrum_efficient.svg")


def spectrum_files(result: SpectrumResult) -> dict[str, bytes]:
    """Return the tables as CSV and the figures."""
    from headscope.show.drawing import figure_files
    from headscope.show.spectrum.figures import cost_curves, share_map, spectrum_curves

    files = {"spectrum.csv": spectrum_csv(result).encode()}
    figures = {
        "spectrum_curves": spectrum_curves(result),
        "spectrum_map": share_map(result),
        "spectrum_map_sq": share_map(result, squared=True),
    }
    if result.efficient is not None:
        files["spectrum_efficient.csv"] = cheap_csv(result.efficient).encode()
        figures["spectrum_efficient"] = cost_curves(result)
    return files | figure_files(figures)
