"""What each head does."""

from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.classify.result import ClassifyResult
from headscope.session.entry import entry

__all__ = ["ClassifyResult", "classify"]

classify = entry(ClassifyOptions, ClassifyResult, "headscope.analyses.classify.run")
