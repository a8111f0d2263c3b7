r"""Every way of scoring heads that is no search over sets of them.

First order (Michel et al.): with gates ``z_h -> xi_h z_h`` the derivative of an example's loss
splits into its tokens::

    dL/dxi_h = sum over tokens t of z_h[t] . dL/dz_h[t]

``importance-token`` takes the absolute value before the sum over tokens, ``importance-example``
after it; the two rank heads differently. Every example has gates of its own, so no gradient is ever
added to another example's before the absolute value.

Second order (``fisher``, Kwon et al.): with labels ``F = sum over examples of g g^T`` with
``g = dL/dxi``; without, the Gauss-Newton matrix of the distance to the unpruned model's outputs.
Removing the heads R changes the loss by about ``sum over i, j in R of F[i, j]``. The diagonal says
how many heads each layer loses; inside a layer heads are then exchanged until no exchange of one
removed head for one kept head lowers that sum.

Both take one forward and one backward pass over the calibration data.

``gates`` (Voita et al.) trains nothing but the logits of hard-concrete gates, which are exactly 0
or 1 with positive chance, under a penalty on their number::

    s     = sigmoid((ln u - ln(1 - u) + log_a) / temperature)        u uniform on (0, 1)
    gate  = min(1, max(0, s (high - low) + low))
    P(open) = P(gate > 0) = sigmoid(log_a - temperature ln(-low / high))

References
----------
Michel et al. 2019, arXiv:1905.10650: equation 2 (example) and the published code (token), section
4.1 (normalisation, after Molchanov et al. 2017), tables 1 to 3 (ablation).
Kwon et al. 2022, arXiv:2204.09656, sections 4.1 (diagonal search) and 4.2 (rearrangement).
Voita et al. 2019, arXiv:1905.09418: sections 4 (confidence) and 6 (gates), and which roles survive
pruning; Louizos et al. 2018, arXiv:1712.01312, equations 10 to 12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

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
from headscope.tasks.gauss_newton import labelled_rows

#: Passes over the calibration data at most, and without a change of the chosen heads to stop.
EPOCHS = 40
PATIENCE = 4
RATE = 0.1  # Step size of Adam.
#: Cost of one open gate in units of the loss: about what removing a middling head of the demo model
#: alone takes from the cosine. It multiplies the plain sum over heads of P(open); the lambda of
#: other codebases, some of which average over layers, is not comparable.
STRENGTH = 0.002
START = 2.0  # Where logits start: P(open) = 0.94.
TEMPERATURE = 0.33
STRETCH = (-0.1, 1.1)


def rank(name: str, context: Context, *, normalise: bool | None = None) -> Ranking:
    """Run a method by name; ``normalise`` by layer as the method itself does, if None."""
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
    options = {} if normalise is None or not info.can_normalise else {"normalise": normalise}
    return _RUN[name](context, **options)


# --- derivatives of the loss ----------------------------------------------------------------------


def importance(kind: str, context: Context, *, normalise: bool = True) -> Ranking:
    """Score heads by the mean absolute derivative of the loss, normalised by layer by default.

    Normalising divides by each layer's l2 norm. By ``token``: mean over real tokens of
    ``abs(z . dL/dz)``; by ``example``: mean over examples of ``abs(dL/dxi)``. A stack's tokens are
    those that its queries are made from (of the source for the encoder, of the target for the
    decoder and cross-attention).
    """
    units = context.units
    total = torch.zeros(len(units), dtype=torch.float64)
    count = torch.zeros_like(total)
    for batch in share(context.calibration.batches(labels=True)):
        ones = batch.gates(kind)
        (gradient,) = torch.autograd.grad(batch.loss(ones).sum(), ones)
        if kind == "token":  # (rows, n_layers, n_heads, pos) -> (rows, pos, n_layers, n_heads)
            gradient = gradient.permute(0, 3, 1, 2)
        sizes = units.contract(exact(gradient)).abs().cpu()  # ([rows, pos or] examples, n_units)
        real = torch.ones_like(sizes)
        if kind == "token":
            real = widest(batch.query_mask.cpu()[:, units.layers].transpose(1, 2))
        total += (sizes * real).flatten(0, -2).sum(dim=0)
        count += real.flatten(0, -2).sum(dim=0)
    total, count = summed(f"importance-{kind}", total, count)
    values = total / count
    return Ranking(per_layer(values, units.layers) if normalise else values)


def per_layer(values: Tensor, layers: Tensor) -> Tensor:
    """Divide each layer's scores by their l2 norm, so that layers compete on equal terms.

    ``layers`` holds the layer of each unit. Scores negligible next to another layer's become 0.
    """
    squares = values.new_zeros(int(layers.max()) + 1).index_add(0, layers, values**2)
    norm = squares.sqrt()[layers]
    return values / norm.where(norm > EPS * norm.max(), norm.new_full((), torch.inf))


class Fisher(Ranking):
    """Scores by the diagonal of the Fisher matrix, refined in layers when heads are removed.

    A unit's value is about what removing it alone adds to the loss; ``normalise`` divides it by its
    layer's l2 norm. Those with the lowest values go; units of a layer are then exchanged by the
    whole matrix.
    """

    def __init__(self, context: Context, *, normalise: bool = False) -> None:
        self._layers = context.units.layers
        if context.labelled:
            rows = labelled_rows(context.calibration.batches(labels=True), context.units)
            self.matrix = rows.t() @ rows
            values = self.matrix.diagonal()
        else:
            sums = context.gauss_newton(1)
            self.matrix = sums.matrix
            values = sums.unit_squares
        super().__init__(per_layer(values, self._layers) if normalise else values)

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go: refined anew for each count."""
        removed = set(super().remove(count))
        for layer in sorted(set(self._layers.tolist())):
            units = (self._layers == layer).nonzero().flatten()
            inside = self.matrix[units][:, units]
            start = torch.tensor([unit in removed for unit in units.tolist()])
            removed -= set(units.tolist())
            removed |= set(units[exchange(inside, start)].tolist())
        return tuple(sorted(removed))


