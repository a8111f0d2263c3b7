"""How fast is rank? Singular values from factors against dense SVDs, side by side in one run.

Run from the repository: ``python tests/bench/rank.py``. Prints medians and ratios, and asserts
nothing: machines differ.

1. BERT-base geometry (12 layers x 12 heads of 64, d_model 768), weights of a freshly initialised
   BertModel: the singular values of W_Q W_K^T of all 144 heads, from the model's weights. Against
   what a user would do: form the product in float64 and take ``torch.linalg.svdvals`` or
   ``numpy.linalg.svd(compute_uv=False)``; on some heads, scaled up to 144. Largest relative
   difference of any singular value that rank and float64 allow to compare.
2. BERT-large geometry (24 x 16 x 64, d_model 1024): our time per head over BERT-base's.
3. All that ``measure_layer`` reads off the weights (qk, ov, w_q, w_k, asymmetry, overlap; heads and
   concatenated), per layer, and the peak memory of each way in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from timing import medians
from torch import Tensor
from transformers import BertConfig, BertModel

import headscope
from headscope.measures.rank.dimensions import Reading, product_singular_values
from headscope.measures.rank.factors import Factors, layer_factors
from headscope.measures.rank.layer import measure_layer

GEOMETRIES = {"base": (12, 12, 768), "large": (24, 16, 1024)}  # layers, heads, d_model
N_SINGULAR = 64


def layers_of(name: str) -> list[Factors]:
    """Factors of every layer of a freshly initialised BERT (vocabulary and FFN kept small)."""
    n_layers, n_heads, d_model = GEOMETRIES[name]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=8,
    )
    return [layer_factors(site.weights()) for site in headscope.wrap(BertModel(config)).sites]


def ours(layers: list[Factors]) -> list[Tensor]:
    """Singular values of every head's W_Q W_K^T, as the package finds them."""
    return [product_singular_values(factors.W_Q, factors.W_K) for factors in layers]


def dense_torch(heads: list[tuple[Tensor, Tensor]]) -> list[Any]:
    return [torch.linalg.svdvals(W_Q @ W_K.T)[:N_SINGULAR] for W_Q, W_K in heads]


def dense_numpy(heads: list[tuple[Tensor, Tensor]]) -> list[Any]:
    return [
        np.linalg.svd(W_Q.numpy() @ W_K.numpy().T, compute_uv=False)[:N_SINGULAR]
        for W_Q, W_K in heads
    ]


def some_heads(layers: list[Factors], count: int) -> tuple[list[int], list[tuple[Tensor, Tensor]]]:
    """Spread ``count`` heads over all layers; their numbers and factors."""
    total = sum(factors.n_heads for factors in layers)
    chosen = np.linspace(0, total - 1, count).astype(int).tolist()
    n_heads = layers[0].n_heads
    pairs = [(layers[i // n_heads], i % n_heads) for i in chosen]
    return chosen, [(factors.W_Q[head], factors.W_K[head]) for factors, head in pairs]


def peak_of(name: str) -> float:
    """Mebibytes that one way needs beyond the weights at its peak."""
    layers = layers_of("base")
    chosen = some_heads(layers, 3)[1]
    dense_torch([(W_Q[:80], W_K[:80]) for W_Q, W_K in chosen])  # the libraries wake up
    ours([factors.first(1) for factors in layers[:1]])
    run: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(layers),
        "whole layer": lambda: measure_layer(0, layers[0], Reading()),
        "dense torch": lambda: dense_torch(chosen),
    }
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    run[name]()
    return memory("VmHWM") - before


def memory(field: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in status if line.startswith(field)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=6, help="heads of the dense SVDs")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    base, large = (layers_of(name) for name in GEOMETRIES)
    chosen, pairs = some_heads(base, arguments.heads)
    n_heads = {"base": 144, "large": 384}
    print(f"{torch.get_num_threads()} threads; dense SVDs of {len(pairs)} of 144 heads, scaled up")

    ours(base)  # once before the clock
    jobs: dict[str, Callable[[], Any]] = {
        "base": lambda: ours(base),
        "large": lambda: ours(large),
        "torch": lambda: dense_torch(pairs),
        "numpy": lambda: dense_numpy(pairs),
        "everything": lambda: [measure_layer(0, factors, Reading()) for factors in base[:2]],
    }
    times = medians(jobs, arguments.repeats)
    print(f"BERT-base, all 144 heads: ours {times['base']:.3f} s")
    for name in ("torch", "numpy"):
        dense = times[name] * n_heads["base"] / len(pairs)
        print(f"dense {name} {dense:.1f} s, as a multiple of ours: {dense / times['base']:.0f}")
    per_head = {name: times[name] / count for name, count in n_heads.items()}
    print(
        f"per head: BERT-base {1e3 * per_head['base']:.2f} ms, BERT-large "
        f"{1e3 * per_head['large']:.2f} ms, ratio {per_head['large'] / per_head['base']:.2f}"
    )
    print(f"everything rank measures: {times['everything'] / 2:.2f} s a layer of BERT-base")

    found = torch.cat(ours(base))[chosen].numpy()
    for name, exact in (("torch", dense_torch(pairs)), ("numpy", dense_numpy(pairs))):
        gap = np.abs(found - np.stack([np.asarray(sigma) for sigma in exact])) / found
        print(f"largest relative difference to dense {name}: {gap.max():.1e}")
    if Path("/proc/self/clear_refs").exists():
        for name in ("ours", "whole layer", "dense torch"):  # each in a process of its own
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peak = pool.apply(peak_of, (name,))
            print(f"peak memory beyond the weights, {name}: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
