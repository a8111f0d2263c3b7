"""``headscope insights`` and the measurement that it makes itself."""

from headscope.pipeline.insights.run import insights

__all__ = ["insights"]
