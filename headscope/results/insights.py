"""The scoreboard of ``headscope insights``: claims, what was measured, verdicts, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.results.compared import Compare
from headscope.results.measured import Measured

if TYPE_CHECKING:
    import pandas

__all__ = ["VERDICTS", "Insight", "InsightPart", "InsightsResult", "KeptRoles"]

#: Every verdict that there is. "not measured": there are numbers, but an interval is unknown.
VERDICTS = ("holds", "does not hold", "mixed", "not applicable", "not measured", "not measured yet")


@dataclass(frozen=True)
class InsightPart:
    """One part of a claim, decided by itself."""

    name: str  # What the part says
    #: One of :data:`VERDICTS` that is not "not applicable", or "open": the interval holds the
    #: threshold.
    verdict: str
    measured: str  # The numbers, with their intervals


@dataclass(frozen=True)
class Insight:
    """One claim and what this model says to it."""

    number: int  # 0 to 10, as the source articles count
    claim: str  # What they say
    verdict: Annotated[str, Compare()]  # One of :data:`VERDICTS`
    measured: str  # One sentence each; empty where nothing was measured.
    control: str
    rule: str  # What decides, with its thresholds
    values: dict[str, Any]  # The numbers behind the sentences
    #: What the verdict is made of; those that are "not measured yet" do not count so far.
    parts: tuple[InsightPart, ...] = ()


@dataclass(frozen=True)
class KeptRoles:
    """The model with only the heads of some roles, against as many heads drawn at random."""

    roles: tuple[str, ...]  # The roles that were kept
    kept: tuple[tuple[int, ...], ...]  # (layer, head): The heads that have one of them
    n_heads: int  # Heads of the model
    classified_on: str  # Two texts that share no sentence.
    measured_on: str
    examples: int  # That the metric was taken on
    metric: str  # Name of what was measured
    higher_is_better: bool  # False for a loss
    baseline: float  # Of the whole model
    value: float | None  # With the kept heads only; None where all heads, or none, have such a role
    #: 95% interval of value minus baseline, paired over examples; None where it is unknown (a
    #: single example).
    difference_ci: tuple[float, ...] | None
    random: tuple[float, ...]  # The metric of each random set of as many heads
    #: Examples that were not measured, as heads had been classified on a sentence of theirs.
    left_out: int = 0
    #: How many different sets have as many heads in every layer as the kept ones: random sets are
    #: drawn of these (2**53 stands for more). None in results of earlier versions, which drew from
    #: all heads of the model alike.
    sets: int | None = None


@dataclass(frozen=True)
class InsightsResult(Measured):
    """The claims of the source articles, each with its verdict for one model."""

    insights: Annotated[tuple[Insight, ...], Compare(where="insight {0.number}")]
    thresholds: dict[str, Any]  # The values of :class:`headscope.InsightThresholds` that were used.
    kept_roles: KeptRoles | None = None  # What claim 2 was decided on.

    def __getitem__(self, number: int) -> Insight:
        """Return the insight of that number."""
        for insight in self.insights:
            if insight.number == number:
                return insight
        raise KeyError(f"there is no insight {number}")

    def to_frame(self) -> pandas.DataFrame:
        """One row per claim, the sentences only (pandas)."""
        import pandas as pd

        columns = ("number", "claim", "verdict", "measured", "control", "rule")
        rows = ([getattr(found, name) for name in columns] for found in self.insights)
        return pd.DataFrame(rows, columns=columns)
