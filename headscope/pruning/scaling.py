r"""The repair ``scale``: how much each head that stays should write, to replace those that went.

A gate xi multiplies what a head puts out (or the heads that can only go together: a unit has one
gate). Removed units have gate 0. The gates of the others are found by least squares (Kwon et al.,
section 4.3; there layer by layer, here on the model's outputs e)::

    minimise over the gates that stay        mean over examples ||e(xi) - e(1)||^2

The first guess comes from the Gauss-Newton matrix at the unpruned model; each round then
linearises e anew where the gates stand (Gauss-Newton with damping). A step that does not lower the
distance on the calibration data is halved up to four times, then given up. No weight is trained; a
gate other than 1 is folded into W_O when the model is saved.

References
----------
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.core.rounding import ROUNDING
from headscope.pruning.ranking import Context
from headscope.tasks.gauss_newton import sample

DIRECTIONS = 4  # Random directions of each example's output, for the first guess
RIDGE = 0.1  # Pull of the first guess's gates towards 1, in units of the matrix's mean diagonal
ROUNDS = 3  # Linearisations after the first guess, at most
ENOUGH = 0.03  # A round that gains less than this share of the distance is the last
DAMPING = 0.03  # Of the steps of rounds, in units of the matrix's mean diagonal


def scale_gates(
    context: Context, removed: Sequence[int], *, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Tensor:
    """Return gates (n_units,), float64: zero at ``removed`` units, rescaled elsewhere.

    They never bring the outputs farther from the unpruned model's than gates of 1 would.
    """
    remaining = [unit for unit in range(len(context.units)) if unit not in set(removed)]
    gates = context.units.gates(removed).double()
    if not remaining or not removed:
        return gates
    distance = context.distance(gates)

    # A first guess from the Gauss-Newton matrix at the unpruned model: what removed units leave
    # missing in the outputs, as far as the others can put it there.
    matrix = context.gauss_newton(directions).matrix  # [n_units, n_units]
    pull_of_removed = matrix[remaining][:, list(removed)].sum(dim=1)
    step = _solve_damped(matrix, remaining, pull_of_removed, RIDGE)
    gates, distance = _step_down(context, gates, distance, remaining, step)

    # Rounds that linearise the outputs anew where the gates stand.
    for round_number in range(1, rounds + 1):
        sums = sample(
            context.calibration.batches(labels=False),
            context.units,
            unit_gates=gates,
            targets=context.targets(),
            seed=context.seed + round_number,
        )
        step = _solve_damped(sums.matrix, remaining, -sums.gradient[remaining], DAMPING)
        distance_before = distance
        gates, distance = _step_down(context, gates, distance, remaining, step)
        if distance > (1 - ENOUGH) * distance_before:
            break
    return gates


def _step_down(
    context: Context, gates: Tensor, distance: float, units: list[int], step: Tensor
) -> tuple[Tensor, float]:
    """Add the longest part of a step to the gates of ``units`` that lowers the distance.

    All of it, or a half to a sixteenth. Returns the gates after it and their distance to the
    unpruned model; both unchanged if no length of the step lowers it.
    """
    for length in (1.0, 0.5, 0.25, 0.125, 0.0625):
        trial = gates.clone()
        trial[units] += length * step
        distance_of_trial = context.distance(trial)
        if distance_of_trial < (1 - ROUNDING) * distance:
            return trial, distance_of_trial
    return gates, distance


def _solve_damped(matrix: Tensor, units: list[int], right: Tensor, damping: float) -> Tensor:
    """Return x with ``(M + ridge) x = right``, M the rows and columns of ``units`` in the matrix.

    The ridge is ``damping`` times the mean of M's diagonal.
    """
    M = matrix[units][:, units].double()
    ridge = max(damping * float(M.diagonal().mean()), 1e-30)
    x: Tensor = torch.linalg.solve(M + ridge * torch.eye(len(units)).double(), right)
    return x
