"""The sections of a report: THE list, with the class of each result and the order of a run.

From the name of a section follows where everything else about it lives: its function and the class
of its result in the package of its name, its view in the module ``view`` there, its table in a
config file, its page in the docs. tests/unit/test_registry.py holds every section against that.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headscope import InsightsResult  # whose module imports this one
    from headscope.analyses.attribute.result import AttributeResult
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.analyses.depth.result import DepthResult
    from headscope.analyses.explain.result import ExplainResult
    from headscope.analyses.flow.result import FlowResult
    from headscope.analyses.linear.result import LinearResult
    from headscope.analyses.rank.result import RankResult
    from headscope.analyses.spectrum.result import SpectrumResult
    from headscope.analyses.symmetric.result import SymmetricResult
    from headscope.analyses.transfer.result import TransferResult
    from headscope.models.certificate.validation import ValidationResult
    from headscope.pruning.result import PruneResult

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
    result: str  # The name of its result's class
    uses: tuple[str, ...]  # Sections whose result it makes use of

    @property
    def kind(self) -> type:
        """The class of its result, imported when it is first asked for."""
        return cast(type, getattr(_module_of(self.name), self.result))

    @property
    def marks(self) -> set[str]:
        """Required fields, of which the JSON of every other section has half at most."""
        none = dataclasses.MISSING
        fields = dataclasses.fields(self.kind)
        required = {f.name for f in fields if f.default is f.default_factory is none}
        return required - {"schema", "provenance", "validation"}


_SECTIONS = {
    field.name: Section(
        name=field.name,
        result=str(field.type).removesuffix(" | None"),
        uses=tuple(_USES.get(field.name, "").split()),
    )
    for field in dataclasses.fields(Sections)
}


#: Modules of the commands that measure and are no analysis.
_HOMES = {
    "prune": "pruning",
    "shrink": "shrinking",
    **dict.fromkeys(("report", "insights"), "reports.options"),
}


def _module_of(command: str) -> Any:
    home = _HOMES.get(command, f"analyses.{command}")
    return importlib.import_module(f"headscope.{home}")


def function_of(command: str) -> Any:
    """Return the public function of a command that measures; its ``options`` are a class."""
    return getattr(_module_of(command), command)


def section_of(name: str) -> Section:
    """Return what is known of a section; KeyError if there is none of that name."""
    return _SECTIONS[name]
