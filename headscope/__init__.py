"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.errors import HeadscopeError
    from headscope.measures.classify.thresholds import Thresholds
    from headscope.models.compact import remove_heads
    from headscope.models.loading import load, wrap
    from headscope.models.saving import save, save_dense
    from headscope.pipeline.classify import classify
    from headscope.pipeline.depth import depth
    from headscope.pipeline.insights.run import insights
    from headscope.pipeline.prune.run import prune
    from headscope.pipeline.prune.scores import measure, scores
    from headscope.pipeline.rank.run import rank
    from headscope.pipeline.report.run import report
    from headscope.pipeline.spectrum.run import spectrum
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
    from headscope.verdicts.insights.thresholds import InsightThresholds

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
    "rank": "headscope.pipeline.rank.run",
    "spectrum": "headscope.pipeline.spectrum.run",
    "validate": "headscope.pipeline.validate",
    "prune": "headscope.pipeline.prune.run",
    "scores": "headscope.pipeline.prune.scores",
    "measure": "headscope.pipeline.prune.scores",
    "report": "headscope.pipeline.report.run",
    "insights": "headscope.pipeline.insights.run",
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
    "Thresholds": "headscope.measures.classify.thresholds",
    "InsightThresholds": "headscope.verdicts.insights.thresholds",
    "HeadscopeError": "headscope.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
