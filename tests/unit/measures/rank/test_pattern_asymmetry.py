"""Asymmetry of patterns: chunks, padding and merging leave it what a sentence alone gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_reference import dense_asymmetry, gaussian
from torch import Tensor

from headscope.attention import key_padding_mask, stream_attention
from headscope.measures.activations import Activations
from headscope.measures.rank.pattern_asymmetry import PatternAsymmetry

H, LENGTHS = 3, [6, 4, 1, 3]


def case(layer: int) -> tuple[Tensor, Tensor]:
    return gaussian(4, H, 6, 5, seed=layer), gaussian(4, H, 6, 5, seed=layer + 10)


def observed(entries: int, rows: slice = slice(None)) -> PatternAsymmetry:
    real = torch.arange(6)[None] < torch.tensor(LENGTHS)[rows, None]
    found = PatternAsymmetry(2, H)
    found.start(real)
    for layer in range(2):
        q, k = (x[rows] for x in case(layer))

        def visit(
            chunk: slice, heads: slice, p: Tensor, z: Tensor, layer: int = layer, q: Tensor = q
        ) -> None:
            found.observe(Activations("encoder", layer, layer, chunk, heads, H, q, q, q, p, z))

        stream_attention(q, k, k, mask=key_padding_mask(real), visit=visit, chunk_entries=entries)
        found.finish("encoder", layer)
    return found


def by_hand() -> np.ndarray:
    """Layer x head x sentence, every sentence alone, without padding."""
    values = np.zeros((2, H, 4))
    for layer in range(2):
        q, k = case(layer)
        for s, n in enumerate(LENGTHS):
            pattern = torch.softmax(q[s, :, :n] @ k[s, :, :n].mT / 5**0.5, dim=-1)
            values[layer, :, s] = [dense_asymmetry(p.numpy()) for p in pattern]
    return values


@pytest.mark.parametrize("entries", [1, 40, 10_000])
def test_equals_each_sentence_alone(entries: int) -> None:
    found, values = observed(entries), by_hand()
    assert bool((found.count == 4).all())
    np.testing.assert_allclose(found.mean(), values.mean(2), rtol=1e-10)
    np.testing.assert_allclose(found.sem(), values.std(2, ddof=1) / 2, rtol=1e-8)


def test_merged_parts_equal_one_pass() -> None:
    merged = observed(40, slice(0, 1))
    merged.merge(observed(40, slice(1, 4)))
    np.testing.assert_allclose(merged.mean(), observed(10_000).mean(), rtol=1e-12)
    np.testing.assert_allclose(merged.sem(), observed(10_000).sem(), rtol=1e-9)


def test_known_patterns() -> None:
    n = 6
    cyclic = torch.roll(torch.eye(n), 1, dims=1)  # everybody to the next: no pair is mutual
    mutual = torch.eye(n)[[1, 0, 3, 2, 5, 4]]
    pattern = torch.stack([torch.full((n, n), 1 / n), cyclic, mutual])[None]
    found = PatternAsymmetry(1, 3)
    found.start(torch.ones(1, n, dtype=torch.bool))
    nothing = pattern[..., :1]
    found.observe(
        Activations(
            "encoder",
            0,
            0,
            slice(0, 1),
            slice(0, 3),
            3,
            nothing,
            nothing,
            nothing,
            pattern,
            nothing,
        )
    )
    np.testing.assert_allclose(found.mean(), [[0, 2**0.5, 0]], atol=1e-7)


def test_a_single_sequence_has_no_standard_error_and_no_head_no_mean() -> None:
    found = observed(10_000, slice(0, 1))
    assert bool(np.isfinite(found.mean()).all())
    assert bool(np.isnan(found.sem()).all())
    assert bool(np.isnan(PatternAsymmetry(1, 2).mean()).all())
