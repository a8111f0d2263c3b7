"""``headscope flow`` and its parts."""

from headscope.pipeline.flow.run import flow, report_defaults

__all__ = ["flow", "report_defaults"]
