"""``headscope explain``: attention taught with one sentence and a model's own numbers."""

from headscope.pipeline.explain.run import explain

__all__ = ["explain"]
