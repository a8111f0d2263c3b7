"""``headscope prune``: choose heads, remove them, repair and measure what is left, keep a model."""

from headscope.pruning.options import PruneOptions
from headscope.pruning.result import PruneResult
from headscope.session.entry import entry

__all__ = ["PruneResult", "prune"]

prune = entry(PruneOptions, PruneResult, "headscope.pruning.run")
