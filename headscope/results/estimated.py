"""The former home of :class:`headscope.stats.estimate.Estimate`."""

from headscope.stats.estimate import UNKNOWN, Estimate

__all__ = ["UNKNOWN", "Estimate", "Estimated"]

Estimated = Estimate
