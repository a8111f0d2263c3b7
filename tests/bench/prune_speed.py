"""Full against pruned, side by side: how much of the predicted saving arrives.

Run: ``OMP_WAIT_POLICY=passive python tests/bench/prune_speed.py [MODEL] [THREADS]``
"""

from __future__ import annotations

import random
import sys

import torch
from rich.console import Console

import headscope
from headscope.pipeline.prune.speed import benchmark
from headscope.show.prune.speed import speed_report


def main(model: str = "demo", threads: str = "2") -> None:
    """Remove half the heads: the same number in each layer, then at random."""
    torch.set_num_threads(int(threads))
    full = headscope.load(model, task_head="auto")
    places = [(site.layer, head) for site in full.sites for head in site.head_ids]
    evenly = [place for place in places if place[1] < full.n_heads // 2]
    for name, removed in (("evenly", evenly), ("at random", _some(places))):
        print(f"half the heads, {name}")
        for part in speed_report(benchmark(full, headscope.remove_heads(full, removed))):
            Console(width=100, highlight=False).print(part)


def _some(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return random.Random(0).sample(places, len(places) // 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
