"""The sections of a report: THE list. A field each says name, result class, order and marks.

From the name of a section follows where everything else about it lives: its function in
``headscope.api``, its view in the module ``view`` of its room, its table in a config file, its page
in the docs. tests/unit/test_registry.py holds every section against that.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.analyses.depth.result import DepthResult
    from headscope.analyses.explain.result import ExplainResult
    from headscope.analyses.flow.result import FlowResult
    from headscope.analyses.linear.result import LinearResult
    from headscope.analyses.rank.result import RankResult
    from headscope.analyses.spectrum.result import SpectrumResult
    from headscope.analyses.symmetric.result import SymmetricResult
    from headscope.analyses.transfer.result import TransferResult
    from headscope.models.validation import ValidationResult
    from headscope.pruning.result import PruneResult
    from headscope.reports.result import InsightsResult

__all__ = ["SECTIONS", "Section", "Sections", "section_of"]


@dataclass(frozen=True)
class Section:
    """What is known of a section without measuring anything: plain strings."""

    name: str  # Of the section, its command and its table in a config file
    module: str  # That its result class is in
    result: str  # The name of that class
    marks: frozenset[str]  # Fields that tell its JSON from that of the others
    files: tuple[str, ...]  # What its JSON may be called; the first that is there counts
    uses: tuple[str, ...]  # Sections whose result it makes use of

    @property
    def kind(self) -> type:
        """The class of its result, imported when it is first asked for."""
        return cast(type, getattr(importlib.import_module(self.module), self.result))


def _in(module: str, marks: str, *, uses: str = "", file: str = "") -> dict[str, str]:
    return {"module": f"headscope.{module}", "marks": marks, "uses": uses, "file": file}


@dataclass(frozen=True, kw_only=True)
class Sections:
    """One result for each section, in the order in which a report runs them; None where not run."""

    validate: ValidationResult | None = field(
        default=None,
        metadata=_in("models.validation", "passed layers tolerance", file="validation.json"),
    )
    explain: ExplainResult | None = field(
        default=None, metadata=_in("analyses.explain.result", "steps sentence patterns")
    )
    classify: ClassifyResult | None = field(
        default=None, metadata=_in("analyses.classify.result", "heads corpus thresholds")
    )
    rank: RankResult | None = field(
        default=None, metadata=_in("analyses.rank.result", "heads layers controls")
    )
    spectrum: SpectrumResult | None = field(
        default=None,
        metadata=_in("analyses.spectrum.result", "heads sampling verdict", uses="classify"),
    )
    depth: DepthResult | None = field(
        default=None, metadata=_in("analyses.depth.result", "variants protected decomposition")
    )
    flow: FlowResult | None = field(
        default=None, metadata=_in("analyses.flow.result", "sentences spectra recovery")
    )
    transfer: TransferResult | None = field(
        default=None, metadata=_in("analyses.transfer.result", "cells baselines searched")
    )
    linear: LinearResult | None = field(
        default=None, metadata=_in("analyses.linear.result", "memory correlations stored")
    )
    symmetric: SymmetricResult | None = field(
        default=None, metadata=_in("analyses.symmetric.result", "whole equivalent_heads sets")
    )
    prune: PruneResult | None = field(
        default=None, metadata=_in("pruning.result", "curves baseline task", uses="classify")
    )
    insights: InsightsResult | None = field(
        default=None,
        metadata=_in(
            "reports.result",
            "insights",
            uses="classify rank spectrum depth flow transfer linear symmetric prune",
        ),
    )

    @property
    def sections(self) -> dict[str, Any]:
        """The results that there are, by section, in order."""
        results = {name: getattr(self, name) for name in SECTIONS}
        return {name: result for name, result in results.items() if result is not None}


_SECTIONS = {
    f.name: Section(
        name=f.name,
        module=f.metadata["module"],
        result=str(f.type).removesuffix(" | None"),
        marks=frozenset(f.metadata["marks"].split()),
        files=(f"{f.name}.json", *f.metadata["file"].split()),
        uses=tuple(f.metadata["uses"].split()),
    )
    for f in dataclasses.fields(Sections)
}
SECTIONS = tuple(_SECTIONS)  # Their names, in order.


def section_of(name: str) -> Section:
    """Return what is known of a section; KeyError if there is none of that name."""
    return _SECTIONS[name]
