"""Sums over a text: padding, chunks, batches and merging leave what all tokens give at once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hand_made import activations
from rank_reference import dense_asymmetry, gaussian
from torch import Tensor

from headscope.attention import key_padding_mask, stream_attention
from headscope.measures.rank.covariance import InputCovariance, square_root
from headscope.measures.rank.pattern_asymmetry import PatternAsymmetry

H, LENGTHS = 3, [6, 4, 1, 3]


def queries_and_keys(layer: int) -> tuple[Tensor, Tensor]:
    return gaussian(4, H, 6, 5, seed=layer), gaussian(4, H, 6, 5, seed=layer + 10)


def observed(entries: int, rows: slice = slice(None)) -> PatternAsymmetry:
    real = torch.arange(6)[None] < torch.tensor(LENGTHS)[rows, None]
    found = PatternAsymmetry(2, H)
    found.start(real)
    for layer in range(2):
        q, k = queries_and_keys(layer)
        q, k = q[rows], k[rows]

        def visit(chunk: slice, heads: slice, p: Tensor, z: Tensor, layer: int = layer) -> None:
            found.observe(activations(p, "encoder", layer, chunk, heads, H, z=z))

        stream_attention(q, k, k, mask=key_padding_mask(real), visit=visit, chunk_entries=entries)
        found.finish("encoder", layer)
    return found


@pytest.mark.parametrize("entries", [1, 40, 10_000])
def test_pattern_asymmetry_is_that_of_each_sentence_alone(entries: int) -> None:
    values = np.zeros((2, H, 4))
    for layer in range(2):
        q, k = queries_and_keys(layer)
        for s, n in enumerate(LENGTHS):
            pattern = torch.softmax(q[s, :, :n] @ k[s, :, :n].mT / 5**0.5, dim=-1)
            values[layer, :, s] = [dense_asymmetry(p.numpy()) for p in pattern]
    merged = observed(entries, slice(0, 1))
    # A single sequence has no standard error, and no head no mean.
    assert bool(np.isfinite(merged.mean()).all())
    assert bool(np.isnan(merged.sem()).all())
    assert bool(np.isnan(PatternAsymmetry(1, 2).mean()).all())
    merged.merge(observed(entries, slice(1, 4)))
    for found in (observed(entries), merged):
        assert bool((found.count == 4).all())
        np.testing.assert_allclose(found.mean(), values.mean(2), rtol=1e-10)
        np.testing.assert_allclose(found.sem(), values.std(2, ddof=1) / 2, rtol=1e-8)


def test_asymmetry_of_known_patterns() -> None:
    n = 6
    cyclic = torch.roll(torch.eye(n), 1, dims=1)  # everybody to the next: no pair is mutual
    mutual = torch.eye(n)[[1, 0, 3, 2, 5, 4]]
    found = PatternAsymmetry(1, 3)
    found.start(torch.ones(1, n, dtype=torch.bool))
    found.observe(activations(torch.stack([torch.full((n, n), 1 / n), cyclic, mutual])[None]))
    np.testing.assert_allclose(found.mean(), [[0, 2**0.5, 0]], atol=1e-7)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Three padded batches of 6 dimensions, far from mean zero; padding holds nonsense."""
    made = []
    for seed in range(3):
        x = gaussian(4, 5, 6, seed=seed) * torch.arange(1, 7) + 20
        real = torch.arange(5)[None] < torch.tensor([5, 3, 1, 4])[:, None]
        x[~real] = 1e6
        made.append((x, real))
    return made


def rows() -> np.ndarray:
    return np.concatenate([x[real].numpy() for x, real in batches()])


def test_covariance_is_numpys_over_real_tokens_however_they_come() -> None:
    whole, first, second, single = (InputCovariance(2, 6) for _ in range(4))
    for index, (x, real) in enumerate(batches()):
        whole.update(1, x, real)
        (first if index < 1 else second).update(1, x, real)
        for row in x[real]:
            single.update(1, row[None, None], torch.ones(1, 1, dtype=torch.bool))
    first.merge(second)
    restored = InputCovariance(2, 6)
    restored.load_state(first.state())
    expected = np.cov(rows().T, bias=True)
    for sums in (whole, restored, single):
        assert sums.count.tolist() == [0, len(rows())]
        np.testing.assert_allclose(sums.mean(1), rows().mean(0), rtol=1e-12)
        np.testing.assert_allclose(sums.covariance(1), expected, rtol=1e-9, atol=1e-10)
    constant = InputCovariance(1, 4)
    constant.update(0, torch.full((2, 3, 4), 3.0), torch.ones(2, 3, dtype=torch.bool))
    assert float(constant.covariance(0).abs().max()) == pytest.approx(0, abs=1e-12)


def test_square_root_is_scipys() -> None:
    covariance = np.cov(rows().T, bias=True)
    root = square_root(torch.from_numpy(covariance)).numpy()
    np.testing.assert_allclose(root, np.real(scipy.linalg.sqrtm(covariance)), atol=1e-10)
    np.testing.assert_allclose(root @ root, covariance, atol=1e-10)
    np.testing.assert_allclose(root, root.T, atol=1e-12)
    factor = gaussian(6, 2)
    singular = factor @ factor.T
    own = square_root(singular - 1e-14 * torch.eye(6))
    assert bool(own.isfinite().all())
    torch.testing.assert_close(own @ own, singular, atol=1e-6, rtol=0)
    assert int(torch.linalg.matrix_rank(own, rtol=1e-6)) == 2
