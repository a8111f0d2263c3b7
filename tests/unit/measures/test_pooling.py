"""Every way to pool against a loop over tokens, with padding on either side."""

import math

import pytest
import torch
from torch import Tensor

from headscope.measures.pooling import MODES

LENGTHS = (1, 5, 3)
POS = 5


def by_hand(mode: str, tokens: list[list[float]]) -> list[float]:
    """Pool the real tokens of one sequence, one number after the other."""
    columns = list(zip(*tokens, strict=True))
    n = len(tokens)
    if mode == "cls":
        return tokens[0]
    if mode == "last":
        return tokens[-1]
    if mode == "max":
        return [max(column) for column in columns]
    if mode == "weighted":
        total = n * (n + 1) / 2
        return [sum((i + 1) * x for i, x in enumerate(column)) / total for column in columns]
    return [math.fsum(column) / (n if mode == "mean" else math.sqrt(n)) for column in columns]


def batch(side: str) -> tuple[Tensor, Tensor, list[list[list[float]]]]:
    """Sequences of several lengths; what stands at padding is large and must not count."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.full((len(LENGTHS), POS, 4), 1e3, dtype=torch.float64)
    real = torch.zeros(len(LENGTHS), POS, dtype=torch.long)
    tokens = []
    for i, length in enumerate(LENGTHS):
        states = torch.randn(length, 4, generator=generator, dtype=torch.float64)
        at = slice(0, length) if side == "right" else slice(POS - length, POS)
        hidden[i, at], real[i, at] = states, 1
        tokens.append(states.tolist())
    return hidden, real, tokens


@pytest.mark.parametrize("mode", MODES)
def test_pooling_is_that_of_a_loop_and_padding_gets_no_gradient(mode):
    pool = MODES[mode]
    for side in ("left", "right"):
        hidden, real, tokens = batch(side)
        expected = torch.tensor([by_hand(mode, rows) for rows in tokens], dtype=torch.float64)
        for mask in (real, real.bool(), real.double()):
            torch.testing.assert_close(pool(hidden, mask), expected, rtol=0, atol=1e-12)
    # A maximum has a corner where two tokens are equal; these are all different.
    hidden.requires_grad_()
    assert torch.autograd.gradcheck(lambda states: pool(states, real), hidden, atol=1e-6)
    pool(hidden, real).sum().backward()
    assert not hidden.grad[real == 0].any()
    assert hidden.grad.any()
    # Averages of 300 equal states are that state: bfloat16 cannot count so far.
    for dtype in (torch.bfloat16, torch.float16):
        pooled = pool(torch.full((1, 300, 2), 0.75, dtype=dtype), torch.ones(1, 300))
        factor = math.sqrt(300) if mode == "mean-sqrt" else 1.0
        torch.testing.assert_close(pooled, torch.full((1, 2), 0.75 * factor))
