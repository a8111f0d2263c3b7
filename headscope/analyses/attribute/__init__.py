"""Which heads made this output."""

from headscope.analyses.attribute.options import AttributeOptions
from headscope.analyses.attribute.result import AttributeResult
from headscope.session.entry import entry

__all__ = ["AttributeResult", "attribute"]

attribute = entry(AttributeOptions, AttributeResult, "headscope.analyses.attribute.run")
