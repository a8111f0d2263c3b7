r"""The methods of choosing heads: :func:`rank` calls the one that has a name.

A method gets a ``Context`` (the model, its units, batches of calibration examples) and returns a
``Ranking``: a value for each unit, the higher the later it goes. A unit is a head, or heads that
can only go together. A gate xi_h multiplies what a head puts out, ``z_h -> xi_h z_h``: 1 in the
unpruned model, 0 where the head is removed. The table at the end lists all methods; ``gates`` and
``surgeon`` have files of their own.

First order (``importance-token`` and ``importance-example``, Michel et al.): the derivative of an
example's loss by a gate splits into its tokens::

    dL/dxi_h = sum over tokens t of z_h[t] . dL/dz_h[t]

``importance-token`` takes the absolute value before the sum over tokens, ``importance-example``
after it; the two rank heads differently. Every example has gates of its own, so no gradient is ever
added to another example's before the absolute value.

Second order (``fisher``, Kwon et al.): F is the Gauss-Newton matrix of the distance to the unpruned
model's outputs. Removing the heads R changes that distance by about ``sum over i, j in R of
F[i, j]``. The diagonal says how many heads each layer loses; inside a layer heads are then
exchanged until no exchange of one removed head for one kept head lowers that sum.

Both take one forward and one backward pass over the calibration data.

References
----------
Michel et al. 2019, arXiv:1905.10650: equation 2 (example) and the published code (token), section
4.1 (normalisation, after Molchanov et al. 2017), tables 1 to 3 (ablation).
Kwon et al. 2022, arXiv:2204.09656, sections 4.1 (diagonal search) and 4.2 (rearrangement).
Voita et al. 2019, arXiv:1905.09418, section 6 (which roles survive pruning).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headscope.analyses.classify.result import HeadResult
from headscope.core.errors import InputError
from headscope.core.processes import share, summed
from headscope.core.rounding import EPS, ROUNDING, tied
from headscope.core.widest import exact, widest
from headscope.pruning.options import METHODS
from headscope.pruning.ranking import Context, Ranking
from headscope.pruning.surgeon import surgeon
from headscope.pruning.trained_gates import gates
from headscope.tasks.units import Head


def rank(name: str, context: Context) -> Ranking:
    """Rank the heads by a method, given by its name; refuse one that lacks what it needs."""
    info = METHODS[name]
    if info.needs_labels and not context.calibration.has_labels:
        raise InputError(
            f"{name} is made of first derivatives of a loss, and the label-free loss has "
            "none at the unpruned model (distance 0, gradient 0); choose fisher, or a task "
            "with labels (mlm needs only text) and calibration data that have them."
        )
    if info.needs_roles and not context.roles:
        raise InputError(
            f"{name} needs to know what the heads do; give roles (the classify.json of "
            "this model), or let the model be classified."
        )
    return _METHODS[name](context)


# --- first derivatives of the loss ----------------------------------------------------------------


def importance_of_tokens(context: Context) -> Ranking:
    """Score heads by the mean over real tokens of ``abs(z . dL/dz)``, over the layer's l2 norm.

    A stack's tokens are those that its queries are made from (of the source for the encoder, of the
    target for the decoder and cross-attention).
    """
    units = context.units
    total = torch.zeros(len(units), dtype=torch.float64)
    count = torch.zeros_like(total)
    for batch in share(context.calibration.batches(labels=True)):  # this process's share of them
        open_gates = batch.gates("token")  # ones (texts, n_layers, n_heads, pos)
        (gradient,) = torch.autograd.grad(batch.loss(open_gates).sum(), open_gates)
        by_token = exact(gradient.permute(0, 3, 1, 2))  # (texts, pos, n_layers, n_heads)
        sizes = units.contract(by_token).abs().cpu()  # (texts, pos, n_units)
        real_by_layer = batch.query_mask.cpu()  # (texts, n_layers, pos)
        real = widest(real_by_layer[:, units.layers].transpose(1, 2))  # (texts, pos, n_units)
        total += (sizes * real).sum(dim=(0, 1))
        count += real.sum(dim=(0, 1))
    return _mean_per_layer("importance-token", context, total, count)


def importance_of_examples(context: Context) -> Ranking:
    """Score heads by the mean over examples of ``abs(dL/dxi)``, over the layer's l2 norm."""
    units = context.units
    total = torch.zeros(len(units), dtype=torch.float64)
    count = torch.zeros_like(total)
    for batch in share(context.calibration.batches(labels=True)):
        open_gates = batch.gates("example")  # ones (examples, n_layers, n_heads)
        (gradient,) = torch.autograd.grad(batch.loss(open_gates).sum(), open_gates)
        sizes = units.contract(exact(gradient)).abs().cpu()  # (examples, n_units)
        total += sizes.sum(dim=0)
        count += len(sizes)
    return _mean_per_layer("importance-example", context, total, count)


def _mean_per_layer(name: str, context: Context, total: Tensor, count: Tensor) -> Ranking:
    """Average sums over the examples of all processes, and let layers compete on equal terms."""
    total, count = summed(name, total, count)
    return Ranking(per_layer(total / count, context.units.layers))


def per_layer(values: Tensor, layers: Tensor) -> Tensor:
    """Divide each layer's scores by their l2 norm, so that layers compete on equal terms.

    Scores 3, 4, 8 of units in layers 0, 0, 1 -> 0.6, 0.8, 1. Those of a layer whose norm is nothing
    but rounding beside another layer's become 0.
    """
    squares_by_layer = values.new_zeros(int(layers.max()) + 1).index_add(0, layers, values**2)
    norm = squares_by_layer.sqrt()[layers]  # of the layer of each unit
    counts = norm > EPS * norm.max()
    return values / norm.masked_fill(~counts, torch.inf)


