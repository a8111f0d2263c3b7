"""How ``prune`` looks."""

from headscope.show.folders import names_of
from headscope.show.prune import page, tables
from headscope.show.prune.files import prune_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.prune_report,
    prune_files,
    stale=names_of(
        *("areas", "stacks", "scores", "survivors", "ablation", "kept_alone", "max_drop", "even")
    ),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
