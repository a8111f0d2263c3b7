"""The files of ``spectrum``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.spectrum import SpectrumResult
from headscope.show.cells import fields_csv, to_csv
from headscope.show.folders import folder_files

#: Columns of the cheap forms' table: one row per head, form and size.
_FORMS = ("layer", "head", "form", "size", "error.mean", "error.sem", "half_width", "mass")


def spectrum_files(result: SpectrumResult) -> dict[str, bytes]:
    """Return the tables as CSV and the figures."""
    from headscope.show.spectrum.figures import cost_curves, share_map, spectrum_curves

    csv = {"spectrum": to_csv(result)}
    figures = {
        "spectrum_curves": spectrum_curves(result),
        "spectrum_map": share_map(result),
        "spectrum_map_sq": share_map(result, squared=True),
    }
    if result.efficient is not None:
        csv["spectrum_efficient"] = fields_csv(_FORMS, result.efficient.heads)
        figures["spectrum_efficient"] = cost_curves(result, result.efficient)
    return folder_files(csv, figures)
