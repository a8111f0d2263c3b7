"""``headscope linear``: attention without its softmax."""

from headscope.pipeline.linear.run import linear, report_defaults

__all__ = ["linear", "report_defaults"]
