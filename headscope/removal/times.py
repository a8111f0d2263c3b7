"""How fast a model is compared with the whole one, on batches of the evaluation texts' lengths.

The whole model has all of its heads or layers, the cut one fewer. Another program, or a warm
processor, changes the speed of a machine for seconds at a time. Models that take turns see the same
of it, so they run in rounds: in each the whole model runs a few batches, and the cut model the
same texts. The estimate is the median over rounds of the ratio whole / cut: a run that was
interrupted spoils one round.

Rounds close in time still resemble each other: where a machine changes its pace, the ratio has one
value for a while and then another, and a bootstrap over rounds would not know how many more such
values there are. So the rounds are cut into :data:`PARTS` consecutive parts, and the interval
reaches from the lowest to the highest of their medians: its lower end lies above the true median
only if all of the parts' medians do. For independent rounds the probability of that is 2^-12, far
less than 2.5%; the margin is for rounds that resemble each other. ``tests/bench/speeds.py`` counts
how often either end is wrong, on machines of several kinds. What lasts longer than all rounds (a
machine that is slow for minutes) no run can see.

Nor is the ratio the same at every pace: another program takes more from the model with more threads
or with more memory to read. So ratios of different rounds are compared only where the whole model
itself took as long in them (``shrinking/result.py``), and models between which is to be decided
take turns with each other (:func:`timed_together`).

A large model takes seconds for a round. It has fewer rounds, one for each part at least: a round of
seconds is a mean over as much of the machine's pace as many rounds of a small model.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from headscope.artefacts.runtime_files import RuntimeFile
from headscope.core.accumulator import Array
from headscope.core.competitors import Competitors
from headscope.core.progress import Progress, silent
from headscope.core.rounding import EPS
from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.implementation import own_implementation, use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.stats.estimate import UNKNOWN, Estimate

PARTS = 12  # Consecutive parts of the rounds, whose medians the interval spans
ENOUGH = PARTS  # Rounds that an interval needs
FEWEST = 5 * PARTS  # Rounds at least, unless they take longer than _LONGEST
_MOST = 2  # Rounds at most, as a multiple of the fewest
_BATCHES = 3  # Batches that each model runs in a round, and texts that it runs one at a time
_SECONDS = 15.0  # After which no further round is started, if there are the fewest
_LONGEST = 60.0  # Seconds after which none is started, if there is one for each part
#: Seconds of a pass whose cost does not depend on what the processor's caches hold before it.
_LONG_PASS = 0.25
#: Products of two numbers in the batch that is timed of a large model: about a second of one core.
_PRODUCTS = 5e10

Pass = Callable[[], object]  # Runs one model over one batch
#: A model, what runs in its place (itself, or a file of a runtime), and its rows of tokens.
TimedModel = tuple[LoadedModel, LoadedModel | RuntimeFile, Sequence[Row]]


class Times(NamedTuple):
    """How fast a model is."""

    speed: Estimate  # How many times as fast as the whole model in torch, over rounds
    ms: Estimate  # Milliseconds a text, at the machine's pace during these rounds
    ms_of_whole: Estimate  # Milliseconds a text of the whole model in these very rounds
    with_tokenising: Estimate = UNKNOWN  # ``speed`` where both have to tokenise the texts first
    one_text: Estimate = UNKNOWN  # ``speed`` with one text at a time
    competitors: float | None = None  # Cores that other programs used meanwhile

    def of_whole(self) -> Times:
        """Return the times of the whole model itself."""
        return self._replace(
            speed=Estimate(1.0),
            ms=self.ms_of_whole,
            with_tokenising=Estimate(1.0),
            one_text=Estimate(1.0),
        )


class TimedTogether(NamedTuple):
    """Models that took turns with the whole one and with each other."""

    times: tuple[Times, ...]  # Of each
    seconds: Array  # (rounds, models)

    def lead(self, first: int, second: int) -> Estimate:
        """Return how many times as fast the first of two models is as the second."""
        return median_interval(self.seconds[:, second] / self.seconds[:, first])


def times(
    full_model: TimedModel,
    cut: TimedModel | None,
    *,
    batch_size: int,
    longer: int = 1,
    tell: Progress = silent,
) -> Times:
    """Time a model in turns with the whole one; without ``cut`` the whole model runs alone."""
    cuts = [] if cut is None else [cut]
    together = timed_together(full_model, cuts, batch_size=batch_size, longer=longer, tell=tell)
    return together.times[-1]


def timed_together(
    full_model: TimedModel,
    cuts: Sequence[TimedModel],
    *,
    batch_size: int,
    longer: int = 1,
    tell: Progress = silent,
) -> TimedTogether:
    """Time models in turns with the whole one, each on batches of its own tokens.

    Each runs as a user would run it: without gradients, with transformers' own attention (SDPA, or
    eager for a family that has nothing else), the pooling included, as it is in an exported graph.
    Besides its batches each runs some of their texts alone, and the tokenizer takes its turn, too.
    Without ``cuts`` the whole model runs alone, and stands for itself; ``longer`` multiplies the
    rounds. ``tell`` gets how many of the fewest rounds are done.
    """
    # The same texts for all, each model with its own tokens.
    _, _, full_rows = full_model
    batches_of_texts = typical_batches(full_rows, batch_size)
    single_texts = [[texts[len(texts) // 2]] for texts in batches_of_texts]
    all_texts = [*batches_of_texts, *single_texts]

    # Prepare every pass, and run them in turns.
    fewest = longer * FEWEST
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        runs: list[list[Pass]] = []  # By model and batch
        for timed_model in (full_model, *cuts):
            _, served, _ = timed_model
            if isinstance(served, LoadedModel):
                implementation = own_implementation(served.network)
                stack.enter_context(use_implementation(served.network, implementation))
            runs.append(_passes(timed_model, all_texts))
        tokenising = _tokenising(full_model, all_texts)
        if tokenising:
            runs.append(tokenising)
        competitors = Competitors()
        seconds = timed_in_turns(
            runs,
            fewest=fewest,
            most=_MOST * fewest,
            seconds=longer * _SECONDS,
            longest=longer * _LONGEST,
            tell=tell,
        )
        cores = competitors.cores()

    # Compare the models round by round.
    n_batches = len(batches_of_texts)
    n_texts = sum(len(texts) for texts in batches_of_texts)
    compared = list(range(1, 1 + len(cuts))) or [0]
    in_batches = seconds[:, :, :n_batches].sum(axis=2)  # (rounds, models)
    text_by_text = seconds[:, :, n_batches:].sum(axis=2)
    tokeniser_seconds = in_batches[:, -1] if tokenising else None
    all_times = tuple(
        _compared(
            in_batches[:, [0, index]],
            text_by_text[:, [0, index]],
            tokeniser_seconds=tokeniser_seconds,
            n_texts=n_texts,
            competitors=cores,
        )
        for index in compared
    )
    return TimedTogether(all_times, in_batches[:, compared])


def _compared(
    in_batches: Array,
    text_by_text: Array,
    *,
    tokeniser_seconds: Array | None,
    n_texts: int,
    competitors: float | None,
) -> Times:
    """Compare a model with the whole one; both arrays are their seconds, (rounds, 2)."""
    whole_seconds, cut_seconds = in_batches.T
    with_tokenising = UNKNOWN
    if tokeniser_seconds is not None:
        with_tokenising = median_interval(
            (whole_seconds + tokeniser_seconds) / (cut_seconds + tokeniser_seconds)
        )
    return Times(
        speed=median_interval(whole_seconds / cut_seconds),
        ms=median_interval(1e3 * cut_seconds / n_texts),
        ms_of_whole=median_interval(1e3 * whole_seconds / n_texts),
        with_tokenising=with_tokenising,
        one_text=median_interval(text_by_text[:, 0] / text_by_text[:, 1]),
        competitors=competitors,
    )


def _passes(timed_model: TimedModel, batches_of_texts: Sequence[Sequence[int]]) -> list[Pass]:
    """Return what runs a model over each batch of texts."""
    model, served, rows = timed_model
    passes: list[Pass] = []
    for texts in batches_of_texts:
        batch = padded([rows[text] for text in texts], model.pad_id, model.device)
        passes.append(partial(_run_batch, served, batch))
    return passes


def _tokenising(full_model: TimedModel, batches_of_texts: Sequence[Sequence[int]]) -> list[Pass]:
    """Return what tokenises each batch of texts; empty without a tokenizer.

    The texts are what the tokens spell: what was read may be pairs, windows or answers.
    """
    model, _, rows = full_model
    tokenizer = model.tokenizer
    if tokenizer is None:
        return []
    passes: list[Pass] = []
    for texts in batches_of_texts:
        ids = [list(rows[text].ids) for text in texts]
        spelled = tokenizer.batch_decode(ids, skip_special_tokens=True)
        passes.append(partial(tokenizer, spelled, verbose=False))
    return passes


def timed_in_turns(
    runs: Sequence[Sequence[Pass]],
    *,
    fewest: int,
    most: int,
    seconds: float,
    longest: float = _LONGEST,
    tell: Progress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> Array:
    """Return the seconds of every pass, (rounds, models, batches).

    In each round every model runs each of its batches once. Before that it runs its first batch
    without being timed, since the model before it has filled the caches with other weights; not
    where a pass is so long that this makes no difference. The models' order is reversed from round
    to round. Once there are ``fewest`` rounds, none is started after ``seconds``, and once there is
    one for each part, none after ``longest``; so the number of rounds never depends on which model
    was faster.
    """
    # Run everything once: the first pass of a shape compiles products.
    start = clock()
    for passes in runs:
        for run_once in passes:
            run_once()
    n_passes = sum(len(passes) for passes in runs)
    fills_caches = (clock() - start) / n_passes < _LONG_PASS

    rounds: list[list[list[float]]] = []
    start = clock()

    def another_is_due() -> bool:
        """Say whether there are too few rounds, or there is time for more."""
        passed = clock() - start
        if len(rounds) < fewest:
            return len(rounds) < PARTS or passed < longest
        return len(rounds) < most and passed < seconds

    while another_is_due():
        tell("timing both models", min(len(rounds), fewest), fewest)
        spent: list[list[float]] = [[] for _ in runs]
        order = list(range(len(runs)))
        if len(rounds) % 2 == 0:
            order.reverse()
        for model in order:
            if fills_caches:
                first_pass = runs[model][0]
                first_pass()
            for run_once in runs[model]:
                began = clock()
                run_once()
                spent[model].append(clock() - began)
        rounds.append(spent)
    return np.array(rounds)


def length_batches(rows: Sequence[Row], size: int, seed: int | None = None) -> list[list[int]]:
    """Return batches of text indices, sorted by length, as is usual for little padding.

    Lengths 5, 2, 9, 2 in batches of 2 -> [[1, 3], [0, 2]]. Texts of equal length stand in the order
    of the data, or in one that is drawn with ``seed``.
    """
    order = list(range(len(rows)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    order.sort(key=lambda i: len(rows[i]))
    return [order[first : first + size] for first in range(0, len(order), size)]


def typical_batches(rows: Sequence[Row], size: int) -> list[list[int]]:
    """Return a few batches of text indices that stand for the texts' own mixture of lengths.

    They are taken from :func:`length_batches`, evenly from the shortest to the longest; one where
    all texts are equally long, as windows of running text are.
    """
    batches = length_batches(rows, size)
    full_batches = [batch for batch in batches if len(batch) == size] or batches
    if len({len(row) for row in rows}) == 1:
        return full_batches[:1]
    middles = (np.arange(_BATCHES) + 0.5) / _BATCHES * len(full_batches)
    return [full_batches[i] for i in sorted({int(middle) for middle in middles})]


def affordable_batch(model: LoadedModel, rows: Sequence[Row], usual: int) -> int:
    """Return how many texts a timed batch has: ``usual``, or fewer of a large model.

    So many that one pass takes about a second of a core: each token is multiplied with every weight
    but those of the embeddings.
    """
    tokens_of_text = sum(len(row) for row in rows) / len(rows)
    weights = model.network.num_parameters(exclude_embeddings=True)
    affordable = int(_PRODUCTS / max(weights * tokens_of_text, 1))
    return max(1, min(usual, affordable))


def _run_batch(served: LoadedModel | RuntimeFile, batch: Padded) -> None:
    """Run one batch as a user would: without a task head, outputs are pooled.

    A causal language model says what comes after each text, as at the first step of writing.
    """
    if not isinstance(served, LoadedModel):
        served.run(*batch.inputs)
        return
    decoder: dict[str, Any] = {**batch.decoder_inputs}
    select = last_position if served.task_head == "causal" else None
    hidden, logits = served.run(*batch.inputs, **decoder, select=select)
    if logits is None:
        served.pooling.embed(hidden, batch.hidden_mask)
    # Wait for a device that computes beside Python.
    if hidden.device.type == "cuda":
        torch.cuda.synchronize(hidden.device)
    elif hidden.device.type == "mps":
        torch.mps.synchronize()


def last_position(hidden: Tensor) -> Tensor:
    """Select the last position of every text: (batch, 1, d_model)."""
    return hidden[:, -1:]


def median_interval(values: ArrayLike) -> Estimate:
    """Return the median of numbers measured one after the other, with an interval for it.

    The interval reaches from the lowest to the highest median of :data:`PARTS` consecutive parts of
    the series. There is none for fewer than :data:`ENOUGH` numbers, nor if the parts differ by no
    more than rounding: a clock with too few digits says nothing about noise.
    """
    series = np.asarray(values, dtype=float)
    median = float(np.median(series))
    if len(series) < ENOUGH:
        return Estimate(median)
    medians = [float(np.median(numbers)) for numbers in np.array_split(series, PARTS)]
    low = min(medians)
    high = max(medians)
    if high - low <= EPS * abs(median):
        return Estimate(median)
    return Estimate(median, low, high)
