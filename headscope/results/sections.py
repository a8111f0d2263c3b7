"""The sections of a report: THE list. A field each says name, result class, order and marks.

From the name of a section follows where everything else about it lives: its function in
``headscope.pipeline``, its view in ``headscope.show``, its table in a config file, its page in the
docs. tests/unit/test_registry.py holds every section against that.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headscope.results.classify import ClassifyResult
    from headscope.results.depth import DepthResult
    from headscope.results.explain import ExplainResult
    from headscope.results.flow import FlowResult
    from headscope.results.insights import InsightsResult
    from headscope.results.linear import LinearResult
    from headscope.results.prune import PruneResult
    from headscope.results.rank import RankResult
    from headscope.results.spectrum import SpectrumResult
    from headscope.results.symmetric import SymmetricResult
    from headscope.results.transfer import TransferResult
    from headscope.results.validate import ValidationResult

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
        metadata=_in("results.validate", "passed layers tolerance", file="validation.json"),
    )
    explain: ExplainResult | None = field(
        default=None, metadata=_in("results.explain", "steps sentence patterns")
    )
    classify: ClassifyResult | None = field(
        default=None, metadata=_in("results.classify", "heads corpus thresholds")
    )
    rank: RankResult | None = field(
        default=None, metadata=_in("results.rank", "heads layers controls")
    )
    spectrum: SpectrumResult | None = field(
        default=None, metadata=_in("results.spectrum", "heads sampling verdict", uses="classify")
    )
    depth: DepthResult | None = field(
        default=None, metadata=_in("results.depth", "variants protected decomposition")
    )
    flow: FlowResult | None = field(
        default=None, metadata=_in("results.flow", "sentences spectra recovery")
    )
    transfer: TransferResult | None = field(
        default=None, metadata=_in("results.transfer", "cells baselines searched")
    )
    linear: LinearResult | None = field(
        default=None, metadata=_in("results.linear", "memory correlations stored")
    )
    symmetric: SymmetricResult | None = field(
        default=None, metadata=_in("results.symmetric", "whole equivalent_heads sets")
    )
    prune: PruneResult | None = field(
        default=None, metadata=_in("results.prune", "curves baseline task", uses="classify")
    )
    insights: InsightsResult | None = field(
        default=None,
        metadata=_in(
            "results.insights",
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
