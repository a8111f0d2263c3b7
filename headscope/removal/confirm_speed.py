"""How many times as fast a cut model is, and its milliseconds, from runs not used to choose it.

Whole and cut model run in adjacent pairs, first one and then the other. The estimate is the median
of the ratio whole / cut over pairs: both runs of a pair see the same machine, and a run that was
interrupted spoils one pair. Pairs that follow each other still resemble each other, so the interval
draws blocks of adjacent pairs (Kuensch 1989, The Annals of Statistics 17), the last followed by the
first. A block has four times as many pairs as the measured autocorrelation spans (Geyer 1992,
Statistical Science 7: initial positive sequence), and a sixth of all pairs at least. Few blocks
give too narrow an interval; so each end lies as far out among the resamples as Student's quantile
for that many blocks, times sqrt(m / (m - 1)), does in a normal distribution, as in
:mod:`headscope.stats.paired_change`. Where fewer than four blocks fit in, the interval is unknown.
What holds for longer than the whole run (a machine that is slow for minutes) no run can see.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS

FEWEST = 30  # Pairs of runs, at least
_BLOCKS = (4, 6)  # Blocks that all pairs are cut into: at least, and at most
_SPANS = 4  # Autocorrelation times that a block has
_RESAMPLES, _BEYOND = (2000, 10_000), 5  # At least and at most; beyond either end


def ratio_interval(
    whole: ArrayLike, cut: ArrayLike, *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return the median ratio of adjacent times, in their order, with its 95% interval."""
    return median_interval(np.asarray(whole, dtype=float) / np.asarray(cut, dtype=float), seed=seed)


def median_interval(
    values: ArrayLike, *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return the median of positive numbers measured one after the other, with its 95% interval.

    Both ends are None where the autocorrelation leaves fewer than four blocks, and where no
    resample differs from another but by rounding: a clock with too few digits says nothing about
    noise.
    """
    logs = np.log(np.asarray(values, dtype=float))
    n, estimate = len(logs), math.exp(np.median(logs))
    fewest, most = _BLOCKS
    block = math.ceil(max(_SPANS * autocorrelation_time(logs), n / most))
    blocks = math.ceil(n / block)
    if n / block < fewest:
        return estimate, None, None
    quantile = -stdtrit(blocks - 1, 0.025) * math.sqrt(blocks / (blocks - 1))
    tail = float(ndtr(-quantile))
    resamples = int(np.clip(_BEYOND / tail, *_RESAMPLES))
    starts = np.random.default_rng(abs(seed)).integers(n, size=(resamples, blocks, 1))
    places = ((starts + np.arange(block)) % n).reshape(resamples, -1)[:, :n]
    drawn = np.median(logs[places], axis=1)
    if np.ptp(drawn) <= EPS:
        return estimate, None, None
    low, high = np.exp(np.quantile(drawn, [tail, 1 - tail])).tolist()
    return estimate, low, high


def autocorrelation_time(values: Array) -> float:
    """Return over how many neighbours a series resembles itself: 1 + 2 sum of autocorrelations.

    Those of the signs about the median, which is what the median's error is made of; summed in
    pairs of lags as long as these are positive, none larger than the one before.
    """
    signs = np.sign(values - np.median(values))
    signs = signs - signs.mean()
    n = len(signs)
    square = float(signs @ signs)
    if square == 0.0:
        return 1.0
    lags = [float(signs[: n - lag] @ signs[lag:]) / square for lag in range(n // 2)]
    total, last = -1.0, math.inf
    for pair in zip(lags[::2], lags[1::2], strict=False):
        last = min(last, sum(pair))
        if last <= 0:
            break
        total += 2 * last
    return max(1.0, total)
