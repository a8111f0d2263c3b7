"""Times of whole models, split into what the units of one layer cost and the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from headscope.core.accumulator import Array
from headscope.pruning.latency_result import Counts, Group

_ANCHOR = 100.0  # How much more the whole model's time weighs than another's: it is met.


def fit_times(
    knots: Mapping[Group, Sequence[int]], counts: Sequence[Counts], times: Sequence[float]
) -> tuple[float, dict[Group, tuple[float, ...]]]:
    """Split the times of whole models into a rest and a curve for each group.

    A curve is linear between its knots, zero at the first, and never falls. What it rises by from
    knot to knot, and the rest, are what fits the measured times best, in relative terms, among
    numbers that are not negative (isotonic regression of all curves together).

    Parameters
    ----------
    knots : mapping of group to sequence of int
        Counts of units at which a curve may bend, ascending.
    counts : sequence of Counts
        Units in the layers of each model; the first is the whole model, whose time is met.
    times : sequence of float
        Of each model, in any unit.

    Returns
    -------
    rest, curves : float, dict
        Values of each curve at its knots, in the same unit.
    """
    rows = []
    for own, time in zip(counts, times, strict=True):
        rises = [_rises(points, own[group]) for group, points in knots.items()]
        rows.append(np.concatenate([[1.0], *rises]) / time)
    weights = np.ones(len(rows))
    weights[0] = _ANCHOR
    (rest, *steps), _ = nnls(np.array(rows) * weights[:, None], weights)
    curves, start = {}, 0
    for group, points in knots.items():
        own_steps = steps[start : start + len(points) - 1]
        curves[group] = tuple(np.cumsum([0.0, *own_steps]).tolist())
        start += len(own_steps)
    return float(rest), curves


def _rises(knots: Sequence[int], counts: Sequence[int]) -> Array:
    """Return how much of the rise between two knots all layers together have, (knots - 1,)."""
    low, high = np.array(knots[:-1]), np.array(knots[1:])
    shares = (np.array(counts)[:, None] - low) / (high - low)
    return np.asarray(np.clip(shares, 0.0, 1.0).sum(axis=0))
