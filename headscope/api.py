"""The functions of :mod:`headscope` that measure a model: options, result, and what runs.

Nothing that computes is loaded before one of them is called.
"""

import functools
import importlib
from typing import Any

from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.depth.options import DepthOptions
from headscope.analyses.depth.result import DepthResult
from headscope.analyses.explain.options import ExplainOptions
from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.flow.options import FlowOptions
from headscope.analyses.flow.result import FlowResult
from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.linear.result import LinearResult
from headscope.analyses.rank.options import RankOptions
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.options import SpectrumOptions
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.analyses.symmetric.options import SymmetricOptions
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.analyses.transfer.options import TransferOptions
from headscope.analyses.transfer.result import TransferResult
from headscope.analyses.validate.options import ValidateOptions
from headscope.models.validation import ValidationResult
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import PruneResult
from headscope.reports.options import InsightsOptions, ReportOptions
from headscope.reports.result import InsightsResult, ReportResult
from headscope.session.entry import entry

classify = entry(ClassifyOptions, ClassifyResult, "headscope.analyses.classify.run")
depth = entry(DepthOptions, DepthResult, "headscope.analyses.depth.run")
explain = entry(ExplainOptions, ExplainResult, "headscope.analyses.explain.run")
flow = entry(FlowOptions, FlowResult, "headscope.analyses.flow.run")
insights = entry(InsightsOptions, InsightsResult, "headscope.reports.claims.run")
linear = entry(LinearOptions, LinearResult, "headscope.analyses.linear.run")
prune = entry(PruneOptions, PruneResult, "headscope.pruning.run")
rank = entry(RankOptions, RankResult, "headscope.analyses.rank.run")
report = entry(ReportOptions, ReportResult, "headscope.reports.run")
spectrum = entry(SpectrumOptions, SpectrumResult, "headscope.analyses.spectrum.run")
symmetric = entry(SymmetricOptions, SymmetricResult, "headscope.analyses.symmetric.run")
transfer = entry(TransferOptions, TransferResult, "headscope.analyses.transfer.run")
validate = entry(ValidateOptions, ValidationResult, "headscope.analyses.validate.run")


@functools.cache
def by_convention(name: str) -> Any:
    """Return the function, or the result class, of a section that has no line above; else None.

    Its room is ``headscope.analyses.NAME``, its classes are ``NameOptions`` and ``NameResult``.
    """
    sections = importlib.import_module("headscope.reports.registry").SECTIONS
    room = f"headscope.analyses.{name.removesuffix('Result').lower()}"
    if room.rpartition(".")[2] not in sections:
        return None
    title = room.rpartition(".")[2].title()
    result: type = getattr(importlib.import_module(f"{room}.result"), f"{title}Result")
    if name == f"{title}Result":
        return result
    options: type = getattr(importlib.import_module(f"{room}.options"), f"{title}Options")
    return entry(options, result, f"{room}.run")
