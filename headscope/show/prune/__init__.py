"""How ``prune`` looks."""

from headscope.show.prune.files import STALE, prune_files
from headscope.show.prune.page import SCALES, facts, key_numbers, section
from headscope.show.prune.tables import prune_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=prune_report,
    files=prune_files,
    stale=STALE,
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
