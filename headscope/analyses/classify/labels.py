"""From sums to labelled heads: scores, intervals, tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads. Syntactic labels have a stricter rule of their own: ``syntactic.py``.

Of cross-attention, ``monotonic`` and ``anti_monotonic`` need an interval of the alignment that lies
wholly beyond the threshold, and weight behind it: a confidence well above that of uniform
attention. Without the second condition nearly even attention, whose largest weight creeps along
with the position, earns the role with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from headscope.analyses.classify.cross import FEWEST, CrossHeads
from headscope.analyses.classify.result import (
    AlignmentScore,
    HeadResult,
    Label,
    PositionalScore,
    RareScore,
    SharpnessScore,
    SwappedControl,
    SyntacticScore,
)
from headscope.analyses.classify.rows import LONG, OFFSETS, QueryMeans
from headscope.analyses.classify.sums import HeadMeasures, Rare
from headscope.analyses.classify.syntactic import KernelHits, SyntacticTest, judge_syntactic
from headscope.analyses.classify.thresholds import Thresholds
from headscope.core.accumulator import Array
from headscope.core.roles import primary_of, roles_of
from headscope.core.rounding import FRACTION, above, tied
from headscope.stats.statistics import (
    adjust,
    binomial_p,
    finite,
    normal_interval,
    normal_p,
    t_half_width,
    wilson,
)

Place = tuple[int, int]  # (layer, place among the heads of the layer)
#: What the heads of each layer are called: original indices, with gaps where heads were removed.
HeadIds = Sequence[Sequence[int]]

#: Pairs that the roles of cross-attention need; those of a few would earn them by luck.
MIN_PAIRS = 50
MIN_LONG = 50  # Sequences of LONG tokens or more that the broad role needs.


class RoleTest(Protocol):
    """All heads of a stack on one kind of role."""

    @property
    def field(self) -> str:
        """The field of a HeadResult that this fills; may be empty."""

    def score(self, place: Place) -> Any:
        """Return what it is filled with for one head."""

    def labels(self, place: Place) -> Iterator[Label]:
        """Yield what the head earns."""


def judge(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    head_ids: HeadIds,
    stack: str = "encoder",
    *,
    kernel: KernelHits | None = None,
    swapped: HeadMeasures | CrossHeads | None = None,
) -> tuple[HeadResult, ...]:
    """Turn the sums of a stack into one :class:`HeadResult` per head, by layer and head.

    ``kernel`` is what the heads' distance kernels hit of the trials in ``sums.syntactic``; only an
    encoder has syntactic and rare-word scores: the head of a word, and the rarest word, may stand
    where a decoder's query cannot look. ``swapped`` are the sums of cross-attention in which each
    target was given another pair's source.
    """
    means = sums if isinstance(sums, CrossHeads) else sums.profile
    exists = existing(means.sums.shape[:2], head_ids)
    tests: list[RoleTest]
    if isinstance(sums, CrossHeads):
        other = swapped if isinstance(swapped, CrossHeads) else None
        tests = [_Order(sums, other, exists, thresholds), _Sharp(sums, exists, thresholds)]
    else:
        tests = [_Positional(sums, exists, thresholds)]
        if kernel is not None:
            tests.append(_Syntactic(judge_syntactic(sums.syntactic, kernel, exists, thresholds)))
        if stack == "encoder":
            tests.append(_Rare(sums.rare, exists, thresholds))
    tests += _mean_tests(means, exists, thresholds, stack)
    values = means.means()
    results = []
    for layer, head in np.argwhere(exists).tolist():
        place = (layer, head)
        labels = tuple(label for test in tests for label in test.labels(place))
        roles = tuple(dict.fromkeys(label.role for label in labels))
        numbers = dict(zip(means.quantities, map(finite, values[place]), strict=True))
        numbers.pop("diagonal", None)  # stands beside the alignment
        fields = _EMPTY | numbers | {t.field: t.score(place) for t in tests if t.field}
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                stack=stack,
                primary=primary_of(roles),
                roles=roles,
                labels=labels,
                **fields,
            )
        )
    return tuple(results)


#: Fields of a HeadResult that not every stack fills.
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("positional", "rare", "punctuation_mass", "self_rate", "duplicate_rate")),
    **dict.fromkeys(("alignment", "sharpness", "cause", "prefix")),
    "syntactic": (),
}


def judge_swapped(
    sums: HeadMeasures, kernel: KernelHits, thresholds: Thresholds, head_ids: HeadIds
) -> SwappedControl:
    """Count the syntactic labels against other sentences' trees: false positives, all of them.

    ``kernel`` counts hits of the trials in ``sums.swapped``.
    """
    exists = existing(sums.positional.hits.shape[:2], head_ids)
    tests = judge_syntactic(sums.swapped, kernel, exists, thresholds)
    confirmed = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    return SwappedControl(int(confirmed.sum()), int(confirmed.any(axis=0).sum()))


def existing(shape: tuple[int, ...], head_ids: HeadIds) -> Array:
    """Which places of sums of this shape, (n_layers, n_heads), hold a head."""
    exists = np.zeros(shape, dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


class _Positional:
    """Best offset of every head, against looking at any content token at random."""

    field = "positional"

    def __init__(self, sums: HeadMeasures, exists: Array, thresholds: Thresholds) -> None:
        acc, self._thresholds = sums.positional, thresholds
        self.rates, self.masses = acc.rates(), acc.masses()
        self.best = np.nan_to_num(self.rates, nan=-1.0).argmax(axis=-1)
        self.defined = bool((acc.queries > 0).any())
        hits = np.take_along_axis(acc.hits, self.best[..., None], -1)[..., 0]
        queries = acc.queries[self.best]
        self.low, self.high = wilson(hits, queries)
        self.chance = float(acc.chance / acc.content) if acc.content else 0.0
        # The best of ten offsets is taken: Bonferroni within the head.
        p = np.minimum(1.0, len(OFFSETS) * binomial_p(hits, queries, self.chance))
        self.p = adjust(p, exists)

    def score(self, place: Place) -> PositionalScore:
        best = int(self.best[place])
        rates, masses = (
            {str(r): finite(value) for r, value in zip(OFFSETS, values[place], strict=True)}
            for values in (self.rates, self.masses)
        )
        return PositionalScore(
            score=finite(self.rates[place][best]),
            offset=OFFSETS[best] if self.defined else None,
            rates=rates,
            mass=masses,
            interval=(float(self.low[place]), float(self.high[place])),
            chance=self.chance if self.defined else None,
            p_adjusted=float(self.p[place]),
        )

    def labels(self, place: Place) -> Iterator[Label]:
        score, p = self.score(place), float(self.p[place])
        if score.score is None or score.chance is None or p > self._thresholds.q:
            return
        if score.score >= self._thresholds.positional and score.score > score.chance:
            rates = (score.score, score.chance)
            yield Label("positional", f"{score.offset:+d}", *rates, score.interval, p, "chance")


class _Syntactic:
    """The relations of every head; a head's labels come with the largest gain first."""

    field = "syntactic"

    def __init__(self, tests: Sequence[SyntacticTest]) -> None:
        self._tests = tests
        self._scores: dict[Place, tuple[SyntacticScore, ...]] = {}

    def score(self, place: Place) -> tuple[SyntacticScore, ...]:
        if place not in self._scores:
            self._scores[place] = tuple(test.score(place) for test in self._tests)
        return self._scores[place]

    def labels(self, place: Place) -> Iterator[Label]:
        scores = [(s, s.confirmed) for s in self.score(place) if s.labelled and s.confirmed]
        gains = tied([c.accuracy - c.baselines[c.strongest] for _, c in scores])
        for i in np.argsort(-gains, kind="stable").tolist():
            score, c = scores[i]
            detail, baseline = f"{score.relation} {score.direction}", c.baselines[c.strongest]
            yield Label(
                "syntactic", detail, c.accuracy, baseline, c.interval, c.p_adjusted, c.strongest
            )


