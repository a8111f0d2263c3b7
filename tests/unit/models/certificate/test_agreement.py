"""The fitted scale and the error of a pattern and of z, planted and by slow programs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from headscope.models.certificate.agreement import agreement, z_agreement

HEADS = 3
POS = 30
WIDTH = 8
SCALE = WIDTH**-0.5


def queries_and_keys(spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Random q and k, (2, heads, pos, width); the last nine positions of one are padding."""
    q, k = torch.randn(2, 2, HEADS, POS, WIDTH, generator=torch.Generator().manual_seed(3))
    real = torch.ones(2, POS, dtype=torch.bool)
    real[1, -9:] = False
    return q.double() * spread, k.double(), real


def patterns(q: Tensor, k: Tensor, real: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Softmax of factor times the scores, computed in float64 and then rounded."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) * SCALE * factor
    scores[~real[:, None, None, :].expand_as(scores)] = -torch.inf
    weights = scores.exp()
    return (weights / weights.sum(-1, keepdim=True)).to(dtype)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.01])
@pytest.mark.parametrize("spread", [0.05, 1.0, 3.0])
def test_a_planted_scale_is_found(spread, factor):
    q, k, real = queries_and_keys(spread)
    result = agreement(patterns(q, k, real, factor, torch.float64), q, k, SCALE, real)
    for fit in (result.scale.pooled(), *(result.scale.of_head(h) for h in range(HEADS))):
        assert fit.value == pytest.approx(factor, abs=1e-9)
        assert fit.beyond(1e-3) == (factor != 1)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.01])
def test_a_planted_scale_is_found_through_rounding(factor):
    q, k, real = queries_and_keys(1.0)
    for dtype in (torch.float16, torch.bfloat16):
        q = q.to(dtype)
        k = k.to(dtype)
        fit = agreement(patterns(q, k, real, factor, dtype), q, k, SCALE, real).scale.pooled()
        assert abs(fit.value - factor) < 4 * fit.error < 4e-3


def test_the_fit_is_weighted_least_squares():
    """One regression with a dummy column for every row of every head, solved by numpy."""
    q, k, real = queries_and_keys()
    q = q[:1]
    k = k[:1]
    real = real[:1]
    noise = torch.randn(HEADS, POS, POS, generator=torch.Generator().manual_seed(4)).double()
    pattern = patterns(q, k, real, 1.02, torch.float64) * (noise * 0.01).exp()
    scores = (q[0] @ k[0].mT * SCALE).numpy()
    root = 1 / np.sqrt(1 + scores**2).ravel()
    dummies = np.kron(np.eye(HEADS * POS), np.ones((POS, 1)))
    design = np.column_stack([scores.ravel(), dummies]) * root[:, None]
    expected = np.linalg.lstsq(design, np.log(pattern[0].numpy()).ravel() * root)[0][0]
    fitted = agreement(pattern, q, k, SCALE, real).scale.pooled()
    assert fitted.value == pytest.approx(expected, rel=1e-9)


def test_the_standard_error_covers_the_truth():
    """Of 200 patterns whose rows share half their noise, about 5% fall outside two errors."""
    generator = torch.Generator().manual_seed(5)
    q, k, real = queries_and_keys()
    q = q[:1]
    k = k[:1]
    real = real[:1]
    exact = patterns(q, k, real, 1.0, torch.float64)
    outside = 0
    for _ in range(200):
        noise = torch.randn(1, HEADS, POS, POS, generator=generator).double()
        shared = torch.randn(1, HEADS, 1, POS, generator=generator).double()
        fit = agreement(exact * (0.01 * (noise + shared)).exp(), q, k, SCALE, real).scale.pooled()
        outside += abs(fit.value - 1) > 2 * fit.error
    assert outside <= 20


def test_error_is_the_mean_difference_in_units_of_one_over_n_and_padding_does_not_count():
    q, k, real = queries_and_keys()
    pattern = patterns(q, k, real, 1.0, torch.float64)
    pattern[0, 1, 4, 7] += 0.25
    before = agreement(pattern, q, k, SCALE, real)
    assert before.error[1].item() == pytest.approx(0.25 / int(real.sum()), rel=1e-3)
    assert before.error[0].item() < 1e-6
    pattern[1, :, -9:] = torch.nan
    q[1, :, -9:] = 1e3
    after = agreement(pattern.nan_to_num(7.0), q, k, SCALE, real)
    torch.testing.assert_close(after.error, before.error)
    torch.testing.assert_close(after.scale.sums, before.scale.sums)


REAL = torch.tensor([[True] * 20 + [False] * 4, [True] * 24])


def recorded(dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    pattern = torch.randn(2, 3, 24, 24, generator=generator).softmax(-1).to(dtype)
    v = torch.randn(2, 3, 24, 40, generator=generator).to(dtype)
    return (pattern.double() @ v.double()).to(dtype), pattern, v


def test_rounding_and_factor_of_a_head_by_loops():
    z, pattern, v = recorded(torch.bfloat16)
    z[:, 1] *= 1.25
    result = z_agreement(z, pattern, v, REAL)
    for head in range(3):
        gap = size = products = squares = 0.0
        weights = pattern[:, head].double().numpy()
        values = v[:, head].double().numpy()
        ours = z[:, head].double().numpy()
        for row, i in REAL.nonzero().tolist():
            for c in range(40):
                terms = [weights[row, i, j] * values[row, j, c] for j in range(24)]
                exact = sum(terms)
                gap += abs(ours[row, i, c] - exact)
                size += abs(exact) + math.sqrt(sum(t * t for t in terms))
                products += exact * ours[row, i, c]
                squares += exact * exact
        assert float(result.rounding[head]) == pytest.approx(gap / size * 2**7, rel=1e-4)
        fit = result.scale.of_head(head)
        assert fit.value == pytest.approx(products / squares, rel=1e-5)
        assert fit.beyond(3e-3) == (head == 1)


def test_padded_and_empty_z():
    z, pattern, v = recorded(torch.float32)
    right = z_agreement(z, pattern, v, REAL)
    z[0, :, 20:] = torch.inf
    assert torch.equal(z_agreement(z, pattern, v, REAL).rounding, right.rounding)
    # Where everything is zero the gap itself counts.
    z, pattern, v = recorded(torch.float16)
    assert z_agreement(0 * z, pattern, 0 * v, REAL).rounding.tolist() == [0, 0, 0]
    assert bool((z_agreement(z, pattern, 0 * v, REAL).rounding > 10).all())
