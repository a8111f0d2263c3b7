r"""The method ``gates``: train a gate for every head under a penalty on open gates (Voita et al.).

A gate multiplies what a head puts out: 1 is open, 0 removes the head. Nothing but the logits
``log_a`` of hard-concrete gates is trained, one of each unit: of each head, or of heads that can
only go together. A drawn gate is exactly 0 or 1 with positive chance::

    s     = sigmoid((ln u - ln(1 - u) + log_a) / temperature)        u uniform on (0, 1)
    gate  = min(1, max(0, s (high - low) + low))
    P(open) = P(gate > 0) = sigmoid(log_a - temperature ln(-low / high))

References
----------
Voita et al. 2019, arXiv:1905.09418, section 6.
Louizos et al. 2018, arXiv:1712.01312, equations 10 to 12.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headscope.pruning.ranking import Context, Ranking

EPOCHS = 40  # Passes over the calibration data, at most
PATIENCE = 4  # Passes without a change of the chosen heads that end the training
RATE = 0.1  # Step size of Adam
#: Cost of one open gate in units of the loss: about what removing a middling head of the demo model
#: alone takes from the cosine. It multiplies the plain sum over heads of P(open); the lambda of
#: other codebases, some of which average over layers, is not comparable.
STRENGTH = 0.002
START = 2.0  # Where logits start: P(open) = 0.94
TEMPERATURE = 0.33
STRETCH = (-0.1, 1.1)  # low and high of the formulas


def gates(context: Context, *, strength: float = STRENGTH) -> Ranking:
    """Rank units by the logits that Adam leaves, when it lowers the loss and the penalty.

    Every example of a batch draws gates of its own. Training stops when the units that are more
    likely open than not have not changed for PATIENCE passes.
    """
    logits = torch.full((len(context.units),), START).requires_grad_(True)
    adam = torch.optim.Adam([logits], lr=RATE, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(context.seed)
    chosen_before = open_probability(logits.detach()) > 0.5
    unchanged = 0
    for epoch in range(1, EPOCHS + 1):
        for batch in context.calibration.batches(labels=False):
            unit_gates = draw_gates(logits, batch.size, generator)  # [examples, n_units]
            head_gates = context.units.expand(unit_gates)  # [examples, n_layers, n_heads]
            like_the_model = batch.gates("example")  # gates of the right type, on its device
            loss = batch.loss(head_gates.to(like_the_model)).mean()
            loss = loss + strength * open_probability(logits).sum()
            # No backward(): that would fill the gradients of all weights, too.
            (logits.grad,) = torch.autograd.grad(loss, logits)
            adam.step()
        chosen = open_probability(logits.detach()) > 0.5
        unchanged = unchanged + 1 if torch.equal(chosen, chosen_before) else 0
        chosen_before = chosen
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
