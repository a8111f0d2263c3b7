"""The sections of a report: THE list, with the class of each result and the order of a run.

From the name of a section follows where everything else about it lives: its function
``headscope.NAME``, its view in the module ``view`` of its room, its table in a config file,
its page in the docs. tests/unit/test_registry.py holds every section against that.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import headscope

if TYPE_CHECKING:
    from headscope import (
        AttributeResult,
        ClassifyResult,
        DepthResult,
        ExplainResult,
        FlowResult,
        InsightsResult,
        LinearResult,
        PruneResult,
        RankResult,
        SpectrumResult,
        SymmetricResult,
        TransferResult,
        ValidationResult,
    )

REPORT = "report.json"  # The file that holds every section.


@dataclass(frozen=True, kw_only=True)
class Sections:
    """One result for each section, in the order in which a report runs them; None where not run."""

    validate: ValidationResult | None = None
    explain: ExplainResult | None = None
    classify: ClassifyResult | None = None
    attribute: AttributeResult | None = None
    rank: RankResult | None = None
    spectrum: SpectrumResult | None = None
    depth: DepthResult | None = None
    flow: FlowResult | None = None
    transfer: TransferResult | None = None
    linear: LinearResult | None = None
    symmetric: SymmetricResult | None = None
    prune: PruneResult | None = None
    insights: InsightsResult | None = None

    @property
    def sections(self) -> dict[str, Any]:
        """The results that there are, by section, in order."""
        results = {name: getattr(self, name) for name in SECTIONS}
        return {name: result for name, result in results.items() if result is not None}


SECTIONS = tuple(field.name for field in dataclasses.fields(Sections))  # Their names, in order.
#: Sections whose result another makes use of.
_USES = {
    "attribute": "classify",
    "spectrum": "classify",
    "prune": "classify",
    "insights": "classify rank spectrum depth flow transfer linear symmetric prune",
}


@dataclass(frozen=True)
class Section:
    """What is known of a section without measuring anything."""

    name: str  # Of the section, its command and its table in a config file
    result: str  # The name of its result's class in ``headscope``
    uses: tuple[str, ...]  # Sections whose result it makes use of

    @property
    def kind(self) -> type:
        """The class of its result, imported when it is first asked for."""
        return cast(type, getattr(headscope, self.result))

    @property
    def marks(self) -> set[str]:
        """Required fields, of which the JSON of every other section has half at most."""
        none = dataclasses.MISSING
        fields = [
            f for f in dataclasses.fields(self.kind) if f.default is f.default_factory is none
        ]
        return {field.name for field in fields} - {"schema", "provenance", "validation"}


_SECTIONS = {
    field.name: Section(
        name=field.name,
        result=str(field.type).removesuffix(" | None"),
        uses=tuple(_USES.get(field.name, "").split()),
    )
    for field in dataclasses.fields(Sections)
}


def section_of(name: str) -> Section:
    """Return what is known of a section; KeyError if there is none of that name."""
    return _SECTIONS[name]
