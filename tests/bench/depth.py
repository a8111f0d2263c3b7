"""Does depth reproduce the reference curve, and what does it cost?

Run from the repository: ``python tests/bench/depth.py [TEXT.txt]``. Prints and asserts nothing.

1. BERT-base geometry (BertConfig's defaults: 12 layers, d_model 768) with random weights, windows
   of 128 tokens: the ratios over several initialisations, on random token ids and, if a text is
   given, on windows of it (the demo model's vocabulary is BERT's), beside the reference: attention
   only .612 .018 0 0 ..., attention + skip .449 and full .345 at layer 12. The composite norm takes
   the largest column and the largest row, so the one most extreme feature of an initialisation
   moves it: the spread over initialisations is far above that over windows.
2. The pass of ``depth`` (six variants, the model's own states, every ratio) against one bare
   forward pass of the model per variant and one for the model, on the demo model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import headscope
from headscope.data.packing import Windows, pack
from headscope.data.plain import open_plain
from headscope.measures.accumulator import Array
from headscope.measures.depth import VARIANTS, residual_ratio
from headscope.models.blocks import find_blocks, own_states, run_variant
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router

REFERENCE = {
    "embeddings": 0.612,
    "attention 1": 0.018,
    "attention 2": 0.0,
    "attention+skip 12": 0.449,
    "full 12": 0.345,
}
REPEATS = 3


def curves(loaded: LoadedModel, input_ids: Tensor) -> dict[str, Array]:
    """Mean ratio of every variant by point, over the windows given."""
    blocks = find_blocks(loaded)
    with torch.no_grad():
        embeddings = own_states(loaded, blocks, input_ids)[0]
        return {
            variant.name: np.array(
                [
                    float(residual_ratio(hidden).mean())
                    for hidden in run_variant(blocks, Router(loaded.sites), embeddings, variant)
                ]
            )
            for variant in VARIANTS
        }


def compared(found: dict[str, Array]) -> list[float]:
    """The numbers that the reference has, in its order."""
    alone = found["attention"]
    return [*map(float, alone[:3]), float(found["attention+skip"][12]), float(found["full"][12])]


def initialisations(seeds: int, windows: Windows | None) -> Iterator[tuple[int, str, list[float]]]:
    for seed in range(seeds):
        torch.manual_seed(seed)
        loaded = headscope.wrap(BertModel(BertConfig()))
        drawn = torch.randint(0, loaded.vocab_size, (2, 128))
        yield seed, "random ids", compared(curves(loaded, drawn))
        if windows is not None:
            chosen = torch.from_numpy(windows.batch(windows.spread(2)))
            yield seed, "text", compared(curves(loaded, chosen))


def reference_curve(seeds: int, windows: Windows | None) -> None:
    reference = np.array(list(REFERENCE.values()))
    print(f"{'':24}" + "".join(f"{name:>18}" for name in REFERENCE))
    print(f"{'reference':24}" + "".join(f"{value:18.3f}" for value in reference))
    found: dict[str, list[list[float]]] = {}
    for seed, data, values in initialisations(seeds, windows):
        found.setdefault(data, []).append(values)
        near = "within 0.05" if np.all(np.abs(values - reference) <= 0.05) else ""
        row = "".join(f"{value:18.3f}" for value in values)
        print(f"{f'seed {seed}, {data}':24}{row}  {near}", flush=True)
    for data, rows in found.items():
        mean, std = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        cells = (f"{m:.3f} +-{s:.3f}" for m, s in zip(mean, std, strict=True))
        print(f"{f'mean +-std, {data}':24}" + "".join(f"{cell:>18}" for cell in cells))


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def cost() -> None:
    """Ours against as many bare forward passes, in turn, so that a drift meets both."""
    loaded = headscope.load("demo", dtype="float64")
    windows = pack(open_plain(None), loaded, 128)
    chosen = windows.batch(windows.spread(16))

    def bare() -> None:
        with torch.no_grad():
            for _ in range(len(VARIANTS) + 1):
                for start in range(0, len(chosen), 8):
                    ids = torch.from_numpy(chosen[start : start + 8])
                    loaded.forward(ids, torch.ones_like(ids))

    headscope.validate(loaded)
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours.append(timed(lambda: headscope.depth(loaded, sequences=16, control=False)))
        theirs.append(timed(bare))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"depth {a:.2f} s, {len(VARIANTS) + 1} bare passes {b:.2f} s: ratio {a / b:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    windows = None
    if arguments.text is not None:
        demo = headscope.load("demo")
        windows = pack(open_plain(arguments.text), demo, 128)
    reference_curve(arguments.seeds, windows)
    cost()


if __name__ == "__main__":
    main()
