"""The files of ``spectrum``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import EfficientResult, SpectrumResult
from headscope.show.cells import csv_text, to_csv
from headscope.show.folders import folder_files, names_of

#: Only a run that measured the cheap forms writes these.
STALE = names_of("spectrum_efficient")


def spectrum_files(result: SpectrumResult) -> dict[str, bytes]:
    """Return the tables as CSV and the figures."""
    from headscope.show.spectrum.figures import cost_curves, share_map, spectrum_curves

    tables = {"spectrum": to_csv(result)}
    figures = {
        "spectrum_curves": spectrum_curves(result),
        "spectrum_map": share_map(result),
        "spectrum_map_sq": share_map(result, squared=True),
    }
    if result.efficient is not None:
        tables["spectrum_efficient"] = _efficient_csv(result.efficient)
        figures["spectrum_efficient"] = cost_curves(result, result.efficient)
    return folder_files(tables, figures)


def _efficient_csv(found: EfficientResult) -> str:
    """One line per head, form and size."""
    return csv_text(
        ("layer", "head", "form", "size", "error", "error_sem", "half_width", "mass"),
        (
            (h.layer, h.head, h.form, h.size, h.error.mean, h.error.sem, h.half_width, h.mass)
            for h in found.heads
        ),
    )
