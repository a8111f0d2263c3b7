"""Training nothing but the logits of head gates, until they settle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headscope.pruning.method import Given

#: Passes over the calibration data at most, and without a change of the chosen heads to stop.
EPOCHS, PATIENCE = 40, 4
#: Step size of Adam.
RATE = 0.1


def train_logits(
    given: Given,
    name: str,
    start: Tensor,
    *,
    draw: Callable[[Tensor, int, torch.Generator], Tensor],
    penalty: Callable[[Tensor], Tensor],
    chosen: Callable[[Tensor], Tensor],
) -> tuple[Tensor, int]:
    """Minimise the mean loss plus a penalty over logits of units, by Adam.

    Parameters
    ----------
    given : Given
        Every example of a batch draws gates of its own. With ``use_labels`` the loss is the
        labelled one, otherwise the distance to the unpruned model.
    name : str
        For the progress bar.
    start : Tensor, (n_units,)
        The first logits.
    draw : callable
        From logits, a number of examples and a generator to gates (size, n_units).
    penalty : callable
        From logits to what is added to the loss, a tensor ().
    chosen : callable
        From logits to the boolean choice (n_units,) they stand for: training stops when it has not
        changed for PATIENCE passes.

    Returns
    -------
    logits : Tensor, (n_units,)
        After the last pass.
    passes : int
        Over the calibration data.
    """
    logits = start.clone().requires_grad_(True)
    adam = torch.optim.Adam([logits], lr=RATE, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(given.seed)
    before, still = chosen(logits.detach()), 0
    for epoch in range(1, EPOCHS + 1):
        for batch in given.calibration.batches(labels=given.labelled):
            gates = given.units.expand(draw(logits, batch.size, generator))
            loss = batch.loss(gates.to(batch.gates("example"))).mean() + penalty(logits)
            (logits.grad,) = torch.autograd.grad(loss, logits)
            adam.step()
        now = chosen(logits.detach())
        still = still + 1 if bool((now == before).all()) else 0
        before = now
        given.progress(name, epoch, EPOCHS)
        if still >= PATIENCE and epoch > PATIENCE:
            given.progress(name, EPOCHS, EPOCHS)
            break
    return logits.detach(), epoch
