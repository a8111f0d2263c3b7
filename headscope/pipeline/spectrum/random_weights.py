"""The control of ``spectrum``: the same architecture with random weights, on the same windows."""

from __future__ import annotations

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.spectrum.crossed import crossed_mean
from headscope.measures.spectrum.decompositions import MatrixPool
from headscope.measures.spectrum.shares import Spectrum
from headscope.measures.statistics import finite
from headscope.models.copies import random_twin
from headscope.models.loaded import LoadedModel
from headscope.pipeline.spectrum.streaming import Plan, measure
from headscope.results.rank import MeanSem
from headscope.results.spectrum import RandomDraw, RandomWeights
from headscope.session.progress import Progress
from headscope.session.resume import RunState

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
