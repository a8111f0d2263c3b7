"""Passes over the windows of a text: of the model, and of the same model with random weights.

A *window* is a sequence of exactly n tokens; :class:`Windows` holds all windows of the text, and an
``order`` is the numbers of those to measure. A :class:`Spectrum` holds the sums over sequences of
what is measured of every head. One process measures all batches, or several share them; then all of
them decide from the same sums when to stop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from headscope.analyses.spectrum.matrix_pool import MatrixPool
from headscope.analyses.spectrum.measure import PatternSpectra, Spectrum
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

MINIMUM = 16  # Fewest sequences before precision decides: with fewer, an interval is a guess
BATCH_TOKENS = 1024  # Tokens of one batch; whether to stop is decided after each
#: Initialisations that the windows are dealt out to: one alone would not show how they differ.
INITIALISATIONS = 5


@dataclass(frozen=True)
class Passes:
    """What all passes of a run share; :meth:`measure` is one pass."""

    windows: Windows
    k: int  # How many of the largest singular values a share counts
    pool: MatrixPool  # Decomposes matrices on all cores
    saved: RunState[Spectrum]  # Keeps the sums of each pass in a file, to go on after interruption
    tell: Progress  # Shows how far a pass is

    def enough(self, sums: Spectrum, precision: float | None) -> bool:
        """Whether every head's share at k is precise enough to stop.

        ``precision`` is the half-width of the 95% interval to reach; None where a number of
        sequences was asked for: then it is never enough.
        """
        if precision is None or sums.sequences < MINIMUM:
            return False
        return sums.worst_half_width(self.k) < precision

    def measure(
        self, loaded: LoadedModel, order: Array, precision: float | None, name: str
    ) -> Spectrum:
        """Stream windows through a model until it is enough; no pattern outlives its layer.

        ``order`` has the numbers of the windows; ``name`` is what the pass is saved and shown
        under.
        """
        windows = self.windows
        new_sums = functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, windows.length)
        batches_done, sums = self._saved(new_sums, name)
        observer = PatternSpectra(sums, self.pool, windows.content)

        # The batches are the same every time: those of an interrupted run are skipped.
        batch_size = max(1, BATCH_TOKENS // windows.length)
        starts = range(0, len(order), batch_size)
        batches = (order[start : start + batch_size] for start in starts)
        remaining = itertools.islice(batches, batches_done, None)
        # Our attention runs in place of the model's, and shows its patterns to the observer.
        router = Router(loaded.sites, [observer], unmeasured_sites=loaded.unmeasured_sites)
        with routed(loaded.model, router):
            # In each round every process measures one batch.
            n_processes = current().size
            while not self.enough(sums, precision):
                round_batches = list(itertools.islice(remaining, n_processes))
                if not round_batches:
                    break
                process_sums = new_sums()
                observer.sums = process_sums
                for batch in share(round_batches):  # the one of this process, or none
                    inputs = self._inputs(loaded, batch)
                    router.run(functools.partial(loaded.forward, *inputs))
                # Process i has measured batch i of the round. They are added one by one, until it
                # is enough, so that several processes stop at the batch where one alone would.
                sums_by_process = sums_by_rank(process_sums, new_sums, f"spectra of {name}")
                for batch_sums in sums_by_process[: len(round_batches)]:
                    if not self.enough(sums, precision):
                        sums.merge(batch_sums)
                        batches_done += 1
                self.saved.note(name, batches_done, sums)
                self.tell(name, sums.sequences, self._expected(sums, precision, len(order)))
        self.saved.note(name, batches_done, sums, final=True)
        return sums

    def _saved(self, new_sums: Callable[[], Spectrum], name: str) -> tuple[int, Spectrum]:
        """Return how many batches of a pass are done, and their sums; 0 and empty ones at first.

        Process 0 has saved them: it sends them to the others, the number among the arrays.
        """
        batches_done, sums = self.saved.load(new_sums(), name)
        state = {**sums.state(), "done": np.array(batches_done)}
        first_state, *_ = current().gather(state, f"the state of {name}")
        batches_done = int(first_state.pop("done"))
        sums.load_state(first_state)
        return batches_done, sums

    def _inputs(self, loaded: LoadedModel, batch: Array) -> list[torch.Tensor]:
        """Return what the model is called with on a batch of windows.

        [token ids, mask]; for pairs [source ids, source mask, target ids, target mask].
        """
        inputs = []
        for ids in self.windows.inputs(batch):
            tokens = torch.from_numpy(ids).to(loaded.device)
            inputs += [tokens, torch.ones_like(tokens)]
        return inputs

    def _expected(self, sums: Spectrum, precision: float | None, total: int) -> int:
        """Estimate how many of ``total`` sequences it will take to be precise enough."""
        if precision is None or sums.sequences < MINIMUM:
            return total
        # A half-width shrinks with the root of the number of sequences.
        needed = sums.sequences * (sums.worst_half_width(self.k) / precision) ** 2
        return min(total, max(sums.sequences, int(np.ceil(needed))))

    def random_weights(
        self, loaded: LoadedModel, order: Array, first_seed: int, threshold: float
    ) -> RandomWeights:
        """Measure fresh initialisations on the windows that the model was measured on.

        Each window goes to one of them, in turn: together they cost one pass. ``threshold`` is the
        share above which a head is low rank.
        """
        n_draws = min(INITIALISATIONS, len(order))
        draws: list[RandomDraw] = []
        curves: list[Array] = []  # mean over heads of each initialisation, (length,)
        curves_sq: list[Array] = []
        n_heads = 0
        n_measured = 0  # windows, by the initialisations before

        def tell(step: str, done: int, total: int) -> None:
            self.tell("random weights", n_measured + done, len(order))

        passes = replace(self, tell=tell)
        for i in range(n_draws):
            seed = (first_seed + i) % 2**63
            name = f"random weights, {i + 1} of {n_draws}"
            # Of 5 initialisations the second has windows 1, 6, 11, ... of the order.
            sums = passes.measure(random_twin(loaded, seed), order[i::n_draws], None, name)
            n_measured += sums.sequences
            is_head = sums.count > 0  # (layers, heads): layers may differ in their number of heads
            curve = sums.means("curve")[is_head]  # (heads, length)
            share_at_k = curve[:, self.k - 1]
            above = int((share_at_k > threshold).sum())
            draws.append(RandomDraw(seed, sums.sequences, float(share_at_k.mean()), above))
            curves.append(curve.mean(axis=0))
            curves_sq.append(sums.means("curve_sq")[is_head].mean(axis=0))
            n_heads = len(curve)
        # Means over initialisations, with intervals. Arrays are (sequences, draws, length) for
        # ``crossed_mean``: here an initialisation stands for a sequence, with a single draw.
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
