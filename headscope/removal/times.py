"""How fast a model is compared with the whole one, on batches of the evaluation texts' lengths.

Another program, or a warm processor, changes the speed of a machine for seconds at a time. Models
that take turns see the same of it, so what is compared is always what ran side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from headscope.artefacts.onnx_graph import RuntimeFile
from headscope.core.accumulator import Array
from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import own_implementation, use_implementation
from headscope.removal.confirm_speed import FEWEST, median_interval, ratio_interval
from headscope.stats.estimate import Estimate

_BATCHES, _SECONDS = 3, 15.0  # Batches in a round; seconds of all rounds beyond the fewest

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


def times(whole: Side, cut: Side | None, *, batch_size: int, seed: int) -> Times:
    """Time a model in turns with the whole one, each on batches of its own tokens.

    Each runs as a user would run it: without gradients, with transformers' own attention (SDPA, or
    eager of a family that has no other), the pooling included, as it is in an exported graph.
    Without ``cut`` the whole model runs alone. Where the machine's pace changed so much that the
    ratio has no interval, they run twice as often again, once.
    """
    places = spread_places(whole[2], batch_size)
    runs, texts = list[list[Pass]](), sum(map(len, places))
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        for model, served, rows in (whole, cut) if cut else (whole,):
            if isinstance(served, LoadedModel):
                own = own_implementation(served.network)
                stack.enter_context(use_implementation(served.network, own))
            batches = (
                padded([rows[i] for i in part], model.pad_id, model.device) for part in places
            )
            runs.append([partial(_pass, served, batch) for batch in batches])
        spent = in_turns(runs, fewest=FEWEST, most=4 * FEWEST, seconds=_SECONDS).sum(axis=2)
        if cut and ratio_interval(*spent.T, seed=seed)[1] is None:
            again = in_turns(runs, fewest=2 * len(spent), most=2 * len(spent), seconds=0.0)
            spent = np.concatenate([spent, again.sum(axis=2)])
    ms = [Estimate(*median_interval(1e3 * s / texts, seed=seed)) for s in spent.T]
    speed = Estimate(*ratio_interval(*spent.T, seed=seed)) if cut else Estimate(1.0)
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
