"""What removing single heads does to a model's output, beside the heads' roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from headscope.results.compared import Compare, Setting

__all__ = ["CauseTest", "Causes", "Loss", "EstimateFit", "HeadCause"]


@dataclass(frozen=True)
class Loss:
    """How much worse the model's value gets."""

    #: In the unit of the metric; positive: worse.
    loss: Annotated[float, Compare("", interval="interval")]
    #: Its paired 95% interval over the same examples, and over the rotations of noise; None where
    #: it is unknown.
    interval: tuple[float, ...] | None
    #: The same at a level at which the intervals of all heads hold at once with 95% (Bonferroni);
    #: empty in files of earlier versions, and where it is unknown.
    all_heads: tuple[float, ...] = ()

    @property
    def above(self) -> bool:
        """Whether the whole interval lies above zero, all heads taken together."""
        ends = self.all_heads or self.interval
        return ends is not None and ends[0] > 0.0

    @property
    def below(self) -> bool:
        """Whether the whole interval lies below zero, all heads taken together."""
        ends = self.all_heads or self.interval
        return ends is not None and ends[1] < 0.0


@dataclass(frozen=True)
class HeadCause:
    """What happens when one head is taken out of an otherwise whole model.

    Where layers share one module (ALBERT), the head goes from all of them.
    """

    zero: Annotated[Loss, Compare("zero")]  # Nothing is left in its place
    mean: Annotated[Loss, Compare("mean")]  # Its mean output over other text is left in its place
    #: The head stays, and what it writes is taken away once more in a random direction: an
    #: intervention of the same size, token by token, that knows nothing of the head. The mean over
    #: several random rotations, whose spread is part of the intervals.
    noise: Annotated[Loss, Compare("noise")]
    #: Of ``zero`` less that of ``noise``, on the same examples.
    beyond_noise: Annotated[Loss, Compare("beyond noise")]
    #: What gradients at the whole model say that ``zero`` and ``mean`` would be.
    zero_estimate: float
    mean_estimate: float


@dataclass(frozen=True)
class CauseTest:
    """Whether heads with a role matter more than heads without it."""

    role: str  # Key of a role, or ``any``: at least one role
    removal: str  # ``zero``, ``mean`` or ``noise``: which loss is compared
    heads: int  # Heads with the role, and without.
    others: int
    #: Chance that a head with the role loses more than one without (ties half): 0.5 is no
    #: difference, and twice it less 1 is the rank-biserial correlation.
    superiority: Annotated[float, Compare("{0.role} against others", interval="interval")]
    #: Its 95% interval, bootstrap over the heads of both groups; empty with fewer than eight heads
    #: on a side.
    interval: tuple[float, ...]
    #: Two-sided, of ``superiority`` against labels dealt at random over all layers;
    #: Benjamini-Hochberg over the tests of this removal. They stand beside and decide nothing:
    #: heads of a layer are not independent.
    p_value: float
    p_adjusted: float
    #: Where 95% of the superiorities lie when as many heads get the role at random.
    placebo: tuple[float, ...]
    #: The superiority over pairs of heads of one layer; None where no layer has both kinds.
    within: float | None
    #: Where 95% of those lie when each layer's labels are dealt anew among its heads.
    within_placebo: tuple[float, ...]
    #: Two-sided p-value of ``within`` against these: (1 + as extreme) / (1 + deals);
    #: Benjamini-Hochberg over the tests of this removal.
    within_p: float | None
    within_p_adjusted: float | None = None
    #: ``costs more``, ``costs less`` or ``not told apart`` by ``within_p_adjusted``; ``not
    #: measured`` where no layer has both kinds.
    verdict: str = "not measured"


@dataclass(frozen=True)
class EstimateFit:
    """How well gradients rank the heads."""

    removal: str  # ``zero`` or ``mean``
    heads: int  # What is ranked
    #: Rank correlation of the estimate and the measured loss.
    spearman: Annotated[float, Compare("gradients' rank correlation", interval="interval")]
    #: Its 95% interval, bootstrap over heads; None where it is unknown.
    interval: tuple[float, ...] | None


@dataclass(frozen=True)
class Causes:
    """How single heads were removed and what that says of their roles."""

    task: Annotated[str, Setting("removal task")]  # What the model is measured by.
    metric: str
    data: str  # What the examples were read from
    #: Examples that losses are measured on; others, of which means and gradients were taken.
    examples: Annotated[int, Setting("removal examples")]
    calibration: int
    value: float  # The whole model's
    #: ``squared``: half the squared first-order change of the embedding; ``first-order``: of the
    #: labelled loss.
    estimate: str
    #: For any role and for each role that three heads have and three lack.
    tests: Annotated[tuple[CauseTest, ...], Compare(where="removed, {0.removal}")]
    #: Of both estimates.
    fits: Annotated[tuple[EstimateFit, ...], Compare(where="removed, {0.removal}")]
    seed: int  # Of halves, random directions and resamples
    notes: tuple[str, ...] = ()  # What makes the numbers doubtful
    rotations: int = 1  # Random rotations that the noise of each head is the mean of

    def tests_of(self, removal: str) -> tuple[CauseTest, ...]:
        """Return the tests of one removal."""
        return tuple(test for test in self.tests if test.removal == removal)


def flat_cause(cause: HeadCause | None) -> dict[str, Any]:
    """Return what removing a head does in flat columns, empty for a head that was not removed."""
    row: dict[str, Any] = {}
    for name in ("zero", "mean", "noise", "beyond_noise"):
        effect = getattr(cause, name, None)
        low, high = (effect.interval if effect else None) or (None, None)
        least, most = (effect.all_heads if effect else ()) or (None, None)
        loss = effect.loss if effect else None
        row |= {f"{name}_loss": loss, f"{name}_low": low, f"{name}_high": high}
        row |= {f"{name}_all_low": least, f"{name}_all_high": most}
    return row | {x: getattr(cause, x, None) for x in ("zero_estimate", "mean_estimate")}
