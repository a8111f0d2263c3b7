"""Numbers that steps are explained with, on patterns and sums made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headscope.measures.explain import (
    attend,
    attention_flops,
    entropy,
    even_entropy,
    feed_forward,
    layer_norm,
    links,
    moved,
    shares,
)

N = 6
WORDS = torch.tensor([False, True, True, True, True, False])


def looking(*keys: int) -> Tensor:
    """A pattern whose query i puts all its weight on keys[i]."""
    return torch.eye(N)[list(keys)]


def test_links_prefers_a_word_of_ones_own_to_everything_duller() -> None:
    own = looking(0, 3, 4, 1, 2, 5)  # each word looks at another one, two away
    neighbour = looking(0, 0, 1, 2, 3, 4)
    hub = looking(0, 4, 4, 4, 4, 4)
    special = looking(0, 0, 0, 0, 0, 0)
    even = torch.full((N, N), 1 / N)
    found = links(torch.stack([own, neighbour, hub, special, even]), WORDS).tolist()
    # Each word gets 1 from one of four words and 0.25 on average.
    assert found == pytest.approx([0.75, 0.0, 0.0, 0.0, 0.0])


def test_links_without_words_that_are_apart() -> None:
    pattern = torch.softmax(torch.randn(3, N, N), dim=-1)
    assert links(pattern, torch.zeros(N, dtype=torch.bool)).tolist() == [0, 0, 0]
    two = torch.tensor([False, True, True, False, False, False])
    assert links(pattern, two).tolist() == [0, 0, 0]


def test_entropy_and_what_is_moved() -> None:
    pattern = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
    assert entropy(pattern).tolist() == pytest.approx([0.0, 2.0, 1.0])
    other = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.25] * 4, [0.25, 0.75, 0.0, 0.0]])
    assert moved(pattern, other).tolist() == pytest.approx([1.0, 0.0, 0.25])
    lower = torch.ones(3, 3, dtype=torch.bool).tril()
    assert even_entropy(lower) == pytest.approx((0 + 1 + math.log2(3)) / 3)


def test_shares_add_up_and_can_be_negative() -> None:
    parts = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]], [[-1.0, 0.0]]])
    found = shares(parts, parts.sum(0))
    assert found.tolist() == pytest.approx([6 / 5, 1 / 5, -2 / 5])
    assert float(found.sum()) == pytest.approx(1.0)


def test_attention_of_a_loop_over_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, N, 4, generator=generator, dtype=torch.float64)
    allowed = torch.ones(N, N, dtype=torch.bool).tril()
    bias = torch.randn(2, N, N, generator=generator, dtype=torch.float64)
    found = attend(q, k, v, scale=0.3, bias=bias, allowed=allowed)
    for h in range(2):
        for i in range(N):
            scores = [
                0.3 * sum(float(a * b) for a, b in zip(q[h, i], k[h, j], strict=True))
                + float(bias[h, i, j])
                for j in range(i + 1)
            ]
            sizes = [math.exp(score) for score in scores]
            weights = [size / sum(sizes) for size in sizes] + [0.0] * (N - i - 1)
            np.testing.assert_allclose(found.pattern[h, i], weights, atol=1e-12)
            z = [sum(w * float(v[h, j, d]) for j, w in enumerate(weights)) for d in range(4)]
            np.testing.assert_allclose(found.z[h, i], z, atol=1e-12)


def test_layer_norm_and_network_are_those_of_torch() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(8, eps=1e-5, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(5, 8, dtype=torch.float64)
    ours = layer_norm(x, norm.weight, norm.bias, norm.eps)
    torch.testing.assert_close(ours, norm(x))
    up, down = nn.Linear(8, 16, dtype=torch.float64), nn.Linear(16, 8, dtype=torch.float64)
    maps = [(linear.weight.t(), linear.bias) for linear in (up, down)]
    hidden, out = feed_forward(x, maps[0], torch.relu, maps[1])
    torch.testing.assert_close(out, down(torch.relu(up(x))))
    assert hidden.shape == (5, 16)


def test_operations_are_counted_as_matrices_are_multiplied() -> None:
    """Counted by going through the sizes of every product."""
    n, d_model, heads, d_head = 7, 12, 3, 4
    products = [(n, d_model, d_head)] * 3 * heads + [(n, heads * d_head, d_model)]
    pairs = [(n, d_head, n), (n, n, d_head)] * heads
    found = attention_flops(n, 4 * d_model * d_model, heads * d_head, heads)
    assert found[0] == sum(2 * a * b * c for a, b, c in products)
    assert found[1] == sum(2 * a * b * c for a, b, c in pairs)
    assert found[2] == heads * n * n
