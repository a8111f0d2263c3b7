from __future__ import annotations

import torch

from headscope.analyses.reach.run import Reach
from headscope.core.activations import Activations


def test_reach_is_the_mean_distance() -> None:
    pattern = torch.zeros(1, 2, 4, 4)
    for query in range(3):  # the last position is padding
        pattern[0, 0, query, max(query - 1, 0)] = 1.0
        pattern[0, 1, query, :3] = 1 / 3
    measure = Reach(1, 2)
    measure.start(torch.tensor([[1, 1, 1, 0]]))
    empty = torch.empty(0)
    measure.observe(
        Activations(
            "encoder", 0, 0, slice(0, 1), slice(0, 2), 2, empty, empty, empty, pattern, empty
        )
    )
    even = sum(abs(q - k) / 3 for q in range(3) for k in range(3))
    torch.testing.assert_close(measure.distance[0].tolist(), [2.0, even])
    torch.testing.assert_close(measure.even[0].tolist(), [even, even])
    assert measure.queries[0].tolist() == [3, 3]
