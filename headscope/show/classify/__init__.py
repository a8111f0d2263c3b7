"""How ``classify`` looks."""

from headscope.show.classify.files import STALE, classify_files
from headscope.show.classify.page import SCALES, facts, section
from headscope.show.classify.tables import classify_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=classify_report,
    files=classify_files,
    stale=STALE,
    facts=facts,
    scales=SCALES,
    section=section,
)
