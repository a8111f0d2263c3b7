"""How ``linear`` looks."""

from headscope.show.linear import page, tables
from headscope.show.linear.files import linear_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.linear_report,
    linear_files,
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
