"""How ``depth`` looks."""

from headscope.show.depth.files import depth_files
from headscope.show.depth.page import key_numbers, section
from headscope.show.depth.tables import depth_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(human=depth_report, files=depth_files, section=section, key_numbers=key_numbers)
