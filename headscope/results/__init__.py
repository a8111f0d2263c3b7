"""Raw values of every command, frozen, with a JSON round trip; display lives in show/.

A rate that has no trial behind it is None (JSON null), never NaN. The ``__all__`` of each module
lists what can be imported from here.
"""

# ruff: noqa: F403
from headscope.results.causes import *
from headscope.results.classify import *
from headscope.results.compare import *
from headscope.results.depth import *
from headscope.results.diff import *
from headscope.results.effects import *
from headscope.results.efficient import *
from headscope.results.estimated import *
from headscope.results.even import *
from headscope.results.explain import *
from headscope.results.exported import *
from headscope.results.flow import *
from headscope.results.heads import *
from headscope.results.insights import *
from headscope.results.kept_model import *
from headscope.results.linear import *
from headscope.results.list import *
from headscope.results.max_drop import *
from headscope.results.measured import *
from headscope.results.points import *
from headscope.results.prefix_matching import *
from headscope.results.prune import *
from headscope.results.rank import *
from headscope.results.report import *
from headscope.results.role_scores import *
from headscope.results.roles import *
from headscope.results.sections import *
from headscope.results.serialise import *
from headscope.results.shared_projections import *
from headscope.results.spectrum import *
from headscope.results.speed import *
from headscope.results.symmetric import *
from headscope.results.thresholds import *
from headscope.results.transfer import *
from headscope.results.validate import *
from headscope.results.value_norms import *
