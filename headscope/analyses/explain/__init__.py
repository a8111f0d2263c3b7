"""One sentence through one head."""

from headscope.analyses.explain.options import ExplainOptions
from headscope.analyses.explain.result import ExplainResult
from headscope.session.entry import entry

__all__ = ["ExplainResult", "explain"]

explain = entry(ExplainOptions, ExplainResult, "headscope.analyses.explain.run")
