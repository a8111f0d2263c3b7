"""How ``classify`` looks."""

from headscope.show.classify import causes, page, tables
from headscope.show.classify.files import classify_files
from headscope.show.folders import names_of
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.classify_report,
    classify_files,
    # Only a run with gold trees, one with cross-attention, or one that removed heads, writes these.
    stale=names_of("relations", "alignment", "causes", "prefix_matching"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    more=page.more,
    key_numbers=causes.key_numbers,
    compared=page.compared,
)
