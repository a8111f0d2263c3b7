"""The numbers of ``linear`` with their intervals: what other sentences would have given.

From the sums of :class:`~headscope.analyses.linear.measure.LinearSums` to the fields of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headscope.analyses.linear.correlation import correlate
from headscope.analyses.linear.forms import AVERAGES, FORMS_AND_EVEN
from headscope.analyses.linear.measure import LinearSums
from headscope.analyses.linear.result import (
    HeadCorrelation,
    HeadLinear,
    LinearError,
    StoredKeys,
)
from headscope.analyses.linear.stored_keys import STORED
from headscope.core.accumulator import Array
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import resampled
from headscope.stats.paired_change import resampled_estimate
from headscope.stats.statistics import FEWEST_DRAWS, finite, jackknife, ratio, t_half_width

#: What each correlation is of: the number, the form and fit of the error, what is held constant.
PAIRS = (
    ("coherence", "linear", "scaled", ""),
    ("coherence_centred", "linear", "scaled", ""),
    ("entropy", "linear", "scaled", ""),
    ("coherence", "linear", "scaled", "entropy"),
    ("coherence", "linear", "error", ""),
    ("coherence", "first-order", "scaled", ""),
    ("coherence", "elu-normalised", "scaled", ""),
)


class Resamples:
    """Every number of every head, for the text itself and for other choices of its sentences.

    Means over sentences have a bootstrap: the first axis of their arrays is 1 + resamples, the text
    itself first. Errors of forms, whose scales and means are fitted to the sentences, have a
    jackknife: all sentences but one.
    """

    def __init__(self, sums: LinearSums, seed: int) -> None:
        n = len(sums.tokens)
        # The "metric" here is the identity: it returns the counts of each bootstrap resample.
        drawn = resampled(lambda _, counts: counts, {"x": np.zeros(n)}, seed=seed)
        #: How often each sentence counts, (1 + resamples, sentences).
        self._counts = np.concatenate([np.ones((1, n)), drawn])
        self._lines = int((sums.tokens > 1).sum())
        #: Of forms, by fit: (heads, forms), and without each sentence (sentences, heads, forms).
        self.errors = sums.errors()
        #: Numbers of heads by their names in the result, (1 + resamples, heads).
        self.numbers = {
            "coherence": _mean(self._counts, sums.coherence),
            "coherence_centred": _mean(self._counts, sums.coherence_centred),
            "entropy": _mean(self._counts, sums.entropy),
        }
        #: Errors of reading back, (1 + resamples, heads, readouts).
        self.stored = _mean(self._counts, sums.stored)
        self.scales = sums.scales()
        self.rows = sums.rows

    def estimate(self, values: Array) -> Estimate:
        """Make an estimate from the text's value and those of its resamples, (1 + resamples,)."""
        value = finite(float(values[0]))
        return UNKNOWN if value is None else resampled_estimate(value, values[1:], self._lines)

    def heads(self, loaded: LoadedModel) -> Iterator[HeadLinear]:
        """Describe every head."""
        i = 0
        for site in loaded.sites:
            for head in site.head_ids:
                yield HeadLinear(
                    site.layer,
                    head,
                    errors=self.form_errors(i),
                    coherence=self.estimate(self.numbers["coherence"][:, i]),
                    coherence_centred=self.estimate(self.numbers["coherence_centred"][:, i]),
                    entropy=self.estimate(self.numbers["entropy"][:, i]),
                    stored=self.stored_keys(i),
                    stack=site.stack,
                )
                i += 1

    def form_errors(self, head: int | None = None) -> tuple[LinearError, ...]:
        """Describe every form, of one head or as the mean of all."""
        errors = self._estimates("error", head)
        scaled_errors = self._estimates("scaled", head)
        linear_errors = []
        for i, form in enumerate(FORMS_AND_EVEN):
            scale = None if head is None else finite(float(self.scales[head, i]))
            linear_errors.append(LinearError(form, errors[i], scaled_errors[i], scale))
        return tuple(linear_errors)

    def _estimates(self, fit: str, head: int | None) -> list[Estimate]:
        """Return the error of every form, of one head or as the mean of all.

        Only forms whose output is an average have an interval (:data:`AVERAGES`).
        """
        of_all, without_each = self.errors[fit]
        values = _one_or_mean(of_all, head, axis=0)
        low, high = jackknife(values, _one_or_mean(without_each, head, axis=1))
        estimates = []
        for i, form in enumerate(FORMS_AND_EVEN):
            estimate = Estimate(finite(float(values[i])))
            if form in AVERAGES:
                estimate = Estimate(estimate.value, finite(float(low[i])), finite(float(high[i])))
            estimates.append(estimate)
        return estimates

    def stored_keys(self, head: int | None = None) -> StoredKeys:
        """Describe the errors of reading back, of one head or as the mean of all."""
        by_readout = _one_or_mean(self.stored, head, axis=1).T  # in the order of STORED
        linear, least_squares, softmax, softmax_own = by_readout
        return StoredKeys(
            linear=self.estimate(linear),
            least_squares=self.estimate(least_squares),
            softmax=self.estimate(softmax),
            softmax_own=self.estimate(softmax_own),
            difference=self.estimate(linear - softmax),
            difference_own=self.estimate(linear - softmax_own),
        )

    def mean_number(self, name: str) -> float | None:
        """Return one of the numbers, mean over heads."""
        return finite(float(_one_or_mean(self.numbers[name][0], axis=0)))

    def correlations(self) -> Iterator[HeadCorrelation]:
        """Correlate properties of heads' keys with the errors of their linear forms."""
        numbers = {name: values[0] for name, values in self.numbers.items()}
        for number, form, fit, fixed in PAIRS:
            errors, _ = self.errors[fit]
            x = numbers[number]
            y = errors[:, FORMS_AND_EVEN.index(form)]
            fixed_values = numbers.get(fixed)
            pearson = correlate(x, y, self.rows, ranks=False, fixed=fixed_values)
            spearman = correlate(x, y, self.rows, ranks=True, fixed=fixed_values)
            yield HeadCorrelation(
                number=number,
                form=form,
                fit=fit,
                given=fixed,
                heads=len(self.rows),
                pearson=pearson.estimate,
                spearman=spearman.estimate,
                p=spearman.p,
                layers=spearman.layers,
            )

    def over_random(self, random: Sequence[LinearSums]) -> Estimate:
        """Return how much more the linear sum errs beyond a softmax than with random weights.

        The bootstrap interval over sentences is widened by how far another draw of random weights
        may lie from the mean of these (Student's t), so that random weights would lie inside.
        """
        excess_of_draws = np.stack(
            [_linear_minus_softmax(_mean(self._counts, sums.stored)) for sums in random]
        )
        gap = self.estimate(_linear_minus_softmax(self.stored) - excess_of_draws.mean(0))
        if gap.value is None or gap.low is None or gap.high is None:
            return Estimate(gap.value)
        n = len(random)
        error = float(excess_of_draws[:, 0].std(ddof=1)) * np.sqrt(1 + 1 / n)
        half_width = float(t_half_width(error, n, FEWEST_DRAWS))
        below = float(np.hypot(gap.value - gap.low, half_width))
        above = float(np.hypot(gap.value - gap.high, half_width))
        return Estimate(gap.value, gap.value - below, gap.value + above)


def _linear_minus_softmax(stored: Array) -> Array:
    """Subtract errors of reading back (1 + resamples, heads, readouts); mean over heads."""
    linear = stored[..., STORED.index("scaled-sum")]
    softmax = stored[..., STORED.index("softmax")]
    return _one_or_mean(linear - softmax, axis=1)


def _mean(counts: Array, values: Array) -> Array:
    """Average (sentences, ...) over sentences for each resample; NaN is left out."""
    known = np.isfinite(values)
    flat = np.where(known, values, 0.0).reshape(len(values), -1)
    mean = ratio(counts @ flat, counts @ known.reshape(len(values), -1))
    return mean.reshape(-1, *values.shape[1:])


def _one_or_mean(values: Array, head: int | None = None, *, axis: int) -> Array:
    """Take one head along an axis, or the mean of the heads that have a number."""
    if head is not None:
        return np.asarray(values.take(head, axis))
    known = np.isfinite(values)
    return ratio(np.where(known, values, 0.0).sum(axis), known.sum(axis))
