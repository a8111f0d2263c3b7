from __future__ import annotations

import math

import torch

from headscope.measures.z_agreement import z_agreement

REAL = torch.tensor([[True] * 20 + [False] * 4, [True] * 24])


def recorded(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    pattern = torch.randn(2, 3, 24, 24, generator=generator).softmax(-1).to(dtype)
    v = torch.randn(2, 3, 24, 40, generator=generator).to(dtype)
    return (pattern.double() @ v.double()).to(dtype), pattern, v


def test_rounding_and_factor_of_a_head_by_loops() -> None:
    z, pattern, v = recorded(torch.bfloat16)
    z[:, 1] *= 1.25
    found = z_agreement(z, pattern, v, REAL)
    for head in range(3):
        gap = size = products = squares = 0.0
        for row in range(2):
            for i in range(24):
                if not REAL[row, i]:
                    continue
                for c in range(40):
                    terms = [
                        float(pattern[row, head, i, j]) * float(v[row, head, j, c])
                        for j in range(24)
                    ]
                    exact = sum(terms)
                    gap += abs(float(z[row, head, i, c]) - exact)
                    size += abs(exact) + math.sqrt(sum(t * t for t in terms))
                    products += exact * float(z[row, head, i, c])
                    squares += exact * exact
        torch.testing.assert_close(
            float(found.rounding[head]), gap / size * 2**7, rtol=1e-4, atol=0
        )
        fit = found.scale.of_head(head)
        assert fit is not None
        torch.testing.assert_close(fit.value, products / squares, rtol=1e-5, atol=0)
        assert fit.beyond(3e-3) == (head == 1)


def test_padding_counts_for_nothing() -> None:
    z, pattern, v = recorded(torch.float32)
    right = z_agreement(z, pattern, v, REAL)
    z[0, :, 20:] = torch.inf
    assert torch.equal(z_agreement(z, pattern, v, REAL).rounding, right.rounding)


def test_where_everything_is_zero_the_gap_itself_counts() -> None:
    z, pattern, v = recorded(torch.float16)
    assert z_agreement(0 * z, pattern, 0 * v, REAL).rounding.tolist() == [0, 0, 0]
    assert bool((z_agreement(z, pattern, 0 * v, REAL).rounding > 10).all())
