"""How ``prune`` looks."""

from headscope.show.prune.files import STALE, prune_files
from headscope.show.prune.tables import curves_csv, prune_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(human=prune_report, csv=curves_csv, files=prune_files, stale=STALE)
