"""Attention without its softmax."""

from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.linear.result import LinearResult
from headscope.session.entry import entry

__all__ = ["LinearResult", "linear"]

linear = entry(LinearOptions, LinearResult, "headscope.analyses.linear.run")
