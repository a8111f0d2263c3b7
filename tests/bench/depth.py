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

import argparse
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from timing import medians
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


def reference_curve(seeds: int, windows: Windows | None) -> None:
    reference = np.array(list(REFERENCE.values()))
    print(f"{'':24}" + "".join(f"{name:>18}" for name in REFERENCE))
    print(f"{'reference':24}" + "".join(f"{value:18.3f}" for value in reference))
    found: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        loaded = headscope.wrap(BertModel(BertConfig()))
        texts = {"random ids": torch.randint(0, loaded.vocab_size, (2, 128))}
        if windows is not None:
            texts["text"] = torch.from_numpy(windows.batch(windows.spread(2)))
        for data, ids in texts.items():
            by_variant = curves(loaded, ids)
            values = [*by_variant["attention"][:3]]
            values += [by_variant["attention+skip"][12], by_variant["full"][12]]
            found.setdefault(data, []).append(values)
            near = "within 0.05" if np.all(np.abs(values - reference) <= 0.05) else ""
            row = "".join(f"{value:18.3f}" for value in values)
            print(f"{f'seed {seed}, {data}':24}{row}  {near}", flush=True)
    for data, rows in found.items():
        mean, std = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        cells = (f"{m:.3f} +-{s:.3f}" for m, s in zip(mean, std, strict=True))
        print(f"{f'mean +-std, {data}':24}" + "".join(f"{cell:>18}" for cell in cells))


def print_cost() -> None:
    """Ours against as many bare forward passes."""
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
    ours = lambda: headscope.depth(loaded, sequences=16, control=False)  # noqa: E731
    a, b = medians({"ours": ours, "bare": bare}, 3).values()
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
    print_cost()


if __name__ == "__main__":
    main()
