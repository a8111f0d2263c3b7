"""Numbers that steps are explained with, on patterns and sums made by hand."""

import pytest
import torch
from torch import Tensor

from headscope.analyses.explain.measure import attention_flops, links

N = 6
WORDS = torch.tensor([False, True, True, True, True, False])


def looking(*keys: int) -> Tensor:
    """A pattern whose query i puts all its weight on keys[i]."""
    return torch.eye(N)[list(keys)]


def test_links_prefers_a_word_of_ones_own_to_everything_duller():
    own = looking(0, 3, 4, 1, 2, 5)  # each word looks at another one, two away
    neighbour = looking(0, 0, 1, 2, 3, 4)
    hub = looking(0, 4, 4, 4, 4, 4)
    special = looking(0, 0, 0, 0, 0, 0)
    even = torch.full((N, N), 1 / N)
    found = links(torch.stack([own, neighbour, hub, special, even]), WORDS).tolist()
    # Each word gets 1 from one of four words and 0.25 on average.
    assert found == pytest.approx([0.75, 0.0, 0.0, 0.0, 0.0])
    # There are no words that are apart.
    for words in (torch.zeros(N, dtype=torch.bool), torch.arange(N) < 2):
        assert not links(torch.softmax(torch.randn(3, N, N), dim=-1), words).any()


def test_operations_are_counted_as_matrices_are_multiplied():
    """Counted by going through the sizes of every product."""
    n, d_model, heads, d_head = 7, 12, 3, 4
    products = [(n, d_model, d_head)] * 3 * heads + [(n, heads * d_head, d_model)]
    pairs = [(n, d_head, n), (n, n, d_head)] * heads
    found = attention_flops(n, 4 * d_model * d_model, heads * d_head, heads)
    assert found[0] == sum(2 * a * b * c for a, b, c in products)
    assert found[1] == sum(2 * a * b * c for a, b, c in pairs)
    assert found[2] == heads * n * n
