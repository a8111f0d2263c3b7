"""The results of a report's sections: a class with a field for each, by the section's name.

A *section* is the result of one command, and carries its name; the table ``COMMANDS`` has the class
of every command's result, ``SECTIONS`` the names of those that a report runs. The fields of
:class:`Sections` are made from that table, so that the classes of all results need not be imported;
type checkers and editors see them written out.
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
        """The results of the sections that were run, by the section's name."""
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
        # (name, type, default): the type as text, ``FlowResult | None``. Whoever needs the class
        # itself looks it up in ``COMMANDS``.
        [(name, f"{COMMANDS[name].result_class} | None", None) for name in SECTIONS],
        bases=(_Results,),
        namespace={"__doc__": _Results.__doc__, "__module__": __name__},
        frozen=True,
        kw_only=True,
    )


def marks_of(section: str) -> set[str]:
    """Return the fields by which a JSON object is recognised as a section's result.

    They are the fields without a default that not every result has. Every result of the section has
    all of them; a result of another section has half of them at most.
    """
    missing = dataclasses.MISSING
    fields = dataclasses.fields(COMMANDS[section].result)
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return required - {"schema", "provenance", "validation"}
