"""headscope: what each attention head of a transformer does, and which heads can go.

Nothing heavy is imported until it is used: :func:`__getattr__` looks a public name up in the tables
below. The imports for type checkers list the same names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headscope.commands import COMMANDS

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
    from headscope.core.errors import HeadscopeError as HeadscopeError
    from headscope.core.roles import Thresholds as Thresholds
    from headscope.models.anatomy.feed_forward import feed_forwards as feed_forwards
    from headscope.models.load.loading import load as load
    from headscope.models.run.wrapping import wrap as wrap
    from headscope.models.surgery.copies import remove_heads as remove_heads
    from headscope.models.surgery.layers import remove_layers as remove_layers
    from headscope.models.surgery.neurons import remove_neurons as remove_neurons
    from headscope.pruning import PruneResult as PruneResult
    from headscope.pruning import prune as prune
    from headscope.reports.claims.thresholds import InsightThresholds as InsightThresholds
    from headscope.reports.compare import compare as compare
    from headscope.reports.options import insights as insights
    from headscope.reports.options import report as report
    from headscope.reports.result import InsightsResult as InsightsResult
    from headscope.reports.result import ReportResult as ReportResult
    from headscope.shrinking import ShrinkResult as ShrinkResult
    from headscope.shrinking import shrink as shrink

__version__ = "0.1.0"

#: Functions of commands such as ``classify``, and classes of their results such as
#: ``ClassifyResult``: the row of each in the table of commands.
_FUNCTIONS = {row.name: row for row in COMMANDS.values() if row.measures}
_RESULTS = {row.result_class.rpartition(":")[2]: row for row in _FUNCTIONS.values()}
#: Other functions and classes: the module of each in headscope.
_MODULES = {
    "HeadscopeError": "core.errors",
    "InsightThresholds": "reports.claims.thresholds",
    "Thresholds": "core.roles",
    "compare": "reports.compare",
    "feed_forwards": "models.anatomy.feed_forward",
    "load": "models.load.loading",
    "register": "artefacts.compact_classes",
    "remove_heads": "models.surgery.copies",
    "remove_layers": "models.surgery.layers",
    "remove_neurons": "models.surgery.neurons",
    "save": "artefacts.saving",
    "wrap": "models.run.wrapping",
}
#: Modules that are public as they are.
_PUBLIC_MODULES = {"plot": "headscope.plot", "roles": "headscope.analyses.classify.roles"}

__all__ = [*_FUNCTIONS, *_RESULTS, *_MODULES, *_PUBLIC_MODULES]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name].function
    if name in _RESULTS:
        return _RESULTS[name].result
    if name in _PUBLIC_MODULES:
        return importlib.import_module(_PUBLIC_MODULES[name])
    if name in _MODULES:
        return getattr(importlib.import_module(f"headscope.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'headscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
