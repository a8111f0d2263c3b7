"""``ablation``: what the metric loses when a head is taken out, measured and not estimated.

References
----------
Michel et al. 2019, arXiv:1905.10650, tables 1 to 3.
"""

from __future__ import annotations

import torch

from headscope.measures.rounding import tied
from headscope.pruning.method import Given, Ranking


def ablation(given: Given) -> Ranking:
    """Drop in the calibration metric without each head: n_units + 1 forward passes."""
    before = _quality(given, ())
    drops = []
    for unit in range(len(given.units)):
        drops.append(before - _quality(given, (unit,)))
        given.progress("ablation", unit + 1, len(given.units))
    values = torch.tensor(drops, dtype=torch.float64)
    passes = {"forward": len(given.units) + 1, "backward": 0}
    return Ranking(values, passes=passes, size=abs(before))


def ablation_greedy(given: Given) -> Ranking:
    """Remove the head whose removal hurts least, measure all others again, and so on.

    About n_units^2 / 2 forward passes, fewer where ``given.largest`` is less than all heads; what
    is left then stays in the order of the last measurement.
    """
    n, order = len(given.units), list[int]()
    values = torch.zeros(n, dtype=torch.float64)
    before, passes = _quality(given, ()), 1
    total = sum(n - i for i in range(min(given.largest, n)))
    for _ in range(min(given.largest, n)):
        found = {}
        for unit in (u for u in range(n) if u not in order):
            found[unit] = _quality(given, (*order, unit))
            passes += 1
            given.progress("ablation-greedy", passes - 1, total)
        level = dict(zip(found, tied(list(found.values())).tolist(), strict=True))
        best = max(found, key=lambda unit: (level[unit], unit))
        values[best] = before - found[best]
        before = found[best]
        order.append(best)
        rest = sorted((u for u in found if u != best), key=lambda u: -level[u])
        values[rest] = torch.tensor([before - found[u] for u in rest], dtype=torch.float64)
    order += [unit for unit in rest if unit not in order] if len(order) < n else []
    return Ranking(values, order, {"forward": passes, "backward": 0})


def _quality(given: Given, removed: tuple[int, ...]) -> float:
    return given.calibration.quality(given.units.expand(given.units.gates(removed)))
