r"""How a model's outputs move with the gates of its heads, sampled in one backward pass.

``xi`` (n_units,) are the gates: factors of the outputs of heads, 1 in the unpruned model and 0
where one is removed. A *unit* is what can be removed on its own: a head, or in ALBERT the same head
of all layers.

For the output ``e`` (d,) of one example and ``J = de/dxi`` (d, n_units), a random direction r of
length 1 has ``E[r r^T] = I / d`` and gives a row ``J^T r``. The outer product of this row, times d,
has the mean ``J^T J``: the Gauss-Newton matrix of the distance ``||e(xi) - e(1)||^2``, whose own
first derivative vanishes at ``xi = 1``.

:func:`sample` is that pass. :func:`labelled_rows` takes the derivatives of labelled losses instead;
:func:`full_outputs` and :func:`distance` need no derivatives: the outputs ``e(1)`` of the unpruned
model, and how far pruned outputs are from them.

A :class:`LossBatch` is some examples (``size`` of them) that the model runs with gates:
``batch.gates("example")`` makes gates of one, (size, n_layers, n_heads), and ``batch.embed(gates)``
returns the outputs e, (size, d). :class:`Units` turns values of units into values of heads
(``expand``) and sums values of heads over each unit (``contract``). Numbers are added up in float64
where that is possible: ``exact`` always makes float64, if need be on the CPU; ``widest`` makes the
widest type that the tensor's device has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import numpy
from headscope.core.processes import current, gathered_in_order, share, summed
from headscope.core.widest import exact, widest
from headscope.tasks.loss_batches import Directions, LossBatch
from headscope.tasks.units import Units

#: Outputs e of at most so many numbers are stored: log-probabilities would fill the memory.
LONGEST_STORED = 4096
#: The unpruned model's outputs (size, d) of each batch; None where they are computed when needed.
Targets = Sequence[Tensor | None]


@dataclass(frozen=True)
class GaussNewton:
    """Means over examples, float64."""

    matrix: Tensor  # (n_units, n_units): J^T J
    gradient: Tensor  # (n_units,): J^T (e(xi) - e(1)), half the gradient of the squared distance
    #: (n_units,): (d(r . e)/dxi)^2 over directions r of length 1; heads are ranked by it. Where
    #: outputs are as long as the longest of their batch, all count as if they had the mean length.
    unit_squares: Tensor
    distance: float  # ||e(xi) - e(1)||^2


def sample(
    batches: Iterator[LossBatch],
    units: Units,
    *,
    unit_gates: Tensor | None = None,
    targets: Targets | None = None,
    directions: int = 1,
    seed: int = 0,
) -> GaussNewton:
    """Pass over the examples once and sum up derivatives of their outputs.

    They are taken at ``unit_gates`` (n_units,), ones by default. ``gradient`` and ``distance`` need
    ``targets``; without them both are 0. Each random direction costs one backward pass. Of several
    processes each takes its share of the batches; the sums are those of all.
    """
    n_units = len(units)
    matrix = torch.zeros(n_units, n_units, dtype=torch.float64)
    gradient = torch.zeros(n_units, dtype=torch.float64)
    distance = 0.0
    count = 0.0  # examples
    total_width = 0.0  # numbers d of all examples' outputs
    for index, batch in share(enumerate(batches)):
        random_directions = Directions(batch, seed)
        gates = batch.gates("example")  # ones, (size, n_layers, n_heads)
        if unit_gates is not None:
            gates = units.expand(unit_gates.to(gates)).expand_as(gates).clone()
            gates.requires_grad_(True)
        output = batch.embed(gates)  # (size, d)
        if targets is not None:
            gap = output.detach() - _full_output(batch, targets[index])
            gradient += _pull(output, gates, gap, units).sum(dim=0)
            distance += float((widest(gap) ** 2).sum())
        for _ in range(directions):
            rows = _pull(output, gates, random_directions.draw(output), units)  # J^T r of each
            matrix += rows.t() @ rows * (output.shape[-1] / directions)
        count += batch.size
        total_width += batch.size * output.shape[-1]

    numbers = torch.tensor([distance, count, total_width], dtype=torch.float64)
    matrix, gradient, numbers = summed("gradients", matrix, gradient, numbers)
    distance, count, total_width = numbers.tolist()
    return GaussNewton(
        matrix=matrix / count,
        gradient=gradient / count,
        unit_squares=matrix.diagonal() / total_width,
        distance=distance / count,
    )


def _pull(output: Tensor, gates: Tensor, vectors: Tensor, units: Units) -> Tensor:
    """Return J^T r of each example, (size, n_units); r is its row of ``vectors``, (size, d)."""
    (gradient,) = torch.autograd.grad(output, gates, vectors, retain_graph=True)
    return units.contract(exact(gradient)).cpu()


def labelled_rows(batches: Iterator[LossBatch], units: Units) -> Tensor:
    """Return all examples' ``dL_i/dxi`` at the unpruned model: (examples, n_units), float64."""
    rows = {}  # by number of the batch
    for index, batch in share(enumerate(batches)):
        gates = batch.gates("example")  # (size, n_layers, n_heads)
        (gradient,) = torch.autograd.grad(batch.loss(gates).sum(), gates)
        rows[index] = numpy(units.contract(exact(gradient)))
    return torch.from_numpy(np.concatenate(gathered_in_order("labelled gradients", rows)))


def full_outputs(batches: Iterable[LossBatch]) -> list[Tensor | None]:
    """Return the unpruned model's outputs of each batch.

    None for those of more than 4,096 numbers an example, and for batches that another process of
    the run takes care of.
    """
    outputs: list[Tensor | None] = []
    for index, batch in enumerate(batches):
        output = None
        is_own_batch = index % current().size == current().rank  # as ``share`` deals them out
        if is_own_batch:
            output = batch.full().detach()
            if output.shape[-1] > LONGEST_STORED:
                output = None
        outputs.append(output)
    return outputs


def distance(
    batches: Iterable[LossBatch],
    units: Units,
    gates: Tensor,
    targets: Targets,
) -> float:
    """Return the mean of ||e(xi) - e(1)||^2 over examples, at gates (n_units,)."""
    total = 0.0
    count = 0
    for index, batch in share(enumerate(batches)):
        ones = batch.gates("example").detach()
        gates_of_heads = units.expand(gates.to(ones)).expand_as(ones)
        gap = batch.embed(gates_of_heads).detach() - _full_output(batch, targets[index])
        squares = (widest(gap) ** 2).sum(dim=-1)
        total += float(squares.sum())
        count += len(squares)
    (numbers,) = summed("distances", torch.tensor([total, count], dtype=torch.float64))
    total, n_examples = numbers.tolist()
    return float(total / n_examples)


def _full_output(batch: LossBatch, stored: Tensor | None) -> Tensor:
    """Return the unpruned model's output e: as it was stored, or computed now."""
    return batch.full().detach() if stored is None else stored