class _Rare:
    """The rarest-word rate of every head against chance and uniform attention, by sentence."""

    field = "rare"

    def __init__(self, acc: Rare, exists: Array, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.queries, self.sentences = int(acc.queries), int(acc.sentences)
        n = max(self.queries, 1)
        self.rate, self.two_rarest = acc.hits / n, acc.two_hits / n
        self.chance, self.uniform = (acc.expected / n).tolist()
        self.null = acc.null_hits / (float(acc.null_queries) or 1.0)
        low, high = normal_interval(self.rate, acc.rate_errors())
        self.low, self.high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        over_chance, over_uniform = (
            normal_p(self.rate, error, baseline)
            for baseline, error in zip((self.chance, self.uniform), acc.gain_errors(), strict=True)
        )
        self.p = adjust(np.maximum(over_chance, over_uniform), exists)

    def score(self, place: Place) -> RareScore:
        defined = self.queries > 0
        return RareScore(
            rate=float(self.rate[place]) if defined else None,
            two_rarest=float(self.two_rarest[place]) if defined else None,
            chance=self.chance if defined else None,
            queries=self.queries,
            null=float(self.null[place]) if defined else None,
            uniform=self.uniform if defined else None,
            interval=(float(self.low[place]), float(self.high[place])),
            p_adjusted=float(self.p[place]),
            sentences=self.sentences,
        )

    def labels(self, place: Place) -> Iterator[Label]:
        score, t = self.score(place), self._thresholds
        baseline = max(self.chance, self.uniform)
        if score.rate is None or score.rate < t.rare or score.p_adjusted > t.q:
            return
        if score.rate > baseline and score.rate - self.uniform >= t.rare_gain - FRACTION:
            against = "uniform" if self.uniform >= self.chance else "chance"
            p = score.p_adjusted
            yield Label("rare", "", score.rate, baseline, score.interval, p, against)


def _alignment(sums: CrossHeads) -> tuple[Array, Array, Array]:
    """Mean alignment and its interval, within [-1, 1]; what is not known reaches both ends."""
    mean, error = sums.alignments()
    half = np.nan_to_num(t_half_width(error, sums.units), nan=np.inf, posinf=np.inf)
    centre = np.nan_to_num(mean)
    return mean, (centre - half).clip(-1.0, 1.0), (centre + half).clip(-1.0, 1.0)


class _Order:
    """The alignment of every cross-attention head, against no order at all."""

    field = "alignment"

    def __init__(
        self, sums: CrossHeads, swapped: CrossHeads | None, exists: Array, thresholds: Thresholds
    ) -> None:
        self._sums, self._thresholds = sums, thresholds
        self._mean, self._low, self._high = _alignment(sums)
        self._swapped = _alignment(swapped) if swapped is not None and int(swapped.units) else ()
        _, error = sums.alignments()
        # Either direction is a finding.
        both = 2 * normal_p(np.abs(self._mean), error, 0.0)
        self._p = adjust(np.nan_to_num(both, nan=1.0).clip(max=1.0), exists)
        self._diagonal = sums.mean("diagonal")
        self._gain = sums.mean("confidence") - sums.expected("confidence")

    def score(self, place: Place) -> AlignmentScore:
        # Mean, and the two ends of its interval.
        swapped = [float(part[place]) for part in self._swapped]
        pairs = int(self._sums.units)
        return AlignmentScore(
            score=finite(self._mean[place]),
            interval=(float(self._low[place]), float(self._high[place])),
            p_adjusted=float(self._p[place]),
            swapped=finite(swapped[0]) if swapped else None,
            swapped_interval=tuple(swapped[1:]),
            constant=float(self._sums.constant[place]) / pairs if pairs else None,
            diagonal=finite(self._diagonal[place]),
            diagonal_uniform=finite(self._sums.expected("diagonal")),
            pairs=pairs,
        )

    def labels(self, place: Place) -> Iterator[Label]:
        score, t = self.score(place), self._thresholds
        if score.score is None or score.pairs < MIN_PAIRS or score.p_adjusted > t.q:
            return
        low, high = score.interval
        if self._gain[place] >= t.monotonic_gain and max(low, -high) >= t.monotonic:
            role = "monotonic" if score.score > 0 else "anti_monotonic"
            yield Label(role, "", score.score, 0.0, score.interval, score.p_adjusted, "no order")


class _Sharp:
    """The confidence of every cross-attention head, against uniform attention."""

    field = "sharpness"

    def __init__(self, sums: CrossHeads, exists: Array, thresholds: Thresholds) -> None:
        self._sums, self._thresholds = sums, thresholds
        self._mean, error = sums.mean("confidence"), sums.error("confidence")
        width = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
        low, high = normal_interval(np.nan_to_num(self._mean), width)
        self._low, self._high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        self._uniform = sums.expected("confidence")
        self._p = adjust(normal_p(self._mean, error, self._uniform), exists)

    def score(self, place: Place) -> SharpnessScore:
        return SharpnessScore(
            confidence=finite(self._mean[place]),
            interval=(float(self._low[place]), float(self._high[place])),
            uniform=finite(self._uniform),
            p_adjusted=float(self._p[place]),
        )

    def labels(self, place: Place) -> Iterator[Label]:
        score, t = self.score(place), self._thresholds
        if score.confidence is None or score.uniform is None or self._sums.units < MIN_PAIRS:
            return
        if score.interval[0] >= max(t.sharp, score.uniform) and score.p_adjusted <= t.q:
            rates = (score.confidence, score.uniform)
            yield Label("sharp", "", *rates, score.interval, score.p_adjusted, "uniform")


class _MeanRule(NamedTuple):
    """A role for a mean over queries that is above a threshold and above uniform attention."""

    quantity: str
    threshold: str
    reach: bool  # Whether a mean equal to the threshold is enough


#: Rules of the roles that are no offset, relation or rare word, by role.
MEAN_RULES = {
    "special": _MeanRule("special_mass", "special", reach=False),
    "punctuation": _MeanRule("punctuation_mass", "punctuation", reach=False),
    "broad": _MeanRule("long_entropy", "broad_relative", reach=False),
    "self": _MeanRule("self_rate", "self", reach=True),
    "duplicate": _MeanRule("duplicate_rate", "duplicate", reach=True),
}


@dataclass(frozen=True)
class MeanTest:
    """All heads on one such role; arrays (n_layers, n_heads). The sequence is what was sampled."""

    role: str
    details: Array  # of str: what its labels say besides
    mean: Array
    interval: tuple[Array, Array]  # 95%
    p: Array  # adjusted, against the baseline
    baseline: float  # what the mean must beat
    against: str  # which baseline that is
    passed: Array

    field: ClassVar[str] = ""  # means are fields whether they are tested or not

    def score(self, place: Place) -> None:
        """There is nothing to add to the mean."""

    def labels(self, place: Place) -> Iterator[Label]:
        """Yield the label of a head that passes."""
        if self.passed[place]:
            low, high = (float(end[place]) for end in self.interval)
            detail, mean = str(self.details[place]), float(self.mean[place])
            p = float(self.p[place])
            yield Label(self.role, detail, mean, self.baseline, (low, high), p, self.against)


def _mean_tests(
    sums: QueryMeans, exists: Array, thresholds: Thresholds, stack: str
) -> Iterator[MeanTest]:
    """Test every head on every role that is a mean and that the corpus can show."""
    applying = {role.key for role in roles_of(stack)}
    for role, (quantity, threshold, reach) in MEAN_RULES.items():
        if role not in applying or (role == "broad" and int(sums.long_units) < MIN_LONG):
            continue
        mean, error = sums.mean(quantity), sums.error(quantity)
        least = baseline = float(getattr(thresholds, threshold))
        against = "threshold"  # where nothing is broader than uniform
        if quantity in sums.baselines:
            baseline, against = float(np.nan_to_num(sums.expected(quantity))), "uniform"
        p = adjust(normal_p(mean, error, baseline), exists)
        details = np.full(mean.shape, "")
        if role == "special":
            details = which_special(*(sums.mean(f"{e}_special_mass") for e in ("first", "last")))
        yield MeanTest(
            role=role,
            details=details,
            mean=mean,
            interval=normal_interval(mean, error),
            p=p,
            baseline=baseline,
            against=against,
            passed=(mean >= least if reach else mean > least)
            & (mean > baseline)
            & (p <= thresholds.q),
        )


def which_special(first: Array, last: Array) -> Array:
    """Say which special token has more of the mass: ``first`` or ``last``."""
    return np.where(above(first, last), "first", "last")


_NO_SPECIAL = {
    "encoder": "the model adds no special tokens",
    "decoder": "no token sees a special one before it",
}


def untestable(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    *,
    trees: bool = False,
    stack: str = "encoder",
) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    "Not tested" is not "no head has it". ``trees`` says whether the corpus has gold trees; of the
    thresholds only ``min_trials`` counts. Roles that do not apply to the stack are not among them.
    """
    reasons: dict[str, str | bool]
    if isinstance(sums, CrossHeads):
        pairs, long = int(sums.units), int(sums.long_units)
        few = pairs < MIN_PAIRS and (
            f"{pairs} pairs have {FEWEST} tokens or more on both sides, fewer than {MIN_PAIRS}"
        )
        reasons = {
            **dict.fromkeys(("monotonic", "anti_monotonic", "sharp"), few),
            "special": not sums.expected("special_mass") > 0 and "no source has a special token",
            "broad": long < MIN_LONG
            and f"{long} sources have {LONG} tokens or more, fewer than {MIN_LONG}",
        }
    else:
        profile, long = sums.profile, int(sums.profile.long_units)
        uniform = dict(zip(profile.baselines, profile.uniform.tolist(), strict=True))
        duplicates = profile.queries[profile.quantities.index("duplicate_rate")]
        reasons = {
            "positional": not sums.positional.queries.any() and "no sentence has two tokens",
            "syntactic": _no_relation(sums, thresholds, trees),
            "rare": int(sums.rare.sentences) < 2
            and "fewer than two sentences have a rarest word outside the 500 most frequent",
            "special": not uniform["special_mass"] and _NO_SPECIAL[stack],
            "punctuation": not uniform["punctuation_mass"] and "no word is punctuation",
            "broad": long < MIN_LONG
            and f"{long} sequences have {LONG} tokens or more, fewer than {MIN_LONG}",
            "duplicate": not duplicates and "no token occurs twice in a sentence",
        }
    applying = {role.key for role in roles_of(stack)}
    return {role: str(why) for role, why in reasons.items() if why and role in applying}


def _no_relation(sums: HeadMeasures, thresholds: Thresholds, trees: bool) -> str:
    if not trees:
        return "plain text has no gold trees (give a treebank)"
    trials: dict[tuple[str, str], list[int]] = {}
    for (half, *name), count in zip(
        sums.syntactic.relations.names, sums.syntactic.trials.tolist(), strict=True
    ):
        trials.setdefault((name[0], name[1]), [0, 0])[half] = count
    if any(min(counts) >= thresholds.min_trials for counts in trials.values()):
        return ""
    return f"no relation has {thresholds.min_trials} trials in each half of the corpus"
