"""The streamed pass of ``spectrum``: windows of a text, one batch after the other, until enough."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headscope.analyses.spectrum.measure import MatrixPool, PatternSpectra, Spectrum
from headscope.analyses.spectrum.result import RandomDraw, RandomWeights
from headscope.core.accumulator import Array
from headscope.core.processes import current, of_each, share
from headscope.data.packing import Windows
from headscope.models.copies import random_twin
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.session.progress import Progress
from headscope.session.resume import RunState, open_state
from headscope.stats.ranks import MeanSem
from headscope.stats.statistics import crossed_mean, finite

PRECISION = 0.01  # Half-width of the adaptive mode where nothing else is asked for.
MINIMUM = 16  # Fewest sequences of the adaptive mode: with fewer, the spread itself is a guess.
_BATCH_TOKENS = 1024  # Tokens of one batch; whether to stop is decided after each.


@dataclass(frozen=True)
class Plan:
    """Which windows are measured in which order, and when it is enough."""

    windows: Windows
    order: Array
    k: int
    sequences: int | None
    precision: float | None

    def batches(self) -> Iterator[Array]:
        """Cut the order into batches of about a thousand tokens, the same ones every time."""
        size = max(1, _BATCH_TOKENS // self.windows.length)
        for start in range(0, len(self.order), size):
            yield self.order[start : start + size]

    def part(self, chosen: Array) -> Plan:
        """Return the plan that measures these windows, all of them."""
        return dataclasses.replace(self, order=chosen, sequences=len(chosen), precision=None)

    def enough(self, sums: Spectrum) -> bool:
        """Whether every head's mean is precise enough; never in the fixed mode."""
        if self.precision is None or sums.sequences < MINIMUM:
            return False
        return sums.worst_half_width(self.k) < self.precision


def make_plan(
    windows: Windows, k: int, sequences: int | None, precision: float | None, seed: int
) -> Plan:
    """Decide the order of the windows: evenly spread for a fixed number, random for a precision."""
    if sequences is not None:
        return Plan(windows, windows.spread(sequences), k, sequences, None)
    return Plan(windows, windows.shuffled(seed), k, None, precision or PRECISION)


def measure(
    loaded: LoadedModel,
    plan: Plan,
    pool: MatrixPool,
    saved: RunState[Spectrum],
    progress: Progress,
    name: str = "model",
) -> Spectrum:
    """Stream windows through the model until it is enough; no pattern outlives its layer.

    ``name`` is what the pass is saved and shown under.
    """
    windows = plan.windows
    blank = functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, windows.length)
    done, sums = _saved_by_first(saved, blank, name)
    observer = PatternSpectra(sums, pool, windows.content)
    # Of an interrupted run the first batches are already in the sums.
    left = itertools.islice(plan.batches(), done, None)
    with routed(loaded.model, Router(loaded.sites, [observer], others=loaded.others)) as router:
        # Each process measures one batch at a time, so that all stop where one alone would.
        while not plan.enough(sums) and (batches := list(itertools.islice(left, current().size))):
            observer.into(mine := blank())
            for batch in share(batches):
                sides = [torch.from_numpy(ids).to(loaded.device) for ids in windows.inputs(batch)]
                inputs = [tensor for ids in sides for tensor in (ids, torch.ones_like(ids))]
                router.run(functools.partial(loaded.forward, *inputs))
            for part, _ in zip(of_each(mine, blank, f"spectra of {name}"), batches, strict=False):
                if not plan.enough(sums):
                    sums.merge(part)
                    done += 1
            saved.note(name, done, sums)
            total = len(plan.order)
            if plan.precision is not None and sums.sequences >= MINIMUM:
                needed = sums.sequences * (sums.worst_half_width(plan.k) / plan.precision) ** 2
                total = min(total, max(sums.sequences, int(np.ceil(needed))))
            progress(name, *(sums.sequences, total))
    saved.note(name, done, sums, final=True)
    return sums


