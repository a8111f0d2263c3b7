"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope import plot as plot
    from headscope.analyses.attribute import AttributeResult as AttributeResult
    from headscope.analyses.attribute import attribute as attribute
    from headscope.analyses.classify import ClassifyResult as ClassifyResult
    from headscope.analyses.classify import classify as classify
    from headscope.analyses.classify import roles as roles
    from headscope.analyses.depth import DepthResult as DepthResult
    from headscope.analyses.depth import depth as depth
    from headscope.analyses.explain import ExplainResult as ExplainResult
    from headscope.analyses.explain import explain as explain
    from headscope.analyses.flow import FlowResult as FlowResult
    from headscope.analyses.flow import flow as flow
    from headscope.analyses.linear import LinearResult as LinearResult
    from headscope.analyses.linear import linear as linear
    from headscope.analyses.rank import RankResult as RankResult
    from headscope.analyses.rank import rank as rank
    from headscope.analyses.spectrum import SpectrumResult as SpectrumResult
    from headscope.analyses.spectrum import spectrum as spectrum
    from headscope.analyses.symmetric import SymmetricResult as SymmetricResult
    from headscope.analyses.symmetric import symmetric as symmetric
    from headscope.analyses.transfer import TransferResult as TransferResult
    from headscope.analyses.transfer import transfer as transfer
    from headscope.analyses.validate import ValidationResult as ValidationResult
    from headscope.analyses.validate import validate as validate
    from headscope.artefacts.compact_classes import register as register
    from headscope.artefacts.saving import save as save
    from headscope.artefacts.saving import save_dense as save_dense
    from headscope.core.errors import HeadscopeError as HeadscopeError
    from headscope.core.roles import Thresholds as Thresholds
    from headscope.models.anatomy.feed_forward import feed_forwards as feed_forwards
    from headscope.models.load.loading import load as load
    from headscope.models.run.loaded import wrap as wrap
    from headscope.models.surgery.copies import remove_heads as remove_heads
    from headscope.models.surgery.layers import remove_layers as remove_layers
    from headscope.models.surgery.neurons import remove_neurons as remove_neurons
    from headscope.models.surgery.vocabulary import cut_vocabulary as cut_vocabulary
    from headscope.models.surgery.vocabulary import plan_vocabulary as plan_vocabulary
    from headscope.pruning import PruneResult as PruneResult
    from headscope.pruning import prune as prune
    from headscope.pruning.scores import measure as measure
    from headscope.pruning.scores import scores as scores
    from headscope.reports.claims.thresholds import InsightThresholds as InsightThresholds
    from headscope.reports.compare import compare as compare
    from headscope.reports.options import insights as insights
    from headscope.reports.options import report as report
    from headscope.reports.result import InsightsResult as InsightsResult
    from headscope.reports.result import ReportResult as ReportResult
    from headscope.shrinking import ShrinkResult as ShrinkResult
    from headscope.shrinking import shrink as shrink

__version__ = "0.1.0"

_ANALYSES = (
    "attribute",
    "classify",
    "depth",
    "explain",
    "flow",
    "linear",
    "rank",
    "spectrum",
    "symmetric",
    "transfer",
)
#: Public names by the module that has them, for ``__getattr__`` and ``__dir__`` alone.
_MODULES = {
    **{f"analyses.{name}": f"{name} {name.title()}Result" for name in _ANALYSES},
    "analyses.validate": "validate ValidationResult",
    "pruning": "prune PruneResult",
    "shrinking": "shrink ShrinkResult",
    "reports.options": "report insights",
    "reports.result": "ReportResult InsightsResult",
    "reports.compare": "compare",
    "pruning.scores": "scores measure",
    "models.load.loading": "load",
    "models.run.loaded": "wrap",
    "models.surgery.copies": "remove_heads",
    "models.surgery.vocabulary": "plan_vocabulary cut_vocabulary",
    "models.anatomy.feed_forward": "feed_forwards",
    "models.surgery.neurons": "remove_neurons",
    "models.surgery.layers": "remove_layers",
    "artefacts.saving": "save save_dense",
    "artefacts.compact_classes": "register",
    "core.roles": "Thresholds",
    "reports.claims.thresholds": "InsightThresholds",
    "core.errors": "HeadscopeError",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
_PUBLIC_MODULES = {"plot": "plot", "roles": "analyses.classify.roles"}

__all__ = [*_HOME, *_PUBLIC_MODULES]


def __getattr__(name: str) -> object:
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"headscope.{_PUBLIC_MODULES[name]}")
    # A name without a line above may be that of an analysis, in the analysis' folder.
    home = _HOME.get(name, f"analyses.{name.removesuffix('Result').lower()}")
    try:
        return getattr(importlib.import_module(f"headscope.{home}"), name)
    except ModuleNotFoundError as error:
        if name in _HOME or error.name != f"headscope.{home}":
            raise
        raise AttributeError(f"module 'headscope' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
