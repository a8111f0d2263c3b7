"""``headscope shrink``: a smaller, faster model by the plainest means that reach the target."""

from headscope.session.entry import entry
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult

__all__ = ["ShrinkResult", "shrink"]

shrink = entry(ShrinkOptions, ShrinkResult, "headscope.shrinking.run")
