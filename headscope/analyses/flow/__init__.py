"""What heads read and pass on."""

from headscope.analyses.flow.options import FlowOptions
from headscope.analyses.flow.result import FlowResult
from headscope.session.entry import entry

__all__ = ["FlowResult", "flow"]

flow = entry(FlowOptions, FlowResult, "headscope.analyses.flow.run")
