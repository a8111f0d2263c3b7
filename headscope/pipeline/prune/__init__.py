"""``headscope prune`` and its parts: data, scores, repairs, curves, tables, and what is kept."""

from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.scores import measure, scores

__all__ = ["PruneOptions", "measure", "scores"]
