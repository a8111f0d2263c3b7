"""Passes over the windows of a text: of the model, and of the same model with random weights."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from headscope.analyses.spectrum.measure import MatrixPool, PatternSpectra, Spectrum
from headscope.analyses.spectrum.result import RandomDraw, RandomWeights
from headscope.core.accumulator import Array
from headscope.core.processes import current, share, sums_by_rank
from headscope.core.progress import Progress
from headscope.data.packing import Windows
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.surgery.copies import random_twin
from headscope.session.resume import RunState
from headscope.stats.statistics import FEWEST_DRAWS, crossed_mean

MINIMUM = 16  # Fewest sequences of the adaptive mode: with fewer, the spread itself is a guess.
BATCH_TOKENS = 1024  # Tokens of one batch; whether to stop is decided after each.
#: Initialisations that the windows are dealt out to: one alone would have no spread.
INITIALISATIONS = 5


@dataclass(frozen=True)
class Passes:
    """Passes over windows of a text: of the model, and of random weights."""

    windows: Windows
    k: int
    pool: MatrixPool
    saved: RunState[Spectrum]
    tell: Progress

    def enough(self, sums: Spectrum, precision: float | None) -> bool:
        """Whether every head's mean is precise enough; never where a number was asked for."""
        if precision is None or sums.sequences < MINIMUM:
            return False
        return sums.worst_half_width(self.k) < precision

    def measure(
        self, loaded: LoadedModel, order: Array, precision: float | None, name: str
    ) -> Spectrum:
        """Stream windows through a model until it is enough; no pattern outlives its layer.

        ``order`` are their numbers; ``name`` is what the pass is saved and shown under.
        """
        windows = self.windows
        blank = functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, windows.length)
        batches_done, sums = self._saved(blank, name)
        observer = PatternSpectra(sums, self.pool, windows.content)

        # The same batches every time; of an interrupted run the first are already in the sums.
        size = max(1, BATCH_TOKENS // windows.length)
        batches = (order[start : start + size] for start in range(0, len(order), size))
        remaining = itertools.islice(batches, batches_done, None)
        with routed(
            loaded.model, Router(loaded.sites, [observer], unmeasured_sites=loaded.unmeasured_sites)
        ) as router:
            # Each process measures one batch at a time, so that all stop where one alone would.
            while not self.enough(sums, precision):
                round_batches = list(itertools.islice(remaining, current().size))
                if not round_batches:
                    break
                process_sums = blank()
                observer.sums = process_sums
                for batch in share(round_batches):
                    router.run(functools.partial(loaded.forward, *self._inputs(loaded, batch)))
                sums_by_batch = sums_by_rank(process_sums, blank, f"spectra of {name}")
                for batch_sums, _ in zip(sums_by_batch, round_batches, strict=False):
                    if not self.enough(sums, precision):
                        sums.merge(batch_sums)
                        batches_done += 1
                self.saved.note(name, batches_done, sums)
                self.tell(name, sums.sequences, self._expected(sums, precision, len(order)))
        self.saved.note(name, batches_done, sums, final=True)
        return sums

    def _saved(self, blank: Callable[[], Spectrum], name: str) -> tuple[int, Spectrum]:
        """Return how many batches of a pass are done, and their sums.

        All processes go on from what the first one has saved.
        """
        batches_done, sums = self.saved.load(blank(), name)
        state = {**sums.state(), "done": np.array(batches_done)}
        first_state, *_ = current().gather(state, f"the state of {name}")
        batches_done = int(first_state.pop("done"))
        sums.load_state(first_state)
        return batches_done, sums

    def _inputs(self, loaded: LoadedModel, batch: Array) -> list[torch.Tensor]:
        """Return what the model is called with: tokens and mask, of source and target if pairs."""
        inputs = []
        for ids in self.windows.inputs(batch):
            tokens = torch.from_numpy(ids).to(loaded.device)
            inputs += [tokens, torch.ones_like(tokens)]
        return inputs

    def _expected(self, sums: Spectrum, precision: float | None, total: int) -> int:
        """Estimate how many sequences it will take to be precise enough; all where that is open."""
        if precision is None or sums.sequences < MINIMUM:
            return total
        needed = sums.sequences * (sums.worst_half_width(self.k) / precision) ** 2
        return min(total, max(sums.sequences, int(np.ceil(needed))))

    def random_weights(
        self, loaded: LoadedModel, order: Array, first_seed: int, threshold: float
    ) -> RandomWeights:
        """Measure fresh initialisations on the windows that the model was measured on.

        Each window goes to one of them, in turn: together they cost one pass.
        """
        count = min(INITIALISATIONS, len(order))
        draws: list[RandomDraw] = []
        curves: list[Array] = []
        curves_sq: list[Array] = []
        n_heads = 0
        for i in range(count):
            seed = (first_seed + i) % 2**63
            name = f"random weights {i + 1} of {count}"
            sums = self.measure(random_twin(loaded, seed), order[i::count], None, name)
            there = sums.count > 0  # (layers, heads)
            curve = sums.means("curve")[there]  # (heads, length)
            share_at_k = curve[:, self.k - 1]
            above = int((share_at_k > threshold).sum())
            draws.append(RandomDraw(seed, sums.sequences, float(share_at_k.mean()), above))
            curves.append(curve.mean(axis=0))
            curves_sq.append(sums.means("curve_sq")[there].mean(axis=0))
            n_heads = len(curve)
        mean = crossed_mean(np.array(curves)[:, None], FEWEST_DRAWS)
        mean_sq = crossed_mean(np.array(curves_sq)[:, None], FEWEST_DRAWS)
        return RandomWeights(
            draws=tuple(draws),
            heads=n_heads,
            share_at_k=mean.estimate(self.k - 1),
            share_sq_at_k=mean_sq.estimate(self.k - 1),
            curve=tuple(mean.mean.tolist()),
            curve_sq=tuple(mean_sq.mean.tolist()),
        )