# --- second derivatives of the distance to the unpruned model -------------------------------------


class Fisher(Ranking):
    """Scores by the diagonal of the Fisher matrix, refined in layers when heads are removed.

    A unit's value is about what removing it alone adds to the distance to the unpruned model's
    outputs. Those with the lowest values go; units of a layer are then exchanged by the whole
    matrix.
    """

    def __init__(self, context: Context) -> None:
        self._layers = context.units.layers
        sums = context.gauss_newton(directions=1)
        self.matrix = sums.matrix
        super().__init__(sums.unit_squares)

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go: refined anew for each count."""
        by_diagonal = set(super().remove(count))
        removed: list[int] = []
        for layer in sorted(set(self._layers.tolist())):
            units = (self._layers == layer).nonzero().flatten()
            matrix_of_layer = self.matrix[units][:, units]
            is_removed = torch.tensor([unit in by_diagonal for unit in units.tolist()])
            is_removed = exchange(matrix_of_layer, is_removed)
            removed += units[is_removed].tolist()
        return tuple(sorted(removed))


def exchange(matrix: Tensor, removed: Tensor) -> Tensor:
    """Swap a removed unit for a kept one as long as that lowers the sum of F among removed units.

    Returns which units are removed, (n,) boolean as ``removed``; as many as before. ``matrix`` F
    (n, n) is symmetric. [[1, 1], [1, 0.5]] with the first removed: the second goes instead.
    """
    removed = removed.clone()
    diagonal = matrix.diagonal()
    least_gain = ROUNDING * diagonal.abs().max()
    while removed.any() and not removed.all():
        gone = removed.nonzero().flatten()
        remaining = (~removed).nonzero().flatten()
        # The change of the sum, [gone, remaining], if the i-th of those gone comes back and the
        # j-th of those that remain goes instead.
        sum_with_gone = matrix[:, gone].sum(dim=1)
        comes_back = diagonal[gone] - 2 * sum_with_gone[gone]
        goes = diagonal[remaining] + 2 * sum_with_gone[remaining]
        change = comes_back[:, None] + goes[None, :] - 2 * matrix[gone][:, remaining]

        # Take the best swap, if it gains more than rounding (none does between copies of a head).
        best_swap = int(tied(change.flatten().numpy()).argmin())
        i, j = divmod(best_swap, len(remaining))
        if change[i, j] >= -least_gain:
            break
        removed[gone[i]] = False
        removed[remaining[j]] = True
    return removed


# --- the metric without heads ---------------------------------------------------------------------


def ablation(context: Context) -> Ranking:
    """Score heads by the drop of the metric without each: n_units + 1 forward passes."""
    units = context.units
    quality = context.calibration.quality
    with_all = quality(units.expand(units.gates(())))
    drops = []
    for unit in range(len(units)):
        gates_without = units.expand(units.gates([unit]))
        drops.append(with_all - quality(gates_without))
        context.progress("ablation", unit + 1, len(units))
    return Ranking(torch.tensor(drops, dtype=torch.float64), size=abs(with_all))


# --- what the classification says -----------------------------------------------------------------


def clearest_role(head: HeadResult) -> float:
    """Return how clear a head's clearest role is: about 1 or more with a role, at most 0 without.

    With a role it is 1 plus the largest gain of a role's score over its baseline. Without one it is
    the head's confidence (the mean of its largest weights) minus 1: the least confident go first.
    """
    if head.labels:
        return 1.0 + max(float(label.score) - label.baseline for label in head.labels)
    return (head.confidence or 0.0) - 1.0


def clearest_roles(context: Context) -> Ranking:
    """Rank units by the clearest role among their heads; a head that was not classified has 0."""
    clearness = {head: clearest_role(result) for head, result in context.roles.items()}

    def clearest(heads: Sequence[Head]) -> float:
        return max(clearness.get(head, 0.0) for head in heads)

    values = [clearest(heads) for heads in context.units.members]
    return Ranking(torch.tensor(values, dtype=torch.float64))


# --- what any method must beat --------------------------------------------------------------------


def magnitude(context: Context) -> Ranking:
    """Score heads by the Frobenius norm of their weights: W_Q, W_K, W_V and W_O together."""
    grid = torch.zeros(context.units.shape, dtype=torch.float64)
    for layer, site in enumerate(context.calibration.loaded.sites):
        weights = site.weights()
        maps = (weights.W_Q, weights.W_K, weights.W_V, weights.W_O)
        squares = sum((exact(W.detach()) ** 2).sum(dim=(1, 2)) for W in maps)
        grid[layer, : weights.n_heads] = torch.as_tensor(squares).cpu()
    return Ranking(context.units.contract(grid).sqrt())


def random(context: Context) -> Ranking:
    """Draw an order of all units from the seed."""
    generator = torch.Generator().manual_seed(context.seed)
    order = torch.randperm(len(context.units), generator=generator)  # units, the first to go first
    return Ranking(order.argsort())  # the place of each unit in it


#: What ranks, by the names in :data:`headscope.pruning.options.METHODS`.
_METHODS: dict[str, Callable[[Context], Ranking]] = {
    "surgeon": surgeon,
    "fisher": Fisher,
    "importance-token": importance_of_tokens,
    "importance-example": importance_of_examples,
    "gates": gates,
    "ablation": ablation,
    "roles": clearest_roles,
    "magnitude": magnitude,
    "random": random,
}
