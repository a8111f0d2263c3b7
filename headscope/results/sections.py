"""The sections of a report: THE list. One line each says name, result class, order and marks.

From the name of a section follows where everything else about it lives: its function in
``headscope.pipeline``, its view in ``headscope.show``, its facts in ``headscope.verdicts.diff``,
its table in a config file, its page in the docs. tests/unit/test_registry.py holds every section
against that.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

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
    """What is known of a section without measuring anything."""

    name: str  # Of the section, its command and its table in a config file
    kind: type  # Class of its result
    marks: frozenset[str]  # Fields that tell its JSON from that of the others
    #: What its JSON may be called in a folder; the first that is there counts.
    files: tuple[str, ...]
    uses: tuple[str, ...] = ()  # Sections whose result it makes use of


def _told_by(*marks: str, also: tuple[str, ...] = (), uses: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"marks": frozenset(marks), "also": also, "uses": uses}


@dataclass(frozen=True, kw_only=True)
class Sections:
    """One result for each section, in the order in which a report runs them; None where not run."""

    #: What the command of that name found.
    validate: ValidationResult | None = field(
        default=None, metadata=_told_by("passed", "layers", "tolerance", also=("validation.json",))
    )
    explain: ExplainResult | None = field(
        default=None, metadata=_told_by("steps", "sentence", "patterns")
    )
    classify: ClassifyResult | None = field(
        default=None, metadata=_told_by("heads", "corpus", "thresholds")
    )
    rank: RankResult | None = field(default=None, metadata=_told_by("heads", "layers", "controls"))
    spectrum: SpectrumResult | None = field(
        default=None, metadata=_told_by("heads", "sampling", "verdict", uses=("classify",))
    )
    depth: DepthResult | None = field(
        default=None, metadata=_told_by("variants", "protected", "decomposition")
    )
    flow: FlowResult | None = field(
        default=None, metadata=_told_by("sentences", "spectra", "recovery")
    )
    #: The same.
    transfer: TransferResult | None = field(
        default=None, metadata=_told_by("cells", "baselines", "searched")
    )
    linear: LinearResult | None = field(
        default=None, metadata=_told_by("memory", "correlations", "stored")
    )
    symmetric: SymmetricResult | None = field(
        default=None, metadata=_told_by("whole", "equivalent_heads", "sets")
    )
    prune: PruneResult | None = field(
        default=None, metadata=_told_by("curves", "baseline", "task", uses=("classify",))
    )
    insights: InsightsResult | None = field(
        default=None,
        metadata=_told_by(
            "insights",
            uses=(
                *("classify", "rank", "spectrum", "depth", "flow", "transfer", "linear"),
                *("symmetric", "prune"),
            ),
        ),
    )

    @property
    def sections(self) -> dict[str, Any]:
        """The results that there are, by section, in order."""
        found = {name: getattr(self, name) for name in SECTIONS}
        return {name: result for name, result in found.items() if result is not None}


def _read() -> dict[str, Section]:
    kinds = typing.get_type_hints(Sections)
    return {
        f.name: Section(
            name=f.name,
            kind=typing.get_args(kinds[f.name])[0],
            marks=f.metadata["marks"],
            files=(f"{f.name}.json", *f.metadata["also"]),
            uses=f.metadata["uses"],
        )
        for f in dataclasses.fields(Sections)
    }


_SECTIONS = _read()
#: Their names, in order.
SECTIONS = tuple(_SECTIONS)


def section_of(name: str) -> Section:
    """Return what is known of a section."""
    return _SECTIONS[name]
