"""What becomes of tokens with depth."""

from headscope.analyses.depth.options import DepthOptions
from headscope.analyses.depth.result import DepthResult
from headscope.session.entry import entry

__all__ = ["DepthResult", "depth"]

depth = entry(DepthOptions, DepthResult, "headscope.analyses.depth.run")
