"""How ``spectrum`` looks."""

from headscope.show.folders import names_of
from headscope.show.spectrum import page, tables
from headscope.show.spectrum.files import spectrum_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.spectrum_report,
    spectrum_files,
    stale=names_of("spectrum_efficient"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
