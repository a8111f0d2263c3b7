"""What ``headscope symmetric`` measured, as values.

An ``Estimate`` is a value with its 95% interval; ``Compare`` names a field for comparisons of two
results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import EffectTask, columns, head_frame
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class DrawnEffect:
    """What a change does to the output where something in it is drawn at random."""

    #: Of the embedding to the unchanged model's, mean over lines and draws; both how lines and how
    #: draws differ enters the interval (Student's t).
    cosine: Annotated[Estimate, Compare(better=1)]
    cosine_std: float | None  # Standard deviation between draws; None for a single one
    draws: int  # How often it was drawn; 1 where nothing is random
    metric: float | None = None  # The task's value, mean of the draws; None without a task
    metric_std: float | None = None  # Its standard deviation between draws; None for a single one


@dataclass(frozen=True)
class HeadSymmetry(Head):
    """How asymmetric the scores of one head are."""

    #: ||S - S^T||_F / ||S||_F of its scores S over visible keys, without the means of rows; mean
    #: over lines. 0 is symmetric, 2 antisymmetric.
    asymmetry: Annotated[Estimate, Compare("asymmetry of scores")]


@dataclass(frozen=True)
class RandomHeads:
    """Sets of heads drawn at random; the same sets are made symmetric, and removed."""

    heads: int  # How many in each set
    symmetric: Annotated[DrawnEffect, Compare("symmetric ")]
    removed: Annotated[DrawnEffect, Compare("removed ")]


@dataclass(frozen=True, repr=False)
class SymmetricResult(Measured):
    """What making attention scores symmetric does to a model's output."""

    #: By layer and head.
    heads: Annotated[tuple[HeadSymmetry, ...], Compare(where="{0.name}")]
    #: All heads at once: ``symmetric``, ``pairs``, ``noise``, ``shuffled``, ``even``,
    #: ``removed``.
    whole: Annotated[dict[str, DrawnEffect], Compare("{key} ", where="all heads")]
    #: The task's value with all scores symmetric minus the model's own, with its paired interval;
    #: None without a task.
    whole_difference: Annotated[Estimate | None, Compare("change of the metric", where="all heads")]
    #: Some heads at once, by their number.
    sets: Annotated[tuple[RandomHeads, ...], Compare(where="{0.heads} random heads")]
    #: How many random heads one has to remove to move the output as far as symmetric scores in all
    #: heads do, on a line between the numbers that were measured; None where all do not suffice.
    equivalent_heads: Annotated[Estimate, Compare("as many heads removed", where="all heads")]
    causal: bool  # Whether a mask hides later tokens: the scores are made symmetric before it.
    #: Stacks of the model that are not measured: no text alone shows them, and cross-attention has
    #: no square of scores.
    left_out: tuple[str, ...]
    #: What was read: name, sha256, lines, skipped, tokens.
    text: Annotated[dict[str, Any], Setting(keys=("lines", "tokens"))]
    task: EffectTask | None = None  # What the model was measured by, besides the cosine.

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        names = ("layer", "head", "stack", "asymmetry")
        return head_frame(columns(head, *names) for head in self.heads)

    def sets_frame(self) -> pandas.DataFrame:
        """One row per change of all heads, and of each number of random heads (pandas)."""
        import pandas as pd

        effects: list[tuple[int, str, DrawnEffect]] = []
        for random_heads in self.sets:
            effects.append((random_heads.heads, "symmetric", random_heads.symmetric))
            effects.append((random_heads.heads, "removed", random_heads.removed))
        for change, effect_of_all in self.whole.items():
            effects.append((len(self.heads), change, effect_of_all))
        names = ("cosine", "cosine_std", "draws", "metric", "metric_std")
        return pd.DataFrame(
            {"heads": heads, "change": change, **columns(effect, *names)}
            for heads, change, effect in effects
        )
