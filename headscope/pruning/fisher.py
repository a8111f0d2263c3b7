r"""Second-order importance of heads: the Fisher score and its off-diagonal refinement.

With labels, ``F = sum over examples of g g^T`` with ``g = dL/dxi``; without, the Gauss-Newton
matrix of the distance to the unpruned model's outputs (see :mod:`headscope.tasks.gauss_newton`).
Removing the heads R changes the loss by about ``sum over i, j in R of F[i, j]``. The diagonal says
how many heads each layer loses; inside a layer the heads are then exchanged until no exchange of
one removed head for one kept head lowers that sum.

Notes
-----
One forward and one backward pass over the calibration data.

References
----------
Kwon et al. 2022, arXiv:2204.09656, sections 4.1 (diagonal search) and 4.2 (rearrangement).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.measures.rounding import ROUNDING, tied
from headscope.pruning.method import Given, Ranking
from headscope.pruning.normalise import per_layer
from headscope.tasks.gauss_newton import GaussNewton, labelled_rows, sample


class FisherRanking(Ranking):
    """The lowest diagonal entries, exchanged inside layers for the sake of the other entries.

    ``values`` (n_units,) are the diagonal of the symmetric ``matrix``, normalised or not, and
    ``layers`` the layer of each unit.
    """

    def __init__(
        self, values: Tensor, matrix: Tensor, layers: Tensor, passes: dict[str, int]
    ) -> None:
        super().__init__(values, passes=passes)
        self._matrix, self._layers = matrix, layers

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go: refined anew for each count."""
        removed = set(super().remove(count))
        for layer in sorted(set(self._layers.tolist())):
            units = (self._layers == layer).nonzero().flatten()
            inside = self._matrix[units][:, units]
            start = torch.tensor([unit in removed for unit in units.tolist()])
            removed -= set(units.tolist())
            removed |= set(units[exchange(inside, start)].tolist())
        return tuple(sorted(removed))


def fisher(given: Given, *, normalise: bool = False) -> Ranking:
    """Diagonal of the Fisher matrix, refined inside layers when heads are removed.

    A unit's value is about what removing it alone adds to the loss; ``normalise`` divides it by its
    layer's l2 norm.
    """
    matrix, diagonal = information(given, directions=1)
    values = per_layer(diagonal, given.units.layers) if normalise else diagonal
    return FisherRanking(values, matrix, given.units.layers, {"forward": 1, "backward": 1})


def information(given: Given, directions: int) -> tuple[Tensor, Tensor]:
    """Return the matrix (n_units, n_units) and the scores (n_units,) of its diagonal, float64."""
    if given.labelled:
        rows = labelled_rows(given.calibration.batches(labels=True), given.units)
        matrix = rows.t() @ rows
        return matrix, matrix.diagonal()
    found = outputs_matrix(given, directions)
    return found.matrix, found.unit_squares


def outputs_matrix(given: Given, directions: int) -> GaussNewton:
    """Return the label-free sums at the unpruned model, made once for each number of directions."""

    def make() -> GaussNewton:
        batches = given.calibration.batches(labels=False)
        return sample(batches, given.units, directions=directions, seed=given.seed)

    return given.remember(f"gauss-newton {directions}", make)


def exchange(matrix: Tensor, removed: Tensor) -> Tensor:
    """Swap removed (n,) and kept units while the sum of the matrix among the removed ones falls.

    ``matrix`` (n, n) is symmetric; as many units are removed as before.
    """
    removed = removed.clone()
    while removed.any() and not removed.all():
        out, kept = removed.nonzero().flatten(), (~removed).nonzero().flatten()
        pull = matrix[:, out].sum(dim=1)
        # Change of the sum when unit i comes back and unit j goes instead.
        back = matrix.diagonal()[out] - 2 * pull[out]
        away = matrix.diagonal()[kept] + 2 * pull[kept]
        change = back[:, None] + away[None, :] - 2 * matrix[out][:, kept]
        i, j = divmod(int(tied(change.flatten().numpy()).argmin()), len(kept))
        if change[i, j] >= -ROUNDING * matrix.diagonal().abs().max():  # copies of a head: no gain
            break
        removed[out[i]], removed[kept[j]] = False, True
    return removed
