"""Rotary positions against complex numbers, and which rows belong to heads that share a key."""

import cmath
import itertools

import pytest
import torch
from torch import Tensor, nn

from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.rotary import GroupRows, rotate, rotated


def angles(positions: int, d_head: int) -> tuple[Tensor, Tensor]:
    """Cos and sin as models hand them over, (1, pos, d_head)."""
    speed = 100.0 ** -(torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angle = torch.arange(positions)[:, None] * speed
    both = torch.cat([angle, angle], dim=1)[None]
    return both.cos(), both.sin()


def test_rotation_is_a_product_of_complex_numbers():
    """Each plane's point times exp(i * position * speed), one after the other."""
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = x.clone()
    for b, h, p, i in itertools.product(range(2), range(3), range(7), range(3)):
        point = complex(x[b, h, p, i], x[b, h, p, i + 3])
        point *= cmath.exp(1j * p * 100.0 ** (-2 * i / 6))
        out[b, h, p, i], out[b, h, p, i + 3] = point.real, point.imag
    torch.testing.assert_close(rotate(x, *angles(7, 6)), out)


def test_queries_and_keys_are_rotated_and_values_are_not():
    q = torch.randn(1, 2, 7, 6, dtype=torch.float64)
    heads = Heads(q, 2 * q, 3 * q)
    placed = rotated(heads, AttentionInput(q, q, given={"position_embeddings": angles(7, 6)}))
    assert torch.equal(placed.q, rotate(heads.q, *angles(7, 6)))
    assert torch.equal(placed.k, rotate(heads.k, *angles(7, 6)))
    assert placed.v is heads.v
    assert rotated(heads, AttentionInput(q, q, given={"position_embeddings": None})) is heads


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wide_rotation_rounds_once(dtype):
    x = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    cos, sin = (part.to(dtype) for part in angles(7, 8))
    exact = rotate(x.double(), cos.double(), sin.double())
    wide, narrow = (rotate(x, cos, sin, wide=wide) for wide in (True, False))
    assert wide.dtype == narrow.dtype == dtype
    assert torch.equal(wide, exact.to(dtype))
    assert not torch.equal(wide, narrow)


@pytest.mark.parametrize(
    ("there", "heads", "places"),
    [
        (range(6), [1], []),
        (range(6), [0, 1], [0]),
        (range(6), [0, 1, 3, 4, 5], [0, 2]),
        (range(6), range(6), [0, 1, 2]),
        ([1, 4, 5], [1], [0]),  # the last head that reads the first key
        ([1, 4, 5], [4], []),
        ([1, 4, 5], [4, 5], [1]),
        ([], [], []),
    ],
)
def test_rows_go_with_the_last_head_that_reads_them(there, heads, places):
    """Six heads read three keys in pairs; each key has two rows."""
    rows = GroupRows(nn.Linear(4, 6), "weight", 2, group=2)
    assert rows.rows(there, heads).tolist() == [2 * p + i for p in places for i in range(2)]
