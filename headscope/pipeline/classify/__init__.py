"""``headscope classify`` and its parts."""

from headscope.pipeline.classify.run import classify, report_defaults

__all__ = ["classify", "report_defaults"]
