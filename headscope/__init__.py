"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headscope.artefacts.registration import register

if TYPE_CHECKING:
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
    from headscope.measures.classify.thresholds import Thresholds as Thresholds
    from headscope.models.compact import remove_heads as remove_heads
    from headscope.models.loading import load as load
    from headscope.models.loading import wrap as wrap
    from headscope.pruning.scores import measure as measure
    from headscope.pruning.scores import scores as scores
    from headscope.results.classify import ClassifyResult as ClassifyResult
    from headscope.results.depth import DepthResult as DepthResult
    from headscope.results.explain import ExplainResult as ExplainResult
    from headscope.results.flow import FlowResult as FlowResult
    from headscope.results.insights import InsightsResult as InsightsResult
    from headscope.results.linear import LinearResult as LinearResult
    from headscope.results.prune import PruneResult as PruneResult
    from headscope.results.rank import RankResult as RankResult
    from headscope.results.report import ReportResult as ReportResult
    from headscope.results.spectrum import SpectrumResult as SpectrumResult
    from headscope.results.symmetric import SymmetricResult as SymmetricResult
    from headscope.results.transfer import TransferResult as TransferResult
    from headscope.results.validate import ValidationResult as ValidationResult
    from headscope.verdicts.insights.thresholds import InsightThresholds as InsightThresholds

__version__ = "0.1.0"

_RESULTS = (
    "Classify Depth Explain Flow Insights Linear Prune Rank Report Spectrum Symmetric Transfer "
    "Validation"
)
#: Public names by the module that they are taken from when they are first used.
_MODULES = {
    "api": "classify depth explain flow linear rank spectrum symmetric transfer validate prune "
    "report insights",
    "pruning.scores": "scores measure",
    "models.loading": "load wrap",
    "models.compact": "remove_heads",
    "artefacts.saving": "save save_dense",
    "results": " ".join(f"{name}Result" for name in _RESULTS.split()),
    "measures.classify.thresholds": "Thresholds",
    "verdicts.insights.thresholds": "InsightThresholds",
    "core.errors": "HeadscopeError",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*_HOME]

# From here on transformers opens folders that headscope saved.
register()


def __getattr__(name: str) -> object:
    home = _HOME.get(name) or _section_home(name)
    if home is None:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headscope.{home}"), name)


def _section_home(name: str) -> str | None:
    """Return where the function of a section is; its name is entered in results/sections.py."""
    from headscope.results.sections import SECTIONS

    return f"pipeline.{name}" if name in SECTIONS else None


def __dir__() -> list[str]:
    return sorted(__all__)