def _saved_by_first(
    saved: RunState[Spectrum], blank: Callable[[], Spectrum], name: str
) -> tuple[int, Spectrum]:
    """Return (batches done, sums) of a pass, as the first process has saved them for all."""
    done, sums = saved.load(blank(), name)
    first, *_ = current().gather({**sums.state(), "done": np.array(done)}, f"the state of {name}")
    done = int(first.pop("done"))
    sums.load_state(first)
    return done, sums


def saved_run(
    loaded: LoadedModel, plan: Plan, seed: int, state: str | Path | None, resume: bool
) -> RunState[Spectrum]:
    """Return where this run saves itself, filled if it is to be resumed."""
    identity = {
        "text": plan.windows.sha256,
        "length": plan.windows.length,
        "k": plan.k,
        "sequences": plan.sequences,
        "precision": plan.precision,
        "minimum": MINIMUM,
        "batches": _BATCH_TOKENS,
    }

    def blank() -> Spectrum:
        return Spectrum(loaded.n_layers, loaded.n_heads, plan.windows.length)

    return open_state(state, resume, identity, blank, loaded, seed)


#: Initialisations that the windows are dealt out to: one alone would have no spread.
INITIALISATIONS = 5


def measure_random_weights(
    loaded: LoadedModel,
    plan: Plan,
    measured: int,
    low_rank: float,
    seed: int,
    pool: MatrixPool,
    saved: RunState[Spectrum],
    progress: Progress,
) -> RandomWeights:
    """Measure fresh initialisations on the windows that the model was measured on.

    Each window goes to one of them, in turn: together they cost one pass. ``plan`` is that of the
    model's own pass, of which ``measured`` windows were needed; ``low_rank`` is the share above
    which a head counts as low rank, ``seed`` that of the first initialisation.
    """
    windows = plan.order[:measured]
    seeds = [(seed + i) % 2**63 for i in range(min(INITIALISATIONS, len(windows)))]
    sums = []
    for i, own in enumerate(seeds):
        name = f"random weights {i + 1} of {len(seeds)}"
        part = plan.part(windows[i :: len(seeds)])
        sums.append(measure(random_twin(loaded, own), part, pool, saved, progress, name))
    curves = [_of_heads(one, "curve") for one in sums]
    squares = [_of_heads(one, "curve_sq") for one in sums]
    draws = tuple(
        _draw(own, one.sequences, share[:, plan.k - 1], square[:, plan.k - 1], low_rank)
        for own, one, share, square in zip(seeds, sums, curves, squares, strict=True)
    )
    share, half = _over_draws([draw.share_at_k for draw in draws])
    return RandomWeights(
        draws=draws,
        heads=len(curves[0]),
        share_at_k=share,
        share_sq_at_k=_over_draws([draw.share_sq_at_k for draw in draws])[0],
        half_width=half,
        curve=tuple(np.mean([curve.mean(axis=0) for curve in curves], axis=0).tolist()),
        curve_sq=tuple(np.mean([curve.mean(axis=0) for curve in squares], axis=0).tolist()),
    )


def _of_heads(sums: Spectrum, name: str) -> Array:
    """Mean curve of every head that there is, (heads, length)."""
    there: Array = sums.means(name)[sums.count > 0]
    return there


def _draw(seed: int, sequences: int, share: Array, square: Array, low_rank: float) -> RandomDraw:
    return RandomDraw(
        seed=seed,
        sequences=sequences,
        share_at_k=float(share.mean()),
        share_sq_at_k=float(square.mean()),
        lowest=float(share.min()),
        above=int((share > low_rank).sum()),
    )


def _over_draws(values: list[float]) -> tuple[MeanSem, float | None]:
    """Mean with its standard error over initialisations, and half of the 95% interval."""
    found = crossed_mean(np.array(values)[:, None])
    return MeanSem(float(found.mean), finite(float(found.sem))), finite(float(found.half_width))
