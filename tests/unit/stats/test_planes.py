"""Rotations by position, held against complex numbers and against transformers' own functions."""

import pytest
import torch
from rank_reference import gaussian
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_neighbours

from headscope.stats.planes import Planes, planes_of_halves, planes_of_neighbours

ANGLES = torch.tensor([0.9, 0.2, 0.01], dtype=torch.float64)


def tables(positions: int, size: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    phases = torch.arange(positions, dtype=torch.float64)[:, None] * ANGLES
    return size * phases.cos(), size * phases.sin()  # (pos, 3)


@pytest.mark.parametrize("distance", [-7, 0, 1, 500])
def test_part_of_a_head_turns_as_gpt_neox_turns_it(distance):
    cos, sin = (torch.cat([half, half], dim=-1)[None] for half in tables(3))
    planes = planes_of_halves(cos, sin)  # of the first six of eight coordinates
    torch.testing.assert_close(planes.angle, ANGLES)
    W = gaussian(5, 8)
    phase = distance * torch.cat([ANGLES, ANGLES])
    as_query = W[None, None]
    expected, _ = apply_rotary_pos_emb(
        as_query, as_query, phase.cos()[None, None], phase.sin()[None, None]
    )
    torch.testing.assert_close(planes.turned(W, distance), expected[0, 0])
    assert torch.equal(planes.turned(W, distance)[:, 6:], W[:, 6:])


@pytest.mark.parametrize("distance", [-7, 0, 1, 500])
def test_neighbours_turn_as_gptj_turns_them(distance):
    planes = planes_of_neighbours(*tables(3))
    W = gaussian(5, 6)
    phase = (distance * ANGLES)[None, None]
    expected = turn_neighbours(W[None, :, None], phase.sin(), phase.cos())[0, :, 0]
    torch.testing.assert_close(planes.turned(W, distance), expected)


def test_turning_keeps_lengths_and_adds_up():
    planes = planes_of_halves(*(torch.cat([half, half], dim=-1)[None] for half in tables(2)))
    W = gaussian(5, 8)
    torch.testing.assert_close(planes.turned(W, 33).norm(dim=-1), W.norm(dim=-1))
    torch.testing.assert_close(planes.turned(planes.turned(W, 3), 4), planes.turned(W, 7))
    # W_Q R(i - j) W_K^T is W_Q R(i) (W_K R(j))^T
    key = gaussian(5, 8, seed=1)
    torch.testing.assert_close(
        planes.turned(W, 9) @ planes.turned(key, 5).T, planes.turned(W, 4) @ key.T
    )


def test_the_size_of_a_scaled_rotation_belongs_to_the_part_that_turns():
    """Yarn multiplies cosines and sines; coordinates that do not turn are left as they are."""
    cos, sin = (torch.cat([half, half], dim=-1)[None] for half in tables(3, size=1.25))
    planes = planes_of_halves(cos, sin)
    assert planes.size == pytest.approx(1.25, rel=1e-12)
    torch.testing.assert_close(planes.angle, ANGLES)
    W = gaussian(5, 8)
    expected = W * torch.tensor([1.25] * 6 + [1.0] * 2).double()
    torch.testing.assert_close(planes.sized(W), expected)
    rounded = planes_of_halves(cos.float() / 1.25, sin.float() / 1.25)
    assert rounded.size == 1.0


def test_heads_side_by_side_turn_each_by_itself():
    planes = Planes(torch.tensor([0, 2]), torch.tensor([1, 4]), ANGLES[:2])
    heads = gaussian(3, 7, 6)
    joined = heads.transpose(0, 1).flatten(1)  # (7, 3 * 6)
    turned = planes.side_by_side(3, 6).turned(joined, 5)
    torch.testing.assert_close(
        turned.unflatten(-1, (3, 6)).transpose(0, 1), planes.turned(heads, 5)
    )
