"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.errors import HeadscopeError
    from headscope.measures.insights.thresholds import InsightThresholds
    from headscope.measures.thresholds import Thresholds
    from headscope.models.compact import remove_heads
    from headscope.models.loading import load, wrap
    from headscope.models.saving import save, save_dense
    from headscope.pipeline.classify import classify
    from headscope.pipeline.depth import depth
    from headscope.pipeline.insights import insights
    from headscope.pipeline.prune import prune
    from headscope.pipeline.rank import rank
    from headscope.pipeline.report import report
    from headscope.pipeline.scores import measure, scores
    from headscope.pipeline.spectrum import spectrum
    from headscope.pipeline.validate import validate
    from headscope.results import (
        ClassifyResult,
        DepthResult,
        InsightsResult,
        PruneResult,
        RankResult,
        ReportResult,
        SpectrumResult,
        ValidationResult,
    )

__version__ = "0.1.0"

__all__ = [
    "classify",
    "depth",
    "rank",
    "spectrum",
    "validate",
    "prune",
    "scores",
    "measure",
    "report",
    "insights",
    "load",
    "wrap",
    "remove_heads",
    "save",
    "save_dense",
    "ClassifyResult",
    "DepthResult",
    "InsightsResult",
    "PruneResult",
    "RankResult",
    "ReportResult",
    "SpectrumResult",
    "ValidationResult",
    "Thresholds",
    "InsightThresholds",
    "HeadscopeError",
]

_HOME = {
    "classify": "headscope.pipeline.classify",
    "depth": "headscope.pipeline.depth",
    "rank": "headscope.pipeline.rank",
    "spectrum": "headscope.pipeline.spectrum",
    "validate": "headscope.pipeline.validate",
    "prune": "headscope.pipeline.prune",
    "scores": "headscope.pipeline.scores",
    "measure": "headscope.pipeline.scores",
    "report": "headscope.pipeline.report",
    "insights": "headscope.pipeline.insights",
    "load": "headscope.models.loading",
    "wrap": "headscope.models.loading",
    "remove_heads": "headscope.models.compact",
    "save": "headscope.models.saving",
    "save_dense": "headscope.models.saving",
    "ClassifyResult": "headscope.results",
    "DepthResult": "headscope.results",
    "InsightsResult": "headscope.results",
    "PruneResult": "headscope.results",
    "RankResult": "headscope.results",
    "ReportResult": "headscope.results",
    "SpectrumResult": "headscope.results",
    "ValidationResult": "headscope.results",
    "Thresholds": "headscope.measures.thresholds",
    "InsightThresholds": "headscope.measures.insights.thresholds",
    "HeadscopeError": "headscope.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(types.ModuleType):
    """Keeps ``headscope.report`` the function: importing the floor of that name would cover it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "report":
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
