"""From sums over sentences to values: errors, coherence and correlations of heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.analyses.linear.measure import (
    EVERY,
    FITS,
    KINDS,
    STORED,
    Correlated,
    LinearSums,
    correlate,
)
from headscope.analyses.linear.result import (
    HeadCorrelation,
    HeadLinear,
    LinearError,
    StoredKeys,
)
from headscope.core.accumulator import Array
from headscope.models.loaded import LoadedModel
from headscope.stats.effects import Effect
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import resampled
from headscope.stats.statistics import finite, t_half_width

#: What each correlation is of: the number, the form and fit of the error, what is held constant.
PAIRS = (
    ("coherence", "linear", "scaled", ""),
    ("coherence_centred", "linear", "scaled", ""),
    ("entropy", "linear", "scaled", ""),
    ("coherence", "linear", "scaled", "entropy"),
    ("coherence", "linear", "error", ""),
    ("coherence", "linear", "fitted", ""),
    ("coherence", "first-order", "scaled", ""),
    ("coherence", "elu-normalised", "scaled", ""),
)


_SOFTMAX = STORED.index("softmax")


@dataclass(frozen=True)
class Described:
    """The numbers of every head, in the order of the sites, and their resamples over sentences."""

    #: (1 + resamples, heads, forms). By fit; the first row is the text itself.
    errors: dict[str, Array]
    keys: Array  # (1 + resamples, heads, kinds). Coherence.
    stored: Array  # (1 + resamples, heads, kinds, readouts). Errors of reading back.
    entropy: Array  # (1 + resamples, heads). Of the pattern.
    scales: Array  # (heads, forms). The best scale.
    rows: Array  # (heads,). Row of each head's site.
    known: bool  # Whether there is more than one sentence, so that intervals are known.

    @classmethod
    def of(cls, loaded: LoadedModel, sums: LinearSums, seed: int) -> Described:
        """Resample the sentences of a text."""
        counts = _counts(sums.sentences, seed)
        sites = [site for site in loaded.sites if site.n_heads]
        by_row = [sums.by_row[site.row] for site in sites]
        errors = [site.errors(sums.tokens, counts) for site in by_row]
        return cls(
            errors={fit: np.concatenate([e[fit] for e in errors], axis=1) for fit in FITS},
            keys=np.concatenate([_mean(counts, site.coherence) for site in by_row], axis=1),
            stored=np.concatenate([_mean(counts, site.stored) for site in by_row], axis=1),
            entropy=np.concatenate([_mean(counts, site.entropy) for site in by_row], axis=1),
            scales=np.concatenate([site.scales() for site in by_row]),
            rows=np.repeat([site.row for site in sites], [site.n_heads for site in sites]),
            known=sums.sentences > 1,
        )

    def estimated(self, values: Array) -> Estimate:
        """Make a number of the text's own value and those of its resamples, (1 + resamples,)."""
        own = finite(float(values[0]))
        if own is None or not self.known or not np.isfinite(values[1:]).any():
            return Estimate(own)
        low, high = np.nanquantile(values[1:], (0.025, 0.975)).tolist()
        return Estimate(own, finite(low), finite(high))

    def heads(self, loaded: LoadedModel, alone: list[Effect] | None) -> Iterator[HeadLinear]:
        """Describe every head."""
        places = [(site, head) for site in loaded.sites for head in site.head_ids]
        for i, (site, head) in enumerate(places):
            yield HeadLinear(
                site.layer,
                head,
                errors=tuple(self._errors(i)),
                coherence=self.estimated(self.keys[:, i, 0]),
                coherence_centred=self.estimated(self.keys[:, i, 1]),
                entropy=self.estimated(self.entropy[:, i]),
                stored=self._stored(self.stored[:, i, 0]),
                stored_centred=self._stored(self.stored[:, i, 1]),
                alone=None if alone is None else alone[i],
                stack=site.stack,
            )

    def means(self) -> tuple[LinearError, ...]:
        """Describe every form, mean over heads."""
        by_fit = {fit: _over_heads(np.swapaxes(self.errors[fit], 1, 2)) for fit in FITS}
        return tuple(self._error(form, by_fit, i) for i, form in enumerate(EVERY))

    def mean_stored(self, kind: str) -> StoredKeys:
        """Describe what is read back by own keys, mean over heads."""
        values = self.stored[:, :, KINDS.index(kind)]
        return self._stored(_over_heads(np.swapaxes(values, 1, 2)))

    def mean_coherence(self, kind: str) -> float | None:
        """Return the coherence, mean over heads."""
        return finite(float(_over_heads(self.keys[:1, :, KINDS.index(kind)])[0]))

    def correlations(self) -> tuple[HeadCorrelation, ...]:
        """Correlate what heads' keys are like with what their linear form errs by."""
        numbers = {
            "coherence": self.keys[0, :, 0],
            "coherence_centred": self.keys[0, :, 1],
            "entropy": self.entropy[0],
        }
        found = []
        for number, form, fit, given in PAIRS:
            error = self.errors[fit][0, :, EVERY.index(form)]
            held = numbers[given] if given else None
            pearson, spearman = (
                correlate(numbers[number], error, self.rows, ranks=ranks, given=held)
                for ranks in (False, True)
            )
            found.append(
                HeadCorrelation(
                    number=number,
                    form=form,
                    fit=fit,
                    given=given,
                    heads=len(self.rows),
                    pearson=_correlated(pearson),
                    spearman=_correlated(spearman),
                    p=finite(spearman.p),
                    layers=spearman.layers,
                )
            )
        return tuple(found)

    def over_random(self, random: Sequence[LinearSums], seed: int) -> Estimate:
        """Hold how much worse the linear sum reads back than a softmax against random weights.

        The interval is the bootstrap's over sentences, wider by what another draw of random
        weights may differ from the mean of these by (Student's t): a model with random weights
        must not lie outside.
        """
        theirs = np.stack([_reading_back(sums, seed) for sums in random])
        mine = _over_heads(self.stored[:, :, 0, 0] - self.stored[:, :, 0, _SOFTMAX])
        gap = self.estimated(mine - theirs.mean(0))
        if gap.value is None or gap.low is None or gap.high is None or len(random) < 2:
            return Estimate(gap.value)
        n = len(random)
        error = float(theirs[:, 0].std(ddof=1)) * np.sqrt(1 + 1 / n)
        drawn = float(t_half_width(error, np.array(n)))
        low, high = (float(np.hypot(gap.value - end, drawn)) for end in (gap.low, gap.high))
        return Estimate(gap.value, gap.value - low, gap.value + high)

    def _errors(self, head: int) -> Iterator[LinearError]:
        by_fit = {fit: self.errors[fit][:, head] for fit in FITS}
        for i, form in enumerate(EVERY):
            scale = finite(float(self.scales[head, i]))
            yield dataclasses.replace(self._error(form, by_fit, i), scale=scale)

    def _error(self, form: str, by_fit: dict[str, Array], i: int) -> LinearError:
        """Describe one form, the i-th of (1 + resamples, forms)."""
        error, scaled, fitted = (self.estimated(by_fit[fit][:, i]) for fit in FITS)
        return LinearError(form, error, scaled, fitted)

    def _stored(self, values: Array) -> StoredKeys:
        """Name the readouts of (1 + resamples, readouts)."""
        by_name = {name: values[:, i] for i, name in enumerate(STORED)}
        return StoredKeys(
            linear=self.estimated(by_name["scaled-sum"]),
            least_squares=self.estimated(by_name["least-squares"]),
            softmax=self.estimated(by_name["softmax"]),
            softmax_own=self.estimated(by_name["softmax-own"]),
            difference=self.estimated(by_name["scaled-sum"] - by_name["softmax"]),
            difference_own=self.estimated(by_name["scaled-sum"] - by_name["softmax-own"]),
        )


