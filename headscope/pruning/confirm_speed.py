"""How many times as fast a cut model is, with an interval, from runs that had no say in it.

Whole and cut model run in adjacent pairs, first one and then the other. The estimate is the median
of the ratio whole / cut over pairs: both runs of a pair see the same machine, and a run that was
interrupted spoils one pair. Pairs that follow each other still resemble each other, so the interval
draws blocks of five adjacent pairs (Kuensch 1989, The Annals of Statistics 17), the last followed
by the first. Few blocks give too narrow an interval; so each end lies as far out among the
resamples as Student's quantile for that many blocks, times sqrt(m / (m - 1)), does in a normal
distribution, as in :mod:`headscope.stats.paired_change`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from headscope.core.errors import InputError
from headscope.core.rounding import EPS
from headscope.pruning.latency_result import Confirmed
from headscope.pruning.turns import Clock, Pass, in_turns

#: Pairs of runs: at least; at most, and seconds after which no more are started.
FEWEST, _MOST, _SECONDS = 30, 120, 20.0
_BLOCK = 5  # Adjacent pairs that are drawn together
_RESAMPLES = 2000


def confirm_speed(
    whole: Sequence[Pass],
    cut: Sequence[Pass],
    *,
    target: float | None = None,
    weights: Sequence[float] | None = None,
    fewest: int = FEWEST,
    seconds: float = _SECONDS,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    did: Callable[[int], object] = lambda pairs: None,
) -> Confirmed:
    """Time two models in turns and say how many times as fast the second one is.

    Parameters
    ----------
    whole, cut : sequence of callable
        What runs each model on each batch, such as :func:`~headscope.pruning.turns.passes` yields:
        models in torch, graphs, or anything else that can be called. Both have the same batches.
    target : float, optional
        The ratio that was asked for: reached if the lower end of the interval is at least that.
    weights : sequence of float, optional
        What a pass over each batch counts in a run's time (1 each by default).
    fewest : int
        Pairs of runs at least, 30 or more. More are made until ``seconds`` are over, 120 at most.
    seed : int
        Of the resamples.
    clock, did : callable
        The clock, for tests; is told how many pairs are done.

    Raises
    ------
    InputError
        If fewer than 30 pairs are asked for.
    """
    if fewest < FEWEST:
        raise InputError(f"A speed is confirmed by {FEWEST} pairs of runs or more, not {fewest}.")
    most = max(fewest, _MOST)
    spent = in_turns([whole, cut], fewest=fewest, most=most, seconds=seconds, clock=clock, did=did)
    runs = 1e3 * spent @ np.array([1.0] * len(whole) if weights is None else weights)
    ratio, low, high = ratio_interval(runs[:, 0], runs[:, 1], seed=seed)
    ms_whole, ms_cut = np.median(runs, axis=0).tolist()
    return Confirmed(
        ratio=ratio,
        low=low,
        high=high,
        ms_whole=ms_whole,
        ms_cut=ms_cut,
        target=target,
        reached=target is not None and low is not None and low >= target,
        runs=len(runs),
        threads=torch.get_num_threads(),
    )


def ratio_interval(
    whole: ArrayLike, cut: ArrayLike, *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return the median ratio of adjacent times, in their order, with its 95% interval.

    Both ends are None where no resample differs from another but by rounding: a clock with too few
    digits says nothing about noise.
    """
    ratios = np.log(np.asarray(whole, dtype=float) / np.asarray(cut, dtype=float))
    n, estimate = len(ratios), math.exp(np.median(ratios))
    blocks = math.ceil(n / _BLOCK)
    starts = np.random.default_rng(abs(seed)).integers(n, size=(_RESAMPLES, blocks, 1))
    places = ((starts + np.arange(_BLOCK)) % n).reshape(_RESAMPLES, -1)[:, :n]
    values = np.median(ratios[places], axis=1)
    if np.ptp(values) <= EPS:
        return estimate, None, None
    quantile = -stdtrit(blocks - 1, 0.025) * math.sqrt(blocks / (blocks - 1))
    tail = float(ndtr(-quantile))
    low, high = np.exp(np.quantile(values, [tail, 1 - tail])).tolist()
    return estimate, low, high
