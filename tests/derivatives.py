"""Are the derivatives of a task's losses by gates those of finite differences?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task


def gradient(loss: Callable[[Tensor], Tensor], gates: Tensor) -> Tensor:
    (derivative,) = torch.autograd.grad(loss(gates).sum(), gates)
    return derivative


def check_derivatives(task: Task, loaded: LoadedModel, *, labels: bool) -> None:
    """Those of single examples and tokens add up to those of all, and these are the slopes."""
    largest = 0.0
    for batch in task.loss_batches(loaded, labels=labels):
        # Away from 1, where the label-free distance has a slope.
        gates_inside = torch.full_like(batch.gates("shared"), 0.8).requires_grad_()
        by_gate = gradient(batch.loss, gates_inside)
        examples = gates_inside.detach().expand(batch.size, -1, -1).clone().requires_grad_()
        torch.testing.assert_close(gradient(batch.loss, examples).sum(0), by_gate)
        tokens = (0.8 * batch.gates("token").detach()).requires_grad_()
        by_token = gradient(batch.loss, tokens) * batch.query_mask[:, :, None]
        torch.testing.assert_close(by_token.sum((0, 3)), by_gate)
        for head in ((0, 1), (1, 3)):
            slope = 0.0
            for step in (1e-4, -1e-4):
                moved = gates_inside.detach().clone()
                moved[head] += step
                slope += float(batch.loss(moved).sum()) / (2 * step)
            assert slope == pytest.approx(float(by_gate[head]), rel=1e-3, abs=1e-6)
        largest = max(largest, float(by_gate.abs().max()))
        assert batch.embed(gates_inside).shape[0] == batch.size
    assert largest > 1e-6
    assert all(p.grad is None and p.requires_grad for p in loaded.network.parameters())
