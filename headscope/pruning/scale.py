r"""Repair by scaling: the gates of the surviving heads, by least squares (Kwon et al.).

::

    minimise over xi_kept   mean over examples ||e(xi) - e(1)||^2      xi_removed = 0

The first guess comes from the Gauss-Newton matrix at the unpruned model; each round then
linearises e anew where the gates stand (Gauss-Newton with damping). A step that does not lower the
distance on the calibration data is halved twice, then given up. No weight is trained; a gate other
than 1 is folded into W_O when the model is saved.

References
----------
Kwon et al. 2022, arXiv:2204.09656, section 4.3 (there layer by layer, here on the outputs).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.core.processes import current, share, summed
from headscope.core.widest import widest
from headscope.measures.rounding import ROUNDING
from headscope.pruning.gauss_newton import full_output, sample
from headscope.pruning.joint import RIDGE
from headscope.pruning.method import Given

#: Linearisations after the first guess.
ROUNDS = 3
#: A round that gains less than this share of the distance is the last.
ENOUGH = 0.03
#: Added to the diagonal, in units of its mean.
DAMPING = 0.03
#: Numbers per example that are worth keeping.
WIDEST = 4096


def scale_gates(
    given: Given,
    removed: Sequence[int],
    *,
    matrix: Tensor,
    targets: Sequence[Tensor | None],
    rounds: int = ROUNDS,
) -> Tensor:
    """Return gates (n_units,): zero where removed, rescaled elsewhere.

    Parameters
    ----------
    given : Given
        Its calibration data, without labels, are what the distance is measured on.
    removed : sequence of int
        Units whose gates are zero.
    matrix : Tensor, (n_units, n_units)
        Gauss-Newton matrix at the unpruned model.
    targets : sequence of Tensor or None
        The unpruned model's outputs of each calibration batch, as :func:`full_outputs` gives them.
    rounds : int
        Linearisations after the first guess, at most.

    Returns
    -------
    Tensor of float64, (n_units,)
        Never farther from the unpruned model's outputs than gates of 1.
    """
    kept = [unit for unit in range(len(given.units)) if unit not in set(removed)]
    best = given.units.gates(removed).double()
    if not kept or not removed:
        return best
    best_distance = distance(given, best, targets)
    step = _solve(matrix, kept, matrix[kept][:, list(removed)].sum(dim=1), RIDGE)
    for number in range(rounds + 1):
        before = best_distance
        best, best_distance = search(given, best, best_distance, kept, step, targets)
        if number == rounds or (number and best_distance > (1 - ENOUGH) * before):
            break
        found = sample(
            given.calibration.batches(labels=False),
            given.units,
            at=best,
            targets=targets,
            seed=given.seed + 1 + number,
        )
        step = _solve(found.matrix, kept, -found.gradient[kept], DAMPING)
    return best


def search(
    given: Given,
    gates: Tensor,
    known: float,
    kept: Sequence[int],
    step: Tensor,
    targets: Sequence[Tensor | None],
) -> tuple[Tensor, float]:
    """Go as far along a step as lowers the distance: all of it, half, a quarter, or not at all."""
    for length in (1.0, 0.5, 0.25):
        trial = gates.clone()
        trial[list(kept)] += length * step
        if (found := distance(given, trial, targets)) < (1 - ROUNDING) * known:
            return trial, found
    return gates, known


def full_outputs(given: Given) -> list[Tensor | None]:
    """Return the unpruned model's outputs of each calibration batch; None for very wide ones.

    A language model's log-probabilities would fill the memory; they are computed again instead.
    None, too, for batches that another process of the run takes care of.
    """
    kept: list[Tensor | None] = []
    processes = current()
    for index, batch in enumerate(given.calibration.batches(labels=False)):
        mine = index % processes.size == processes.rank
        out = full_output(batch) if mine else None
        kept.append(out if out is not None and out.shape[-1] <= WIDEST else None)
    return kept


def distance(
    given: Given,
    gates: Tensor,
    targets: Sequence[Tensor | None],
    *,
    wanted: Sequence[Tensor] | None = None,
) -> float:
    """Mean of ||e(xi) - e(1)||^2 over calibration examples.

    ``wanted`` says for each batch which of its examples count, (size,) of bool; all if None.
    """
    total, count = 0.0, 0
    for index, batch in share(enumerate(given.calibration.batches(labels=False))):
        ones = batch.gates("example").detach()
        grid = given.units.expand(gates.to(ones)).expand_as(ones)
        gap = batch.embed(grid).detach() - full_output(batch, targets[index])
        squares = (widest(gap) ** 2).sum(dim=-1)
        if wanted is not None:
            squares = squares[wanted[index].to(squares.device)]
        total += float(squares.sum())
        count += len(squares)
    (numbers,) = summed("distances", torch.tensor([total, count], dtype=torch.float64))
    total, whole = numbers.tolist()
    return float(total / whole)


def _solve(matrix: Tensor, kept: list[int], right: Tensor, damping: float) -> Tensor:
    inner = matrix[kept][:, kept].double()
    damping = max(damping * float(inner.diagonal().mean()), 1e-30)
    solved: Tensor = torch.linalg.solve(inner + damping * torch.eye(len(kept)).double(), right)
    return solved