def exchange(matrix: Tensor, removed: Tensor) -> Tensor:
    """Swap removed (n,) and kept units while the sum of the matrix among the removed ones falls.

    ``matrix`` (n, n) is symmetric; as many units are removed as before.
    """
    removed = removed.clone()
    while removed.any() and not removed.all():
        out = removed.nonzero().flatten()
        left = (~removed).nonzero().flatten()
        pull = matrix[:, out].sum(dim=1)
        # Change of the sum when unit i comes back and unit j goes instead.
        back = matrix.diagonal()[out] - 2 * pull[out]
        away = matrix.diagonal()[left] + 2 * pull[left]
        change = back[:, None] + away[None, :] - 2 * matrix[out][:, left]
        i, j = divmod(int(tied(change.flatten().numpy()).argmin()), len(left))
        if change[i, j] >= -ROUNDING * matrix.diagonal().abs().max():  # copies of a head: no gain
            break
        removed[out[i]] = False
        removed[left[j]] = True
    return removed


# --- the metric without heads ---------------------------------------------------------------------


def ablation(context: Context) -> Ranking:
    """Score heads by the drop of the metric without each: n_units + 1 forward passes."""
    units = context.units
    drops = []
    before = context.calibration.quality(units.expand(units.gates(())))
    for unit in range(len(units)):
        without = units.expand(units.gates([unit]))
        drops.append(before - context.calibration.quality(without))
        context.progress("ablation", unit + 1, len(units))
    return Ranking(torch.tensor(drops, dtype=torch.float64), size=abs(before))


# --- trained gates --------------------------------------------------------------------------------


def gates(context: Context, *, strength: float = STRENGTH) -> Ranking:
    """Rank heads by the logits that training under the penalty leaves, by Adam.

    Every example of a batch draws gates (size, n_units) of its own. Training stops when the heads
    that are more likely open than not have not changed for PATIENCE passes.
    """
    logits = torch.full((len(context.units),), START).requires_grad_(True)
    adam = torch.optim.Adam([logits], lr=RATE, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(context.seed)
    before = open_probability(logits.detach()) > 0.5
    unchanged = 0
    for epoch in range(1, EPOCHS + 1):
        for batch in context.calibration.batches(labels=context.labelled):
            grid = context.units.expand(draw_gates(logits, batch.size, generator))
            loss = batch.loss(grid.to(batch.gates("example"))).mean()
            loss = loss + strength * open_probability(logits).sum()
            (logits.grad,) = torch.autograd.grad(loss, logits)
            adam.step()
        now = open_probability(logits.detach()) > 0.5
        unchanged = unchanged + 1 if bool((now == before).all()) else 0
        before = now
        context.progress("gates", epoch, EPOCHS)
        if unchanged >= PATIENCE and epoch > PATIENCE:
            break
    return Ranking(logits)


def open_probability(log_a: Tensor) -> Tensor:
    """Return P(gate > 0), elementwise."""
    low, high = STRETCH
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-low / high))


def draw_gates(log_a: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw gates for ``size`` examples, differentiable by ``log_a``: (size, *log_a.shape)."""
    low, high = STRETCH
    # Away from 0 and 1, whose logarithm is infinite.
    u = torch.rand(size, *log_a.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(log_a)
    s = torch.sigmoid((u.log() - (1 - u).log() + log_a) / TEMPERATURE)
    return (s * (high - low) + low).clamp(0.0, 1.0)


# --- what the classification says -----------------------------------------------------------------


def clearest_role(head: HeadResult) -> float:
    """Return the largest gain of a labelled score over its baseline, plus 1 for having a label.

    Heads without a role go first, the least confident of them before the others.
    """
    if head.labels:
        return 1.0 + max(float(label.score) - label.baseline for label in head.labels)
    return (head.confidence or 0.0) - 1.0  # at most 0: never above a head with a role


def by_largest(value: Callable[[HeadResult], float], context: Context) -> Ranking:
    """Rank units by the largest value among their heads; 0 for a head that was not classified."""
    values = {head: value(result) for head, result in context.roles.items()}
    largest = [max(values.get(head, 0.0) for head in heads) for heads in context.units.members]
    return Ranking(torch.tensor(largest, dtype=torch.float64))


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
    order = torch.randperm(len(context.units), generator=generator)
    return Ranking(order.argsort())


#: By the names in :data:`headscope.pruning.options.METHODS`.
_RUN: dict[str, Callable[..., Ranking]] = {
    "surgeon": surgeon,
    "fisher": Fisher,
    "importance-token": partial(importance, "token"),
    "importance-example": partial(importance, "example"),
    "gates": gates,
    "ablation": ablation,
    "roles": partial(by_largest, clearest_role),
    "magnitude": magnitude,
    # Mean largest attention weight on a content token.
    "confidence": partial(by_largest, lambda head: head.confidence or 0.0),
    "random": random,
}
