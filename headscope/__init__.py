"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headscope.artefacts.registration import register

if TYPE_CHECKING:
    from headscope.analyses.classify.options import Thresholds as Thresholds
    from headscope.analyses.classify.result import ClassifyResult as ClassifyResult
    from headscope.analyses.depth.result import DepthResult as DepthResult
    from headscope.analyses.explain.result import ExplainResult as ExplainResult
    from headscope.analyses.flow.result import FlowResult as FlowResult
    from headscope.analyses.linear.result import LinearResult as LinearResult
    from headscope.analyses.rank.result import RankResult as RankResult
    from headscope.analyses.spectrum.result import SpectrumResult as SpectrumResult
    from headscope.analyses.symmetric.result import SymmetricResult as SymmetricResult
    from headscope.analyses.transfer.result import TransferResult as TransferResult
    from headscope.api import classify as classify
    from headscope.api import depth as depth
    from headscope.api import explain as explain
    from headscope.api import flow as flow
    from headscope.api import insights as insights
    from headscope.api import linear as linear
    from headscope.api import prune as prune
    from headscope.api import rank as rank
    from headscope.api import report as report
    from headscope.api import spectrum as spectrum
    from headscope.api import symmetric as symmetric
    from headscope.api import transfer as transfer
    from headscope.api import validate as validate
    from headscope.artefacts.saving import save as save
    from headscope.artefacts.saving import save_dense as save_dense
    from headscope.core.errors import HeadscopeError as HeadscopeError
    from headscope.models.compact import remove_heads as remove_heads
    from headscope.models.loading import load as load
    from headscope.models.loading import wrap as wrap
    from headscope.models.validation import ValidationResult as ValidationResult
    from headscope.pruning.result import PruneResult as PruneResult
    from headscope.pruning.scores import measure as measure
    from headscope.pruning.scores import scores as scores
    from headscope.reports.claims.thresholds import InsightThresholds as InsightThresholds
    from headscope.reports.result import InsightsResult as InsightsResult
    from headscope.reports.result import ReportResult as ReportResult

__version__ = "0.1.0"

#: Public names by the module that they are taken from when they are first used.
_MODULES = {
    "api": "classify depth explain flow linear rank spectrum symmetric transfer validate prune "
    "report insights ClassifyResult DepthResult ExplainResult FlowResult LinearResult RankResult "
    "SpectrumResult SymmetricResult TransferResult ValidationResult PruneResult InsightsResult "
    "ReportResult",
    "pruning.scores": "scores measure",
    "models.loading": "load wrap",
    "models.compact": "remove_heads",
    "artefacts.saving": "save save_dense",
    "analyses.classify.options": "Thresholds",
    "reports.claims.thresholds": "InsightThresholds",
    "core.errors": "HeadscopeError",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*_HOME]

# From here on transformers opens folders that headscope saved.
register()


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:  # a command of the registry that has no line here
        made = importlib.import_module("headscope.api").by_convention(name)
        if made is None:
            raise AttributeError(f"module 'headscope' has no attribute {name!r}")
        return made
    return getattr(importlib.import_module(f"headscope.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
