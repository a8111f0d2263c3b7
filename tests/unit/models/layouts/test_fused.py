"""The rows of q, k and v in a fused map: stacked, by head, and by groups that share keys."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from headscope.models.layouts.fused import ByHead, FusedMap, Stacked

N_HEADS = 3
D_HEAD = 2
D_MODEL = 5


def fused_linear(kind=nn.Linear):
    """A map whose row r is [r, r, ...], with the bias r."""
    n_rows = 3 * N_HEADS * D_HEAD
    linear = kind(n_rows, D_MODEL) if kind is Conv1D else kind(D_MODEL, n_rows)
    rows = torch.arange(n_rows).float()
    weight = rows[:, None].expand(-1, D_MODEL)
    linear.weight = nn.Parameter(weight.t().clone() if kind is Conv1D else weight.clone())
    linear.bias = nn.Parameter(rows.clone())
    return linear


class Attention(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.qkv = linear


EXPECTED = {
    Stacked: ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]),
    ByHead: ([0, 1, 6, 7, 12, 13], [2, 3, 8, 9, 14, 15], [4, 5, 10, 11, 16, 17]),
}


@pytest.mark.parametrize("linear", [nn.Linear, Conv1D])
@pytest.mark.parametrize("order", EXPECTED)
def test_the_rows_of_each_map(order, linear):
    """Guards weight, bias and output of every map against rows counted by hand."""
    stored = fused_linear(linear)
    x = torch.randn(2, 4, D_MODEL, generator=torch.Generator().manual_seed(0))
    maps = order("qkv").maps(Attention(stored), D_HEAD)
    for linear_map, expected in zip(maps, EXPECTED[order], strict=True):
        assert linear_map.weight[:, 0].tolist() == expected
        assert linear_map.bias.tolist() == expected
        picked = linear_map.leaving(stored(x))
        torch.testing.assert_close(picked, linear_map(x))
        torch.testing.assert_close(picked, stored(x)[..., expected])
        assert linear_map.stored_entries == len(expected) * D_MODEL


@pytest.mark.parametrize("order", EXPECTED)
def test_removing_a_head_leaves_the_rows_of_the_others(order):
    """Guards what surgery takes out: the rows of head 1 in all three maps, and no others."""
    rows_of_head_1 = set()
    for rows in EXPECTED[order]:
        rows_of_head_1 |= {rows[2], rows[3]}
    weight, bias = order("qkv").rows(Attention(fused_linear()), D_HEAD)
    for stored in (weight, bias):
        assert {*stored.rows(range(N_HEADS), [1]).tolist()} == rows_of_head_1


def test_groups_that_share_keys():
    """Two heads of queries and one of keys and values a group: q0 q1 k0 v0, q2 q3 k1 v1."""
    linear = nn.Linear(1, 8)
    linear.weight = nn.Parameter(torch.arange(8.0)[:, None])
    expected = ([0, 1, 4, 5], [2, 6], [3, 7])
    for index, rows in enumerate(expected):
        linear_map = FusedMap(linear, index, block=4, shares=(2, 1, 1))
        assert linear_map.weight[:, 0].tolist() == rows


@pytest.mark.parametrize("order", EXPECTED)
def test_a_map_that_has_lost_all_its_heads_is_empty(order):
    linear = nn.Linear(D_MODEL, 1)
    linear.weight = nn.Parameter(torch.empty(0, D_MODEL))
    linear.bias = nn.Parameter(torch.empty(0))
    for linear_map in order("qkv").maps(Attention(linear), D_HEAD):
        assert linear_map.weight.shape == (0, D_MODEL)


@pytest.mark.parametrize("order", EXPECTED)
def test_a_module_without_the_map_has_no_maps(order):
    assert order("other").maps(Attention(nn.Linear(2, 2)), D_HEAD) is None
