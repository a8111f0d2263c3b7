"""Scores made symmetric before the softmax."""

from headscope.analyses.symmetric.options import SymmetricOptions
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.session.entry import entry

__all__ = ["SymmetricResult", "symmetric"]

symmetric = entry(SymmetricOptions, SymmetricResult, "headscope.analyses.symmetric.run")
