"""Result values of the optional measurements of ``classify``.

Repeated tokens, removed heads, patched heads, and pairs of words of a user's own. An
:class:`Estimate` is a number with its 95% interval, a :class:`JointEstimate` has a second, wider
one that holds for all heads at once. ``Compare`` and ``Setting`` mark what a comparison of two runs
compares, and what has to be equal for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from headscope.stats.compared import Compare, Setting
from headscope.stats.estimate import Estimate, JointEstimate


@dataclass(frozen=True)
class Match:
    """Mean weight on one token of the first copy."""

    score: float  # The weight where the tokens are repeated
    #: The weight at the same place where the first copy has other tokens: what position explains.
    control: float
    gain: Annotated[Estimate, Compare("")]  # ``score`` less ``control``; Student's t over sequences


@dataclass(frozen=True)
class PrefixScore:
    """Where the tokens of a second copy look in the first."""

    #: At the token after the earlier occurrence: the induction score.
    after: Annotated[Match, Compare("after")]
    same: Annotated[Match, Compare("same")]  # At the earlier occurrence itself
    #: At the token before it: the mirror image of ``after``.
    before: Annotated[Match, Compare("before")]


@dataclass(frozen=True)
class PrefixMatching:
    """What the scores were measured on."""

    sequences: int
    copy: int  # Random tokens of each of the two copies
    uniform: float  # Weight of evenly spread attention on one token
    seed: int  # Of the random tokens
    stack: str  # Whose heads have a score
    #: Largest gain of any head with random weights; empty without that control.
    random_weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadCause:
    """What removing one head alone costs the model.

    Where layers share one module (ALBERT), the head goes from all of them. Losses say how much
    worse the model's value gets, in the unit of the metric: positive is worse; paired 95% intervals
    over the same examples, and over the rotations of noise.
    """

    zero: Annotated[JointEstimate, Compare("zero")]  # Its output is zero
    mean: Annotated[JointEstimate, Compare("mean")]  # Its output is its mean over other text
    #: The head stays, and a randomly rotated copy of what it writes is subtracted: as large, token
    #: by token, but unrelated to the head. Mean over rotations; their spread is in the intervals.
    noise: Annotated[JointEstimate, Compare("noise")]
    beyond_noise: Annotated[JointEstimate, Compare("beyond noise")]  # ``zero`` less ``noise``
    zero_estimate: float  # ``zero`` estimated from gradients at the full model
    mean_estimate: float


@dataclass(frozen=True)
class CauseTest:
    """Whether heads with a role matter more than heads without it."""

    role: str  # Key of a role, or ``any``: at least one role
    removal: str  # ``zero``, ``mean`` or ``noise``: which loss is compared
    heads: int  # Heads with the role
    others: int  # Heads without
    #: Chance that a head with the role loses more than one without (ties half): 0.5 is no
    #: difference, and twice it less 1 is the rank-biserial correlation. Bootstrap over the heads of
    #: both groups; without interval below eight heads on a side.
    superiority: Annotated[Estimate, Compare("{0.role} against others")]
    #: Two-sided, of ``superiority`` against labels dealt at random over all layers;
    #: Benjamini-Hochberg over the tests of this removal. They decide nothing: heads of a layer are
    #: not independent.
    p_value: float
    p_adjusted: float
    placebo: tuple[float, ...]  # Where 95% of the superiorities of such labels lie
    within: float | None  # Superiority over pairs of one layer; None where no layer has both kinds
    #: Where 95% of ``within`` lie when each layer's labels are dealt anew among its heads.
    within_placebo: tuple[float, ...]
    #: Two-sided p of ``within`` against dealt labels: (1 + as extreme) / (1 + deals).
    within_p: float | None
    within_p_adjusted: float | None = None  # Benjamini-Hochberg over the tests of this removal
    #: ``costs more``, ``costs less`` or ``not told apart`` by ``within_p_adjusted``; ``not
    #: measured`` where no layer has both kinds.
    verdict: str = "not measured"


@dataclass(frozen=True)
class EstimateFit:
    """How well gradients rank the heads."""

    removal: str  # ``zero`` or ``mean``
    heads: int  # What is ranked
    #: Rank correlation of the estimate and the measured loss; bootstrap over heads.
    spearman: Annotated[Estimate, Compare("gradients' rank correlation")]


@dataclass(frozen=True)
class Causes:
    """How single heads were removed and what that says of their roles."""

    task: Annotated[str, Setting("removal task")]  # What the model is measured by.
    metric: str
    data: str  # What the examples were read from
    examples: Annotated[int, Setting("removal examples")]  # That losses are measured on.
    calibration: int  # Others, of which means and gradients were taken
    value: float  # The metric of the full model
    estimate: str  # ``squared`` (change of the embedding) or ``first-order`` (labelled loss)
    #: For any role and for each role that three heads have and three lack.
    tests: Annotated[tuple[CauseTest, ...], Compare(where="removed, {0.removal}")]
    fits: Annotated[tuple[EstimateFit, ...], Compare(where="removed, {0.removal}")]
    seed: int  # Of halves, random directions and resamples
    notes: tuple[str, ...] = ()  # What makes the numbers doubtful
    rotations: int = 1  # Random rotations that the noise of each head is the mean of

    def tests_of(self, removal: str) -> tuple[CauseTest, ...]:
        """Return the tests of one removal."""
        return tuple(test for test in self.tests if test.removal == removal)


@dataclass(frozen=True)
class PatchEffect:
    """What changes for one reader when a head looks where it would look in another sentence.

    Changes are shares of the change that all heads of the layer bring about together when they look
    as in the sentence in which the relation points elsewhere. Intervals: Student's t over pairs.
    """

    reader: str  # ``later heads`` (their q, k and v at the query word) or ``output`` (its state)
    elsewhere: float  # Mean share where the relation points elsewhere
    same: float  # Mean share where it points to the same place, with as many other words
    gain: Annotated[Estimate, Compare("patched")]  # ``elsewhere`` less ``same``
    #: ``gain`` less its mean over the other heads of the layer; unknown where there is none.
    over_others: Estimate
    #: Benjamini-Hochberg over heads, roles and readers: that ``gain`` and ``over_others`` exceed 0
    #: (the larger p of the two), and that ``gain`` lies below the smallest effect that counts.
    p_carries: float
    p_does_not: float
    verdict: Annotated[str, Compare("verdict")]  # As in :class:`HeadPatch`.
    layer_change: float  # What all heads of the layer change together, as a share of what is read


@dataclass(frozen=True)
class HeadPatch:
    """Whether a head carries one of its roles."""

    role: str  # ``positional`` or ``syntactic``
    detail: str  # The offset (``-1``), or the relation (``obj dep->head``)
    pairs: int  # Minimal pairs, each of another sentence
    #: Share of the pairs in whose changed sentence the head looks more at the new place than at the
    #: old one; Wilson interval.
    follows: Estimate
    others: int  # Heads of the layer that do not have this role
    effects: Annotated[tuple[PatchEffect, ...], Compare("{0.reader}, ")]
    #: ``carries`` if it does to one reader, ``does not`` if it does to none, else ``not told
    #: apart``; ``not measured`` with too few pairs.
    verdict: Annotated[str, Compare("verdict")]


@dataclass(frozen=True)
class Patching:
    """How heads were patched."""

    pairs: Annotated[int, Setting("pairs a head")]  # At most
    smallest: float  # The smallest effect that counts, as a share of the layer's
    seed: int  # Of the pairs
    notes: tuple[str, ...] = ()  # What was not patched, and why


@dataclass(frozen=True)
class UserPairs:
    """Pairs of words, labelled by a user, that heads were scored on."""

    stack: str  # Whose heads: ``encoder``, or ``cross`` for pairs of target and source
    labels: Annotated[tuple[str, ...], Setting("labels of pairs")]  # Each is a role
