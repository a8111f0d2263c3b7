"""How ``classify`` looks."""

from headscope.show.classify import page, tables
from headscope.show.classify.files import classify_files
from headscope.show.folders import names_of
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.classify_report,
    classify_files,
    # Only a run with gold trees, or one with cross-attention, writes these.
    stale=names_of("relations", "alignment"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
)
