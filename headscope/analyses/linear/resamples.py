"""The numbers of ``linear`` with their intervals: what other sentences would have given.

:class:`Resamples` makes the fields of the result from a ``LinearSums``, which holds what was
measured of every head, sentence by sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
from headscope.analyses.linear.stored_keys import READOUTS
from headscope.core.accumulator import Array
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import resampled
from headscope.stats.paired_change import resampled_estimate
from headscope.stats.statistics import FEWEST_DRAWS, finite, jackknife, ratio, t_half_width


class Correlation(NamedTuple):
    """A property of heads, and the error of a form that it is correlated with."""

    number: str  # The property, by its name in the result
    form: str
    fit: str = "scaled"  # The form at its best scale, or its ``error`` as it is
    fixed: str | None = None  # A property that is held constant


#: What is correlated; the first is what the claim is decided by.
CORRELATIONS = (
    Correlation("coherence", "linear"),
    Correlation("coherence_centred", "linear"),
    Correlation("entropy", "linear"),
    Correlation("coherence", "linear", fixed="entropy"),
    Correlation("coherence", "linear", fit="error"),
    Correlation("coherence", "first-order"),
    Correlation("coherence", "elu-normalised"),
)


class Resamples:
    """Every number of every head, for the text itself and for other choices of its sentences.

    Means over sentences have a bootstrap: the first axis of their arrays is 1 + resamples, the text
    itself first. Errors of forms, whose scales and means are fitted to the sentences, have a
    jackknife: the text without one sentence, for each of them. ``seed`` draws the bootstrap.
    """

    def __init__(self, sums: LinearSums, seed: int) -> None:
        n = len(sums.tokens)
        # ``resampled`` hands a metric how often each example was drawn; only that is needed.
        drawn_counts = resampled(lambda _, counts: counts, {"x": np.zeros(n)}, seed=seed)
        #: How often each sentence counts, (1 + resamples, sentences).
        self._counts = np.concatenate([np.ones((1, n)), drawn_counts])
        self._sentences_with_pairs = int((sums.tokens > 1).sum())  # Of two tokens or more
        #: Errors of forms, by fit: (heads, forms), without each sentence (sentences, heads, forms).
        self.errors = sums.errors()
        #: Properties of heads by their names in the result, (1 + resamples, heads).
        self.numbers = {
            "coherence": _mean_over_sentences(self._counts, sums.coherence),
            "coherence_centred": _mean_over_sentences(self._counts, sums.coherence_centred),
            "entropy": _mean_over_sentences(self._counts, sums.entropy),
        }
        #: Errors of reading back, (1 + resamples, heads, readouts).
        self.stored = _mean_over_sentences(self._counts, sums.stored)
        self.scales = sums.scales()  # (heads, forms)
        self.rows = sums.rows  # The layer of each head, as the row of its site: (heads,)

    def estimate(self, values: Array) -> Estimate:
        """Make an estimate from the text's value and those of its resamples, (1 + resamples,)."""
        value = finite(float(values[0]))
        if value is None:
            return UNKNOWN
        return resampled_estimate(value, values[1:], self._sentences_with_pairs)

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
        """Describe every form, of one head or (None) as the mean of all."""
        errors = self._estimates("error", head)
        scaled_errors = self._estimates("scaled", head)
        linear_errors = []
        for i, form in enumerate(FORMS_AND_EVEN):
            scale = None if head is None else finite(float(self.scales[head, i]))
            linear_errors.append(LinearError(form, errors[i], scaled_errors[i], scale))
        return tuple(linear_errors)

    def _estimates(self, fit: str, head: int | None) -> list[Estimate]:
        """Return the error of every form, of one head or (None) as the mean of all.

        Only forms whose output is an average have an interval (:data:`AVERAGES`).
        """
        whole_text, without_each = self.errors[fit]
        values = _head_or_mean(whole_text, head, axis=0)  # (forms,)
        low, high = jackknife(values, _head_or_mean(without_each, head, axis=1))
        estimates = []
        for i, form in enumerate(FORMS_AND_EVEN):
            estimate = Estimate(finite(float(values[i])))
            if form in AVERAGES:
                estimate = Estimate(estimate.value, finite(float(low[i])), finite(float(high[i])))
            estimates.append(estimate)
        return estimates

    def stored_keys(self, head: int | None = None) -> StoredKeys:
        """Describe the errors of reading back, of one head or (None) as the mean of all."""
        by_readout = _head_or_mean(self.stored, head, axis=1).T  # in the order of READOUTS
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
        """Return a property of the text itself, mean over heads."""
        return finite(float(_head_or_mean(self.numbers[name][0], axis=0)))

    def correlations(self) -> Iterator[HeadCorrelation]:
        """Correlate properties of heads' keys with the errors of their linear forms."""
        properties = {
            name: values[0] for name, values in self.numbers.items()
        }  # of the text itself
        for correlation in CORRELATIONS:
            errors, _ = self.errors[correlation.fit]
            x = properties[correlation.number]
            y = errors[:, FORMS_AND_EVEN.index(correlation.form)]
            fixed = None if correlation.fixed is None else properties[correlation.fixed]
            pearson = correlate(x, y, self.rows, ranks=False, fixed=fixed)
            spearman = correlate(x, y, self.rows, ranks=True, fixed=fixed)
            yield HeadCorrelation(
                number=correlation.number,
                form=correlation.form,
                fit=correlation.fit,
                given=correlation.fixed or "",
                heads=len(self.rows),
                pearson=pearson.estimate,
                spearman=spearman.estimate,
                p=spearman.p,
                layers=spearman.layers,
            )

    def over_random(self, random: Sequence[LinearSums]) -> Estimate:
        """Compare how much more a linear sum errs than a softmax: this model less random weights.

        ``random`` has what was measured of each draw of random weights. The bootstrap interval over
        sentences is widened by how far another draw may lie from the mean of these (Student's t),
        so that random weights would lie inside.
        """
        excesses = []
        for sums in random:
            stored = _mean_over_sentences(self._counts, sums.stored)
            excesses.append(_linear_minus_softmax(stored))
        excess_of_draws = np.stack(excesses)  # (draws, 1 + resamples)
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
    """Subtract a softmax's errors of reading back from a linear sum's; mean over heads.

    ``stored`` (1 + resamples, heads, readouts); returns (1 + resamples,).
    """
    linear = stored[..., READOUTS.index("scaled-sum")]
    softmax = stored[..., READOUTS.index("softmax")]
    return _head_or_mean(linear - softmax, axis=1)


def _mean_over_sentences(counts: Array, values: Array) -> Array:
    """Average values (sentences, ...) for each resample of the sentences; NaN is left out.

    ``counts`` (resamples, sentences) says how often each counts; returns (resamples, ...).
    """
    known = np.isfinite(values)
    flat_values = np.where(known, values, 0.0).reshape(len(values), -1)
    flat_known = known.reshape(len(values), -1)
    mean = ratio(counts @ flat_values, counts @ flat_known)
    return mean.reshape(-1, *values.shape[1:])


def _head_or_mean(values: Array, head: int | None = None, *, axis: int) -> Array:
    """Take one head along an axis; for None the mean of the heads that have a number."""
    if head is not None:
        return np.asarray(values.take(head, axis))
    known = np.isfinite(values)
    return ratio(np.where(known, values, 0.0).sum(axis), known.sum(axis))
