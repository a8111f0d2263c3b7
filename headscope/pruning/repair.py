"""What is done to the heads that are left: nothing, scaled gates, or a refitted W_O (surgeon).

``scale`` finds the gates of the surviving heads by least squares (Kwon et al., section 4.3; there
layer by layer, here on the outputs)::

    minimise over xi_kept   mean over examples ||e(xi) - e(1)||^2      xi_removed = 0

The first guess comes from the Gauss-Newton matrix at the unpruned model; each round then
linearises e anew where the gates stand (Gauss-Newton with damping). A step that does not lower the
distance on the calibration data is halved twice, then given up. No weight is trained; a gate other
than 1 is folded into W_O when the model is saved.

References
----------
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headscope.core.rounding import ROUNDING
from headscope.models.surgery.output_maps import OutputMap
from headscope.pruning.ranking import Context
from headscope.tasks.gauss_newton import sample
from headscope.tasks.units import Units

#: Scaling: linearisations after the first guess, the share of the distance below which a round's
#: gain makes it the last, and what is added to the diagonal, in units of its mean.
ROUNDS, ENOUGH, DAMPING = 3, 0.03, 0.03
DIRECTIONS = 4  # Random directions an example for the first guess
RIDGE = 0.1  # Its pull of the kept gates towards 1, in units of the mean diagonal


@dataclass(frozen=True)
class Repaired:
    """A pruned model as gates and output maps of the full one."""

    removed: tuple[int, ...]  # units
    gates: Tensor  # (n_layers, n_heads), float32: what each head's z is multiplied by
    #: By layer; empty unless W_O was refitted.
    maps: Mapping[int, OutputMap] = field(default_factory=dict)

    @classmethod
    def bare(cls, units: Units, removed: Sequence[int]) -> Repaired:
        """Remove units and leave the others as they are."""
        return cls(tuple(removed), units.expand(units.gates(removed)))


def scale_gates(
    context: Context, removed: Sequence[int], *, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Tensor:
    """Return gates (n_units,), float64: zero where removed, rescaled elsewhere.

    They never bring the outputs farther from the unpruned model's than gates of 1.
    """
    kept = [unit for unit in range(len(context.units)) if unit not in set(removed)]
    best = context.units.gates(removed).double()
    if not kept or not removed:
        return best
    matrix = context.gauss_newton(directions).matrix
    best_distance = context.distance(best)
    step = _solve_damped(matrix, kept, matrix[kept][:, list(removed)].sum(dim=1), RIDGE)
    for number in range(rounds + 1):
        before = best_distance
        best, best_distance = line_search(context, best, best_distance, kept, step)
        if number == rounds or (number and best_distance > (1 - ENOUGH) * before):
            break
        sums = sample(
            context.calibration.batches(labels=False),
            context.units,
            at=best,
            targets=context.targets(),
            seed=context.seed + 1 + number,
        )
        step = _solve_damped(sums.matrix, kept, -sums.gradient[kept], DAMPING)
    return best


def _solve_damped(matrix: Tensor, kept: list[int], right: Tensor, damping: float) -> Tensor:
    inner = matrix[kept][:, kept].double()
    damping = max(damping * float(inner.diagonal().mean()), 1e-30)
    solved: Tensor = torch.linalg.solve(inner + damping * torch.eye(len(kept)).double(), right)
    return solved


def line_search(
    context: Context, gates: Tensor, distance: float, kept: Sequence[int], step: Tensor
) -> tuple[Tensor, float]:
    """Go as far along a step as lowers the distance: all of it, half, a quarter, or not at all."""
    for length in (1.0, 0.5, 0.25):
        trial = gates.clone()
        trial[list(kept)] += length * step
        if (at_trial := context.distance(trial)) < (1 - ROUNDING) * distance:
            return trial, at_trial
    return gates, distance
