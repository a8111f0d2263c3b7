"""How ``symmetric`` looks."""

from headscope.show.symmetric import page, tables
from headscope.show.symmetric.files import symmetric_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.symmetric_report,
    symmetric_files,
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
    key_numbers=page.key_numbers,
)
