"""How fast a model is compared with the whole one, on batches of the evaluation texts' lengths.

Another program, or a warm processor, changes the speed of a machine for seconds at a time. Models
that take turns see the same of it, so what is compared is always what ran side by side: adjacent
pairs of runs, first one and then the other. The estimate is the median of the ratio whole / cut
over pairs: a run that was interrupted spoils one pair. Pairs that follow each other still resemble
each other, so the interval draws blocks of adjacent pairs (Kuensch 1989, The Annals of Statistics
17), the last followed by the first. A block has four times as many pairs as the measured
autocorrelation spans (Geyer 1992, Statistical Science 7: initial positive sequence), and a sixth of
all pairs at least. Few blocks give too narrow an interval; so each end lies as far out among the
resamples as Student's quantile for that many blocks, times sqrt(m / (m - 1)), does in a normal
distribution, as in :mod:`headscope.stats.paired_change`. Where fewer than four blocks fit in, the
interval is unknown. What holds for longer than the whole run (a machine that is slow for minutes)
no run can see.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from headscope.artefacts.onnx_graph import RuntimeFile
from headscope.core.accumulator import Array
from headscope.core.rounding import EPS
from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import own_implementation, use_implementation
from headscope.stats.estimate import Estimate

FEWEST = 20  # Pairs of runs, at least
_BATCHES, _SECONDS = 3, 15.0  # Batches in a round; seconds of all rounds beyond the fewest
_BLOCKS = (4, 6)  # Blocks that all pairs are cut into: at least, and at most
_SPANS = 4  # Autocorrelation times that a block has
_RESAMPLES, _BEYOND = (2000, 10_000), 5  # At least and at most; beyond either end

Pass = Callable[[], object]  # One whole pass of one model over one batch
#: A model, what runs in its place (itself, or a file of a runtime), and its rows of tokens.
Side = tuple[LoadedModel, LoadedModel | RuntimeFile, Sequence[Row]]


class Times(NamedTuple):
    """How fast a model is."""

    speed: Estimate  # Time of the whole model in torch / its own, over pairs of runs
    ms: Estimate  # Milliseconds a text, at the machine's pace during these runs
    ms_of_whole: Estimate

    def of_whole(self) -> Times:
        """Return the times of the whole model in torch."""
        return Times(Estimate(1.0), self.ms_of_whole, self.ms_of_whole)


def times(
    full_model: Side, cut: Side | None, *, batch_size: int, seed: int, longer: int = 1
) -> Times:
    """Time a model in turns with the whole one, each on batches of its own tokens.

    Each runs as a user would run it: without gradients, with transformers' own attention (SDPA, or
    eager of a family that has no other), the pooling included, as it is in an exported graph.
    Without ``cut`` the whole model runs alone; ``longer`` multiplies the rounds. Where the
    machine's pace changes so much that the ratio has no interval, more rounds follow, up to four
    times the fewest.
    """
    parts = spread_places(full_model[2], batch_size)
    runs, texts = list[list[Pass]](), sum(map(len, parts))
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        for model, served, rows in (full_model, cut) if cut else (full_model,):
            if isinstance(served, LoadedModel):
                implementation = own_implementation(served.network)
                stack.enter_context(use_implementation(served.network, implementation))
            batches = (
                padded([rows[i] for i in part], model.pad_id, model.device) for part in parts
            )
            runs.append([partial(_pass, served, batch) for batch in batches])
        fewest, seconds = longer * FEWEST, longer * _SECONDS
        spent = in_turns(runs, fewest=fewest, most=4 * fewest, seconds=seconds).sum(axis=2)
        speed = median_interval(spent[:, 0] / spent[:, -1], seed=seed)
        while cut and speed.interval is None and len(spent) < 4 * fewest:
            again = in_turns(runs, fewest=fewest, most=fewest, seconds=0.0)
            spent = np.concatenate([spent, again.sum(axis=2)])
            speed = median_interval(spent[:, 0] / spent[:, -1], seed=seed)
    ms = [median_interval(1e3 * s / texts, seed=seed) for s in spent.T]
    return Times(speed, ms[-1], ms[0])


def in_turns(
    runs: Sequence[Sequence[Pass]],
    *,
    fewest: int,
    most: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Array:
    """Return the seconds of every pass, (rounds, models, batches).

    In each round every model runs each of its batches once, after one pass over its first batch
    that is not counted, since the model before has filled the caches with its own weights. The
    order of the models turns round from round to round. No round is started after ``seconds``, once
    there are ``fewest``; that never depends on which model was faster.
    """
    for run in runs:  # the first pass of a shape compiles products
        for each in run:
            each()
    rounds: list[list[list[float]]] = []
    start = clock()
    while len(rounds) < fewest or (len(rounds) < most and clock() - start < seconds):
        spent: list[list[float]] = [[] for _ in runs]
        order = range(len(runs)) if len(rounds) % 2 else reversed(range(len(runs)))
        for i in order:
            runs[i][0]()
            for each in runs[i]:
                began = clock()
                each()
                spent[i].append(clock() - began)
        rounds.append(spent)
    return np.array(rounds)


def spread_places(rows: Sequence[Row], size: int) -> list[list[int]]:
    """Return batches of text indices with the evaluation texts' own mixture of lengths.

    Texts are sorted by length and cut into batches, as programs that pad do; a few batches are
    taken evenly from the shortest to the longest.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    every = [order[first : first + size] for first in range(0, len(order), size)]
    full = [part for part in every if len(part) == size] or every
    middles = (np.arange(_BATCHES) + 0.5) / _BATCHES * len(full)
    return [full[i] for i in sorted({int(middle) for middle in middles})]


def _pass(served: LoadedModel | RuntimeFile, batch: Padded) -> None:
    if not isinstance(served, LoadedModel):
        served.run(*batch.inputs)
        return
    decoder: dict[str, Any] = {**batch.decoder_inputs}
    hidden, logits = served.run(*batch.inputs, **decoder)
    if logits is None:
        served.pooling.embed(hidden, batch.hidden_mask)
    if hidden.device.type == "cuda":  # devices that work on their own finish first
        torch.cuda.synchronize(hidden.device)
    elif hidden.device.type == "mps":
        torch.mps.synchronize()


def median_interval(values: ArrayLike, *, seed: int = 0) -> Estimate:
    """Return the median of positive numbers measured one after the other, with its 95% interval.

    It has no ends where the autocorrelation leaves fewer than four blocks, and where no
    resample differs from another but by rounding: a clock with too few digits says nothing about
    noise.
    """
    logs = np.log(np.asarray(values, dtype=float))
    n, estimate = len(logs), math.exp(np.median(logs))
    fewest, most = _BLOCKS
    block = math.ceil(max(_SPANS * autocorrelation_time(logs), n / most))
    blocks = math.ceil(n / block)
    if n / block < fewest:
        return Estimate(estimate)
    quantile = -stdtrit(blocks - 1, 0.025) * math.sqrt(blocks / (blocks - 1))
    tail = float(ndtr(-quantile))
    resamples = int(np.clip(_BEYOND / tail, *_RESAMPLES))
    starts = np.random.default_rng(abs(seed)).integers(n, size=(resamples, blocks, 1))
    indices = ((starts + np.arange(block)) % n).reshape(resamples, -1)[:, :n]
    drawn = np.median(logs[indices], axis=1)
    if np.ptp(drawn) <= EPS:
        return Estimate(estimate)
    return Estimate(estimate, *np.exp(np.quantile(drawn, [tail, 1 - tail])).tolist())


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
