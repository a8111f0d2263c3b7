"""How far each head looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from headscope.core.heads import Head
from headscope.core.options import Usual
from headscope.session.entry import entry
from headscope.session.measured import Measured
from headscope.session.options import RunOptions, Text
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import head_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ReachOptions(RunOptions):
    """Measure how far each head looks, beside evenly spread attention."""

    examples: ClassVar[tuple[str, ...]] = ("headscope reach demo",)

    text: Annotated[Text | None, Usual(help="One sentence a line.")] = None
    limit: Annotated[int | None, Usual(help="Only the first lines.", at_least=1)] = None


@dataclass(frozen=True)
class HeadReach(Head):
    """How far one head looks."""

    #: Tokens between a query and what it attends to, mean over queries; ``diff`` compares it.
    distance: Annotated[float, Compare("reach")]
    even: float  # The same if attention were spread evenly over the sentence.


@dataclass(frozen=True, repr=False)  # what Python and notebooks show comes with the base
class ReachResult(Measured):
    """How far every head looks."""

    reaches: Annotated[tuple[HeadReach, ...], Compare(where="{0.name}")]  # By layer and head.
    tokens: Annotated[int, Setting()]  # Queries of one head.

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        return head_frame(vars(head) for head in self.reaches)


reach = entry(ReachOptions, ReachResult, "headscope.analyses.reach.run")
