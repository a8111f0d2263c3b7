"""Intervals of what is repeated with several seeds on the same examples.

References
----------
Satterthwaite 1946, Biometrics Bulletin 2 (degrees of freedom of a sum of variances); Scheffé 1959,
The Analysis of Variance, chapter 7 (two crossed random factors); Newcombe 1998, Statistics in
Medicine 17 (difference of two shares, method 10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from headscope.measures.accumulator import Array
from headscope.measures.rounding import above
from headscope.measures.statistics import wilson

__all__ = ["Interval", "crossed", "share_difference", "spread_ratio", "naive_bayes"]

#: An estimate with the ends of its 95% interval; None where these are unknown.
Interval = tuple[float, float | None, float | None]


def crossed(values: Array, floor: float = 1.0) -> Interval:
    """Return a mean over seeds and examples, whose interval allows for other ones of both.

    Shapes: ``values`` (seeds, examples).
    """
    seeds, examples = values.shape
    mean = float(values.mean())
    if seeds < 2 or examples < 2:
        return mean, None, None
    by_seed, by_example = values.mean(axis=1), values.mean(axis=0)
    rest = values - by_seed[:, None] - by_example + mean
    free = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    squares = np.array(
        [
            examples * np.square(by_seed - mean).sum(),
            seeds * np.square(by_example - mean).sum(),
            np.square(rest).sum(),
        ]
    )
    means = squares / free / values.size
    variance = max(means[0] + means[1] - means[2], means[0], means[1])
    spread = float((np.square(means) / free).sum())
    free_of_sum = variance**2 / spread if spread > 0 else float(seeds - 1)
    error = max(float(np.sqrt(variance)), floor / examples)
    half = float(stats.t.ppf(0.975, max(free_of_sum, 1.0))) * error
    return mean, mean - half, mean + half


def spread_ratio(ours: ArrayLike, theirs: ArrayLike, floor: float = 0.0) -> Interval | None:
    """Return the ratio of two standard deviations over seeds, with the F interval.

    Exact for normal values. None where either has fewer than two values or no spread. No deviation
    is taken to be below ``floor``, what one example more would add: runs that agree on all
    examples that were seen may differ on others.
    """
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if min(len(a), len(b)) < 2:
        return None
    # What a spread leaves by rounding is none.
    spreads = (float(x.std(ddof=1)) if above(x.max(), x.min()) else 0.0 for x in (a, b))
    mine, other = (max(spread, floor) for spread in spreads)
    if not mine or not other:
        return None
    small, large = np.sqrt(stats.f.ppf((0.025, 0.975), len(a) - 1, len(b) - 1))
    return mine / other, mine / other / float(large), mine / other / float(small)


def share_difference(hits: int, trials: int, others: int, other_trials: int) -> Interval:
    """Return hits / trials - others / other_trials with Newcombe's interval from Wilson's."""
    p, q = hits / trials, others / other_trials
    (p_low, p_high), (q_low, q_high) = (
        tuple(map(float, wilson(n, of))) for n, of in ((hits, trials), (others, other_trials))
    )
    low = p - q - np.hypot(p - p_low, q_high - q)
    high = p - q + np.hypot(p_high - p, q - q_low)
    return p - q, float(low), float(high)


def naive_bayes(
    train: Sequence[Sequence[str]], labels: Sequence[int], test: Sequence[Sequence[str]]
) -> Array:
    """Predict classes from the words that a text holds, by multinomial naive Bayes.

    Manning, Raghavan & Schütze 2008, Introduction to Information Retrieval, section 13.2.

    Shapes: returns (test,).
    """
    classes = max(labels) + 1
    counts = [Counter[str]() for _ in range(classes)]
    for words, label in zip(train, labels, strict=True):
        counts[label].update(words)
    vocabulary = {word: i for i, word in enumerate(sorted(set().union(*counts)))}
    table = np.ones((classes, len(vocabulary)))
    for label, found in enumerate(counts):
        for word, n in found.items():
            table[label, vocabulary[word]] += n
    log_likelihood = np.log(table / table.sum(axis=1, keepdims=True))
    shares = np.bincount(labels, minlength=classes) / len(labels)
    with np.errstate(divide="ignore"):
        prior = np.log(shares)  # a class that was never seen is never predicted
    known = ([vocabulary[word] for word in words if word in vocabulary] for words in test)
    scores = [prior + log_likelihood[:, places].sum(axis=1) for places in known]
    return np.array([int(np.argmax(score)) for score in scores])
