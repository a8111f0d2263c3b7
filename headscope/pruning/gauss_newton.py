r"""How a model's outputs move with the gates of its heads, sampled in one backward pass.

For the output ``e`` (d,) of one example and ``J = de/dxi`` (d, n_units), a random direction r with
``E[r r^T] = I`` gives a row ``J^T r`` whose outer product has the mean ``J^T J``: the Gauss-Newton
matrix of the distance ``||e(xi) - e(1)||^2``, whose own first derivative vanishes at ``xi = 1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.processes import in_order, share, summed
from headscope.core.widest import exact, widest
from headscope.pruning.method import GradientBatch
from headscope.pruning.units import Units


@dataclass(frozen=True)
class GaussNewton:
    """Sums over examples, as means.

    Attributes
    ----------
    matrix : Tensor, (n_units, n_units), float64
        Mean of ``J^T J``.
    gradient : Tensor, (n_units,), float64
        Mean of ``J^T (e(xi) - e(1))``: half the gradient of the mean squared distance.
    unit_squares : Tensor, (n_units,), float64
        Mean of ``(d(r . e)/dxi)^2`` over *unit* directions r: the label-free ``fisher`` score.
    distance : float
        Mean of ``||e(xi) - e(1)||^2``.
    """

    matrix: Tensor
    gradient: Tensor
    unit_squares: Tensor
    distance: float


def sample(
    batches: Iterator[GradientBatch],
    units: Units,
    *,
    at: Tensor | None = None,
    targets: Sequence[Tensor | None] | None = None,
    directions: int = 1,
    seed: int = 0,
) -> GaussNewton:
    """Pass over the examples once and sum up derivatives of their outputs.

    Of several processes each takes its share of the batches; the sums are those of all.

    Parameters
    ----------
    batches : iterator of GradientBatch
        One pass over the examples.
    units : Units
        What the gates belong to.
    at : Tensor, (n_units,), optional
        Gates at which to differentiate; ones by default.
    targets : sequence of Tensor (size, d) or None, optional
        The unpruned model's outputs of each batch, for ``gradient`` and ``distance``; those that
        are None are computed again.
    directions : int
        Random directions per example; each costs one more backward pass.
    seed : int
        Of the random directions.
    """
    n = len(units)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    gradient, squares = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    distance, count = 0.0, 0.0
    for index, batch in share(enumerate(batches)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        gates = _gates(batch, units, at)
        out = batch.embed(gates)
        if targets is not None:
            gap = out.detach() - full_output(batch, targets[index])
            gradient += _pull(out, gates, gap, units).sum(dim=0)
            distance += float((widest(gap) ** 2).sum())
        for _ in range(directions):
            r = _unit_directions(out, generator)
            rows = _pull(out, gates, r, units)
            squares += (rows**2).sum(dim=0) / directions
            # A unit direction has E[r r^T] = I / d.
            matrix += rows.t() @ rows * (out.shape[-1] / directions)
        count += batch.size
    numbers = torch.tensor([distance, count], dtype=torch.float64)
    matrix, gradient, squares, numbers = summed("gradients", matrix, gradient, squares, numbers)
    distance, count = numbers.tolist()
    return GaussNewton(matrix / count, gradient / count, squares / count, distance / count)


def labelled_rows(batches: Iterator[GradientBatch], units: Units) -> Tensor:
    """Return all examples' ``dL_i/dxi`` at the unpruned model: (examples, n_units), float64."""
    rows = {}
    for index, batch in share(enumerate(batches)):
        gates = batch.gates("example")
        (gradient,) = torch.autograd.grad(batch.loss(gates).sum(), gates)
        rows[index] = units.contract(exact(gradient)).cpu()
    return torch.cat(in_order("labelled gradients", rows))


def full_output(batch: GradientBatch, stored: Tensor | None = None) -> Tensor:
    """Return the unpruned model's outputs of a batch, as stored or computed: (size, d)."""
    if stored is not None:
        return stored
    return batch.full().detach()


def _gates(batch: GradientBatch, units: Units, at: Tensor | None) -> Tensor:
    gates = batch.gates("example")
    if at is None:
        return gates
    grid = units.expand(at.to(gates))
    return grid.expand_as(gates).clone().requires_grad_(True)


def _unit_directions(out: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(out.shape, generator=generator, dtype=torch.float32)
    return F.normalize(drawn, dim=-1).to(out)


def _pull(out: Tensor, gates: Tensor, by: Tensor, units: Units) -> Tensor:
    """J^T by, of each example: (size, n_units), float64."""
    (gradient,) = torch.autograd.grad(out, gates, by, retain_graph=True)
    return units.contract(exact(gradient)).cpu()
