"""How ``explain`` looks."""

from headscope.show.explain import page, tables
from headscope.show.explain.files import explain_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.explain_report,
    explain_files,
    facts=page.facts,
    section=page.section,
    key_numbers=page.key_numbers,
)
