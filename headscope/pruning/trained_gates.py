r"""``gates`` and ``topk``: nothing but the logits of head gates is trained, until they settle.

``gates`` (Voita et al.) draws hard-concrete gates, which are exactly 0 or 1 with positive chance,
under a penalty on their number::

    s     = sigmoid((ln u - ln(1 - u) + log_a) / temperature)        u uniform on (0, 1)
    gate  = min(1, max(0, s (high - low) + low))
    P(open) = P(gate > 0) = sigmoid(log_a - temperature ln(-low / high))

``topk`` (Li et al.) keeps the k largest of ``w + g`` with Gumbel noise g. Forward exactly k gates
are 1; backward the relaxed sample takes their place, k softmaxes of which each lowers what the one
before has taken::

    a_1 = w + g     p_i = softmax(a_i / temperature)     a_(i+1) = a_i + ln(1 - p_i)
    m = p_1 + ... + p_k                                  sums to k

References
----------
Voita et al. 2019, arXiv:1905.09418, section 6; Louizos et al. 2018, arXiv:1712.01312, equations 10
to 12. Li, Cotterell & Sachan 2021, arXiv:2108.04657, section 3; Xie & Ermon 2019, arXiv:1901.10517.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headscope.pruning.ranking import Context, Ranking

#: Passes over the calibration data at most, and without a change of the chosen heads to stop.
EPOCHS, PATIENCE = 40, 4
RATE = 0.1  # Step size of Adam.
#: Cost of one open gate in units of the loss: about what removing a middling head of the demo model
#: alone takes from the cosine. It multiplies the plain sum over heads of P(open); the lambda of
#: other codebases, some of which average over layers, is not comparable.
STRENGTH = 0.002
START = 2.0  # Where logits start: P(open) = 0.94.
TEMPERATURE, STRETCH = 0.33, (-0.1, 1.1)
TOPK_TEMPERATURE = 0.5


def gates(context: Context, *, strength: float = STRENGTH) -> Ranking:
    """Rank heads by the logits that training under the penalty leaves."""
    return _trained(
        context,
        "gates",
        torch.full((len(context.units),), START),
        draw=draw_gates,
        penalty=lambda log_a: strength * open_probability(log_a).sum(),
        chosen=lambda log_a: open_probability(log_a) > 0.5,
    )


def open_probability(log_a: Tensor) -> Tensor:
    """P(gate > 0), elementwise."""
    low, high = STRETCH
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-low / high))


def draw_gates(log_a: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw gates for ``size`` examples, differentiable by ``log_a``: (size, *log_a.shape)."""
    low, high = STRETCH
    # Away from 0 and 1, whose logarithm is infinite.
    u = torch.rand(size, *log_a.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(log_a)
    s = torch.sigmoid((u.log() - (1 - u).log() + log_a) / TEMPERATURE)
    return (s * (high - low) + low).clamp(0.0, 1.0)


def topk(context: Context) -> Ranking:
    """Rank heads by logits trained for ``context.budget`` removed heads; other budgets share them.

    The budget is exact: in training, too, every example sees that number of heads.
    """
    n = len(context.units)
    kept = n - context.budget
    if not 0 < kept < n:
        kept = n - n // 2

    def draw(logits: Tensor, size: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(size, n, generator=generator).clamp(1e-9, 1 - 1e-7)
        return hard_sample(logits + -(-u.log()).log(), kept)

    def largest(logits: Tensor) -> Tensor:
        return torch.zeros(n, dtype=torch.bool).index_fill(0, logits.topk(kept).indices, True)

    return _trained(
        context,
        "topk",
        torch.zeros(n),
        draw=draw,
        chosen=largest,
        penalty=lambda logits: logits.new_zeros(()),
    )


def relaxed_sample(scores: Tensor, k: int, temperature: float = TOPK_TEMPERATURE) -> Tensor:
    """Relax the indicator of the k largest scores: (..., n) in [0, 1], summing to k."""
    total = torch.zeros_like(scores)
    for _ in range(k):
        p = torch.softmax(scores / temperature, dim=-1)
        total = total + p
        scores = scores + torch.log1p(-p.clamp(max=1 - 1e-6))
    return total


def hard_sample(scores: Tensor, k: int) -> Tensor:
    """Indicator of the k largest scores, with the gradient of :func:`relaxed_sample`."""
    soft = relaxed_sample(scores, k)
    hard = torch.zeros_like(soft).scatter(-1, scores.topk(k, dim=-1).indices, 1.0)
    return hard + soft - soft.detach()


def _trained(
    context: Context,
    name: str,
    start: Tensor,
    *,
    draw: Callable[[Tensor, int, torch.Generator], Tensor],
    penalty: Callable[[Tensor], Tensor],
    chosen: Callable[[Tensor], Tensor],
) -> Ranking:
    """Minimise the mean loss plus a penalty over logits (n_units,), by Adam.

    Every example of a batch draws gates (size, n_units) of its own. ``chosen`` gives the boolean
    choice that logits stand for: training stops when it has not changed for PATIENCE passes.
    """
    logits = start.clone().requires_grad_(True)
    adam = torch.optim.Adam([logits], lr=RATE, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(context.seed)
    before, unchanged = chosen(logits.detach()), 0
    for epoch in range(1, EPOCHS + 1):
        for batch in context.calibration.batches(labels=context.labelled):
            grid = context.units.expand(draw(logits, batch.size, generator))
            loss = batch.loss(grid.to(batch.gates("example"))).mean() + penalty(logits)
            (logits.grad,) = torch.autograd.grad(loss, logits)
            adam.step()
        now = chosen(logits.detach())
        unchanged = unchanged + 1 if bool((now == before).all()) else 0
        before = now
        context.progress(name, epoch, EPOCHS)
        if unchanged >= PATIENCE and epoch > PATIENCE:
            context.progress(name, EPOCHS, EPOCHS)
            break
    return Ranking(logits, passes={"forward": epoch, "backward": epoch})
