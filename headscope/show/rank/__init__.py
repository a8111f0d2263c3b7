"""How ``rank`` looks."""

from headscope.show.rank.files import STALE, rank_files
from headscope.show.rank.page import SCALES, facts, key_numbers, section
from headscope.show.rank.tables import rank_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=rank_report,
    files=rank_files,
    stale=STALE,
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
