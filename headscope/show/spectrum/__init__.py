"""How ``spectrum`` looks."""

from headscope.results import SpectrumResult
from headscope.show.cells import fields_csv, to_csv
from headscope.show.folders import folder_files, names_of
from headscope.show.spectrum import page, tables
from headscope.show.view import View

__all__ = ["VIEW"]

#: Columns of the cheap forms' table: one row per head, form and size.
_FORMS = ("layer", "head", "form", "size", "error.mean", "error.sem", "half_width", "mass")


def _files(result: SpectrumResult) -> dict[str, bytes]:
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


VIEW = View(
    tables.spectrum_report,
    _files,
    stale=names_of("spectrum_efficient"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
