"""The results of a report's sections: a class with a field for each, by the section's name.

Its fields follow the table of commands, without importing the classes of all results. Type checkers
and editors see them written out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.commands import COMMANDS, SECTIONS

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

REPORT = "report.json"  # The file that holds all sections


class _Results:
    """One result for each section, in the order in which a report runs them; None if not run."""

    @property
    def sections(self) -> dict[str, Any]:
        """The results of the sections that were run, by section."""
        results = {name: getattr(self, name) for name in SECTIONS}
        return {name: result for name, result in results.items() if result is not None}


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class Sections(_Results):
        """The fields that are made below at run time."""

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

else:
    Sections = dataclasses.make_dataclass(
        "Sections",
        [(name, f"{COMMANDS[name].result_class} | None", None) for name in SECTIONS],
        bases=(_Results,),
        namespace={"__doc__": _Results.__doc__, "__module__": __name__},
        frozen=True,
        kw_only=True,
    )


def marks_of(name: str) -> set[str]:
    """Return the fields by which a section's JSON is recognised.

    Every result of the section has them all; of another section's, half of them at most.
    """
    missing = dataclasses.MISSING
    fields = dataclasses.fields(COMMANDS[name].result)
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return required - {"schema", "provenance", "validation"}
