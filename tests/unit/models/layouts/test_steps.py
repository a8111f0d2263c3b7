"""The steps between maps and scores, against what they are defined as."""

import cmath
import math

import pytest
import torch
from families import tiny
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.ernie4_5 import modeling_ernie4_5 as ernie
from transformers.models.glm import modeling_glm as glm

from headscope.models.layouts.steps import rotate, rotate_pairs, take_heads, turns_neighbours

D_HEAD = 8


def angles(width, positions):
    """Cosines and sines as transformers hands them over: two equal halves, (1, pos, width)."""
    frequencies = 100.0 ** -(torch.arange(width // 2) / (width // 2))
    half = torch.arange(positions)[:, None] * frequencies
    both_halves = torch.cat([half, half], dim=-1)[None]
    return both_halves.cos(), both_halves.sin()


@pytest.mark.parametrize("width", [2, 4, D_HEAD])
def test_a_rotation_turns_as_many_coordinates_as_it_has_angles_for(width):
    """Each pair as a complex number times exp(i p theta); the coordinates behind stay."""
    x = torch.randn(1, 2, 5, D_HEAD, generator=torch.Generator().manual_seed(0)).double()
    cos, sin = angles(width, 5)
    turned = rotate(x, cos.double(), sin.double())
    half = width // 2
    for position in range(5):
        for pair in range(half):
            theta = math.atan2(float(sin[0, position, pair]), float(cos[0, position, pair]))
            a = float(x[0, 1, position, pair])
            b = float(x[0, 1, position, pair + half])
            expected = complex(a, b) * cmath.exp(1j * theta)
            assert float(turned[0, 1, position, pair]) == pytest.approx(expected.real, abs=1e-6)
            assert float(turned[0, 1, position, pair + half]) == pytest.approx(
                expected.imag, abs=1e-6
            )
    torch.testing.assert_close(turned[..., width:], x[..., width:], rtol=0, atol=0)


def test_a_rotation_in_float32_keeps_the_type():
    x = torch.randn(1, 2, 5, D_HEAD, generator=torch.Generator().manual_seed(0)).bfloat16()
    cos, sin = angles(D_HEAD, 5)
    turned = rotate(x, cos, sin, in_float32=True)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned, rotate(x.float(), cos, sin).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("family", [cohere, glm, ernie])
def test_neighbours_turn_as_transformers_turns_them(family):
    """Cohere's tables have each angle at both coordinates, GLM's and ERNIE's in both halves."""
    x = torch.randn(1, 2, 5, D_HEAD, generator=torch.Generator().manual_seed(0))
    cos, sin = angles(D_HEAD, 5)
    if family is cohere:
        cos = cos[..., : D_HEAD // 2].repeat_interleave(2, dim=-1)
        sin = sin[..., : D_HEAD // 2].repeat_interleave(2, dim=-1)
    expected, _ = family.apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(rotate_pairs(x, cos, sin), expected)


def test_which_coordinates_turn_is_told_by_what_the_family_does():
    layers = {name: tiny(name).layers[0].self_attn for name in ("glm", "cohere", "llama")}
    turning = {name: turns_neighbours(layer) for name, layer in layers.items()}
    assert turning == {"glm": True, "cohere": True, "llama": False}
    assert not turns_neighbours(torch.nn.Linear(2, 2))


def test_the_biases_of_some_heads():
    bias = torch.arange(4.0)[None, :, None, None]
    assert take_heads(bias, (3, 1)).flatten().tolist() == [3, 1]
    assert take_heads(bias[:, :1], (3, 1)).flatten().tolist() == [0]  # one bias for all heads
    assert take_heads(bias, range(4)) is bias
