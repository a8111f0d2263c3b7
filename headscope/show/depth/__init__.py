"""How ``depth`` looks."""

from headscope.show.depth import page, tables
from headscope.show.depth.files import depth_files
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(tables.depth_report, depth_files, section=page.section, key_numbers=page.key_numbers)