def _counts(n: int, seed: int) -> Array:
    """Say how often each of n sentences counts: once each, then in every resample."""
    # ``resampled`` hands a metric the counts that every metric of a task gets.
    drawn = resampled(lambda _, counts: counts, {"x": np.zeros(n)}, seed=seed)
    return np.concatenate([np.ones((1, n)), drawn])


def _reading_back(sums: LinearSums, seed: int) -> Array:
    """Return what the linear sum errs by more than a softmax, mean over heads, (1 + resamples,)."""
    counts = _counts(sums.sentences, seed)
    stored = [_mean(counts, site.stored[:, :, 0]) for site in sums.by_row.values()]
    return _over_heads(
        np.concatenate([errors[..., 0] - errors[..., _SOFTMAX] for errors in stored], axis=1)
    )


def _mean(counts: Array, values: Array) -> Array:
    """Mean over sentences of (sentences, ...) for each resample; sentences of NaN are left out."""
    there = np.isfinite(values)
    flat = np.where(there, values, 0.0).reshape(len(values), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (counts @ flat) / (counts @ there.reshape(len(values), -1))
    return np.asarray(mean.reshape(-1, *values.shape[1:]))


def _over_heads(values: Array) -> Array:
    """Mean over heads of (..., heads), of those that have a number."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(there, values, 0.0).sum(-1) / there.sum(-1))


def _correlated(found: Correlated) -> Estimate:
    return Estimate(finite(found.value), finite(found.low), finite(found.high))
