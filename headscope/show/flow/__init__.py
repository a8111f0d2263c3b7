"""How ``flow`` looks."""

from headscope.show.flow import page, tables
from headscope.show.flow.files import flow_files
from headscope.show.folders import names_of
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.flow_report,
    flow_files,
    stale=names_of("flow_trees"),
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
