"""What is read back from N keys: orthogonal and equal keys, loops, and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headscope.measures.linear.stored_keys import (
    closed_form,
    coherence,
    readout_errors,
    simulate,
    unit_keys,
)


def keys(n: int, d: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 1, n, d, generator=generator, dtype=torch.float64)


def every(n: int) -> torch.Tensor:
    return torch.ones(1, n, dtype=torch.bool)


def errors(k: torch.Tensor, beta: float = 3.0) -> dict[str, float]:
    real = every(k.shape[2])
    unit, _ = unit_keys(k, real, centred=False)
    return {name: float(x) for name, x in readout_errors(unit, real, beta).items()}


def test_orthogonal_keys_are_read_back_exactly_by_the_sum_and_not_by_a_softmax():
    """The other side of the claim: here the linear form errs less."""
    basis = torch.linalg.qr(keys(6, 6)[0, 0])[0][None, None]
    found = errors(2.5 * basis)
    assert found["scaled-sum"] == pytest.approx(0, abs=1e-12)
    assert found["least-squares"] == pytest.approx(0, abs=1e-12)
    off = 1 / (math.exp(3.0) + 5)  # softmax of (3, 0, 0, 0, 0, 0)
    own = math.exp(3.0) * off
    assert found["softmax"] == pytest.approx(0.5 * ((1 - own) ** 2 + 5 * off**2))
    unit, _ = unit_keys(basis, every(6), centred=False)
    assert float(coherence(unit, every(6))) == pytest.approx(0, abs=1e-12)
    # Equal keys cannot be told apart by anything: all read the mean of the four.
    found = errors(torch.ones(1, 1, 4, 3, dtype=torch.float64))
    expected = 0.5 * ((1 - 0.25) ** 2 + 3 * 0.25**2)
    assert found == pytest.approx(
        dict.fromkeys(("scaled-sum", "least-squares", "softmax"), expected)
    )


def test_expected_errors_are_those_of_orthonormal_values_stored_for_real():
    n, d = 7, 4
    k = F.normalize(keys(n, d, 3)[0, 0], dim=-1)
    v = torch.eye(n, dtype=torch.float64)
    found = errors(k[None, None], beta=2.0)

    def error(answers: torch.Tensor) -> float:
        return float(np.mean([0.5 * float(((v[j] - answers[j]) ** 2).sum()) for j in range(n)]))

    memory = sum(torch.outer(v[i], k[i]) for i in range(n))  # (n, d): fast weights
    answers = torch.stack([memory @ k[j] for j in range(n)])
    best = min(error(c * answers) for c in np.linspace(0, 1, 2001))
    assert found["scaled-sum"] == pytest.approx(best, abs=1e-6)
    weights = torch.linalg.pinv(k) @ v
    assert found["least-squares"] == pytest.approx(error(k @ weights))
    assert found["least-squares"] == pytest.approx(0.5 * (1 - d / n))
    sharp = torch.exp(2 * k @ k.T)
    assert found["softmax"] == pytest.approx(error(sharp / sharp.sum(1, keepdim=True) @ v))


def test_padding_and_the_keys_mean_change_nothing_they_should_not():
    k = keys(5, 3)
    padded = torch.cat([k, 7 * torch.ones(1, 1, 2, 3, dtype=torch.float64)], dim=2)
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    for centred in (False, True):
        ours, length = unit_keys(padded, real, centred=centred)
        alone, same = unit_keys(k, every(5), centred=centred)
        torch.testing.assert_close(length, same)
        torch.testing.assert_close(coherence(ours, real), coherence(alone, every(5)))
        expected = readout_errors(alone, every(5), 3.0)
        torch.testing.assert_close(readout_errors(ours, real, 3.0), expected)
    moved, _ = unit_keys(k + 100, every(5), centred=True)
    torch.testing.assert_close(moved, unit_keys(k, every(5), centred=True)[0])
    assert float(coherence(unit_keys(k + 100, every(5), centred=False)[0], every(5))) > 0.99


def test_coherence_is_the_mean_over_pairs():
    k = keys(4, 3)
    rows = F.normalize(k[0, 0], dim=-1)
    pairs = [abs(float(rows[i] @ rows[j])) for i in range(4) for j in range(i)]
    unit, _ = unit_keys(k, every(4), centred=False)
    assert float(coherence(unit, every(4))) == pytest.approx(np.mean(pairs))
    many, _ = unit_keys(keys(400, 32), every(400), centred=False)
    assert float(coherence(many, every(400))) == pytest.approx(math.sqrt(2 / (math.pi * 32)), 0.03)


@pytest.mark.parametrize(("n", "d"), [(8, 16), (32, 16), (64, 16), (48, 8)])
def test_random_keys_give_the_closed_forms(n, d):
    generator = torch.Generator().manual_seed(n)
    drawn = [simulate(n, d, generator) for _ in range(100)]
    for readout in ("sum", "scaled-sum", "least-squares"):
        values = np.array([draw[readout] for draw in drawn])
        expected = closed_form(readout, n, d)
        assert expected is not None
        sem = values.std(ddof=1) / 10
        assert abs(values.mean() - expected) < 3 * sem + 1e-9, readout
    if n > d:
        assert closed_form("least-squares", n, d) == pytest.approx(0.5 * (1 - d / n))
        assert np.mean([draw["softmax"] for draw in drawn]) < 0.5 * (1 - d / n)
    # Any keys that span d dimensions have it, however alike they are.
    alike = keys(20, 5) * 0.05 + 1
    assert errors(alike)["least-squares"] == pytest.approx(0.5 * (1 - 5 / 20))
