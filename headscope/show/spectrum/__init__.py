"""How ``spectrum`` looks."""

from headscope.show.spectrum.files import STALE, spectrum_files
from headscope.show.spectrum.page import SCALES, facts, key_numbers, section
from headscope.show.spectrum.tables import spectrum_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=spectrum_report,
    files=spectrum_files,
    stale=STALE,
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
