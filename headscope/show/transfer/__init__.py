"""How ``transfer`` looks."""

from headscope.show.transfer import page, tables
from headscope.show.transfer.files import transfer_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    tables.transfer_report, transfer_files, section=page.section, key_numbers=page.key_numbers
)
