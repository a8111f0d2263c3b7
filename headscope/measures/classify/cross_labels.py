"""From sums to labelled cross-attention heads.

``monotonic`` and ``anti_monotonic`` need an interval of the alignment that lies wholly beyond the
threshold, and weight behind it: a confidence well above that of uniform attention. Without the
second condition nearly even attention, whose largest weight creeps along with the position, earns
the role with random weights. ``sharp`` needs an interval of the confidence above its threshold.
``special`` and ``broad`` follow the rules of self-attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.classify.cross import CROSS_QUANTITIES, CrossHeads
from headscope.measures.classify.labels import Place, existing
from headscope.measures.classify.mean_roles import MeanTest, mean_test, which_special
from headscope.measures.classify.testable import cross_broad_is_testable, cross_is_testable
from headscope.measures.classify.thresholds import Thresholds
from headscope.measures.statistics import (
    adjust,
    finite,
    normal_interval,
    normal_p,
    t_half_width,
)
from headscope.results import AlignmentScore, HeadResult, Label, SharpnessScore
from headscope.results.roles import primary_of

#: Fields of a HeadResult that these sums fill under the same names.
_FIELDS = [name for name in CROSS_QUANTITIES if name != "diagonal"]


def judge_cross(
    sums: CrossHeads,
    swapped: CrossHeads | None,
    thresholds: Thresholds,
    head_ids: Sequence[Sequence[int]],
) -> tuple[HeadResult, ...]:
    """Turn sums into one :class:`HeadResult` per cross-attention head, by layer and head.

    Parameters
    ----------
    sums : CrossHeads
        After the pass over the pairs.
    swapped : CrossHeads or None
        After a pass in which each target was given another pair's source; None without one.
    thresholds : Thresholds
        When a head earns a label.
    head_ids : sequence of sequence of int
        What the heads of each layer are called: their original indices.
    """
    exists = existing(sums.alignment.shape, head_ids)
    means = sums.means()
    order = _Order(sums, swapped, exists, thresholds)
    sharp = _Sharp(sums, exists, thresholds)
    tests = list(_mean_tests(sums, exists, thresholds))
    results = []
    for layer, head in np.argwhere(exists).tolist():
        place = (layer, head)
        labels = (
            *order.labels(place),
            *sharp.labels(place),
            *(test.label(place) for test in tests if test.passed[place]),
        )
        roles = tuple(label.role for label in labels)
        numbers = dict(zip(CROSS_QUANTITIES, map(finite, means[place]), strict=True))
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                stack="cross",
                primary=primary_of(roles),
                roles=roles,
                labels=labels,
                positional=None,
                syntactic=(),
                rare=None,
                punctuation_mass=None,
                self_rate=None,
                duplicate_rate=None,
                alignment=order.score(place),
                sharpness=sharp.score(place),
                cause=None,
                prefix=None,
                **{name: numbers[name] for name in _FIELDS},
            )
        )
    return tuple(results)


def _alignment(sums: CrossHeads) -> tuple[Array, Array, Array]:
    """Mean alignment and its interval, within [-1, 1]; what is not known reaches both ends."""
    mean, error = sums.alignments()
    half = np.nan_to_num(t_half_width(error, sums.pairs), nan=np.inf, posinf=np.inf)
    centre = np.nan_to_num(mean)
    return mean, (centre - half).clip(-1.0, 1.0), (centre + half).clip(-1.0, 1.0)


class _Order:
    """The alignment of every head, against no order at all."""

    def __init__(
        self, sums: CrossHeads, swapped: CrossHeads | None, exists: Array, thresholds: Thresholds
    ) -> None:
        self._sums, self._thresholds = sums, thresholds
        self._mean, self._low, self._high = _alignment(sums)
        known = swapped if swapped is not None and int(swapped.pairs) else None
        self._swapped = _alignment(known) if known is not None else None
        self._testable = cross_is_testable(sums)
        _, error = sums.alignments()
        # Either direction is a finding.
        both = 2 * normal_p(np.abs(self._mean), error, 0.0)
        self._p = adjust(np.nan_to_num(both, nan=1.0).clip(max=1.0), exists)
        means = sums.means()
        self._diagonal = means[..., CROSS_QUANTITIES.index("diagonal")]
        confidence = means[..., CROSS_QUANTITIES.index("confidence")]
        self._gain = confidence - sums.expected("confidence")

    def score(self, place: Place) -> AlignmentScore:
        # Mean, and the two ends of its interval.
        swapped = [float(part[place]) for part in self._swapped or ()]
        pairs = int(self._sums.pairs)
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
        found, t = self.score(place), self._thresholds
        if found.score is None or not self._testable or found.p_adjusted > t.q:
            return
        low, high = found.interval
        if self._gain[place] >= t.monotonic_gain and max(low, -high) >= t.monotonic:
            role = "monotonic" if found.score > 0 else "anti_monotonic"
            yield Label(role, "", found.score, 0.0, found.interval, found.p_adjusted, "no order")


class _Sharp:
    """The confidence of every head, against uniform attention."""

    def __init__(self, sums: CrossHeads, exists: Array, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        i = CROSS_QUANTITIES.index("confidence")
        self._mean, error = sums.means()[..., i], sums.standard_errors()[..., i]
        known = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
        low, high = normal_interval(np.nan_to_num(self._mean), known)
        self._low, self._high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        self._uniform = sums.expected("confidence")
        self._p = adjust(normal_p(self._mean, error, self._uniform), exists)
        self._testable = cross_is_testable(sums)

    def score(self, place: Place) -> SharpnessScore:
        return SharpnessScore(
            confidence=finite(self._mean[place]),
            interval=(float(self._low[place]), float(self._high[place])),
            uniform=finite(self._uniform),
            p_adjusted=float(self._p[place]),
        )

    def labels(self, place: Place) -> Iterator[Label]:
        found, t = self.score(place), self._thresholds
        if found.confidence is None or found.uniform is None or not self._testable:
            return
        if found.interval[0] >= max(t.sharp, found.uniform) and found.p_adjusted <= t.q:
            rates = (found.confidence, found.uniform)
            yield Label("sharp", "", *rates, found.interval, found.p_adjusted, "uniform")


def _mean_tests(sums: CrossHeads, exists: Array, thresholds: Thresholds) -> Iterator[MeanTest]:
    """Test the roles that cross-attention shares with self-attention, where they can be shown."""
    means, errors = sums.means(), sums.standard_errors()
    at = CROSS_QUANTITIES.index
    special = sums.expected("special_mass")
    if special > 0:
        i = at("special_mass")
        details = which_special(means[..., i + 1], means[..., i + 2])
        yield mean_test(
            "special",
            means[..., i],
            errors[..., i],
            least=thresholds.special,
            reach=False,
            uniform=special,
            q=thresholds.q,
            exists=exists,
            details=details,
        )
    if cross_broad_is_testable(sums):
        i = at("long_entropy")
        yield mean_test(
            "broad",
            means[..., i],
            errors[..., i],
            least=thresholds.broad_relative,
            reach=False,
            uniform=None,  # nothing is broader than uniform
            q=thresholds.q,
            exists=exists,
        )
