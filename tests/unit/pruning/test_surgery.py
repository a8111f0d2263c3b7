"""Heads taken out of plain linear maps: the definition of attention, one head after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headscope.pruning.surgery import (
    head_rows,
    replace_stored,
    scale_heads,
    with_rows,
    without_rows,
)

D_MODEL, N_HEADS, D_HEAD = 12, 4, 3


def layer(bias: bool = True) -> tuple[list[nn.Linear], nn.Linear]:
    torch.manual_seed(0)
    width = N_HEADS * D_HEAD
    inputs = [nn.Linear(D_MODEL, width, bias=bias, dtype=torch.float64) for _ in range(3)]
    return inputs, nn.Linear(width, D_MODEL, bias=bias, dtype=torch.float64)


def attend(inputs: list[nn.Linear], out: nn.Linear, x: Tensor, gates: list[float]) -> Tensor:
    """Sum over heads, read from the rows of the maps as they stand."""
    total = x.new_zeros(len(x), D_MODEL) if out.bias is None else out.bias.expand(len(x), -1)
    for h, gate in enumerate(gates):
        cut = slice(h * D_HEAD, (h + 1) * D_HEAD)
        q, k, v = (linear(x)[:, cut] for linear in inputs)
        pattern = torch.softmax(q @ k.T / D_HEAD**0.5, dim=-1)
        total = total + gate * (pattern @ v) @ out.weight[:, cut].T
    return total


X = torch.randn(5, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [0, 2], [3], []])
def test_leaving_heads_out_is_a_gate_of_zero_and_expanding_puts_zeros_back(
    kept: list[int], bias: bool
) -> None:
    inputs, out = layer(bias)
    whole, whole_out = layer(bias)
    expected = attend(inputs, out, X, [float(h in kept) for h in range(N_HEADS)])
    gone = head_rows([h for h in range(N_HEADS) if h not in kept], D_HEAD)
    rows = head_rows(kept, D_HEAD)
    names = [(linear, name, 0) for linear in inputs for name in ("weight", "bias")]
    stored = [item for item in [*names, (out, "weight", 1)] if getattr(*item[:2]) is not None]
    for module, name, axis in stored:
        replace_stored(module, name, without_rows(getattr(module, name), gone, axis))
    width = len(kept) * D_HEAD
    assert all(linear.weight.shape == (width, D_MODEL) for linear in inputs)
    assert (out.in_features, inputs[0].out_features) == (width, width)
    torch.testing.assert_close(attend(inputs, out, X, [1.0] * len(kept)), expected)
    for module, name, axis in stored:
        replace_stored(module, name, with_rows(getattr(module, name), gone, axis))
    torch.testing.assert_close(attend(inputs, out, X, [1.0] * N_HEADS), expected)
    for linear, before in zip(inputs, whole, strict=True):
        assert torch.equal(linear.weight[rows], before.weight[rows])
        assert not bool(linear.weight[gone].any())
        assert linear.bias is None or not bool(linear.bias[gone].any())
    assert torch.equal(out.weight[:, rows], whole_out.weight[:, rows])
    assert not bool(out.weight[:, gone].any())


def test_scaling_makes_a_gate_permanent() -> None:
    inputs, out = layer()
    gates = [0.5, 1.0, 0.0, 2.0]
    expected = attend(inputs, out, X, gates)
    scale_heads(out.weight, torch.tensor(gates), D_HEAD)
    torch.testing.assert_close(attend(inputs, out, X, [1.0] * N_HEADS), expected)
