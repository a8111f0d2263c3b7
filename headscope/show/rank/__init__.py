"""How ``rank`` looks."""

from headscope.show.folders import names_of
from headscope.show.rank import page, tables
from headscope.show.rank.files import rank_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.rank_report,
    rank_files,
    stale=names_of("shared_projections"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
