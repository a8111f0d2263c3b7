"""The functions of :mod:`headscope` that measure a model: options, result, and what runs.

Nothing that computes is loaded before one of them is called.
"""

from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.depth.options import DepthOptions
from headscope.analyses.explain.options import ExplainOptions
from headscope.analyses.flow.options import FlowOptions
from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.prune_options import PruneOptions
from headscope.analyses.rank.options import RankOptions
from headscope.analyses.spectrum.options import SpectrumOptions
from headscope.analyses.symmetric.options import SymmetricOptions
from headscope.analyses.transfer.options import TransferOptions
from headscope.analyses.validate.options import ValidateOptions
from headscope.reports.options import InsightsOptions, ReportOptions
from headscope.results.classify import ClassifyResult
from headscope.results.depth import DepthResult
from headscope.results.explain import ExplainResult
from headscope.results.flow import FlowResult
from headscope.results.insights import InsightsResult
from headscope.results.linear import LinearResult
from headscope.results.prune import PruneResult
from headscope.results.rank import RankResult
from headscope.results.report import ReportResult
from headscope.results.spectrum import SpectrumResult
from headscope.results.symmetric import SymmetricResult
from headscope.results.transfer import TransferResult
from headscope.results.validate import ValidationResult
from headscope.session.entry import entry

classify = entry(ClassifyOptions, ClassifyResult, "headscope.pipeline.classify.run")
depth = entry(DepthOptions, DepthResult, "headscope.pipeline.depth")
explain = entry(ExplainOptions, ExplainResult, "headscope.pipeline.explain.run")
flow = entry(FlowOptions, FlowResult, "headscope.pipeline.flow.run")
insights = entry(InsightsOptions, InsightsResult, "headscope.pipeline.insights.run")
linear = entry(LinearOptions, LinearResult, "headscope.pipeline.linear.run")
prune = entry(PruneOptions, PruneResult, "headscope.pruning.run")
rank = entry(RankOptions, RankResult, "headscope.pipeline.rank.run")
report = entry(ReportOptions, ReportResult, "headscope.pipeline.report.run")
spectrum = entry(SpectrumOptions, SpectrumResult, "headscope.pipeline.spectrum.run")
symmetric = entry(SymmetricOptions, SymmetricResult, "headscope.pipeline.symmetric")
transfer = entry(TransferOptions, TransferResult, "headscope.pipeline.transfer.run")
validate = entry(ValidateOptions, ValidationResult, "headscope.pipeline.validate")
