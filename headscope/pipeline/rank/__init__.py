"""``headscope rank`` and its parts."""

from headscope.pipeline.rank.run import rank, report_defaults

__all__ = ["rank", "report_defaults"]
