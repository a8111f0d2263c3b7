"""How fast is rank? Singular values from factors against dense SVDs, side by side in one run.

Run from the repository: ``python tests/bench/rank.py``. Prints medians and ratios, and asserts
nothing: machines differ.

1. BERT-base geometry (12 layers x 12 heads of 64, d_model 768), weights of a freshly initialised
   BertModel: the singular values of W_Q W_K^T of all 144 heads, from the model's weights. Against
   what a user would do: form the product in float64 and take ``torch.linalg.svdvals`` or
   ``numpy.linalg.svd(compute_uv=False)``; on some heads, scaled up to 144. Largest relative
   difference of any singular value that rank and float64 allow to compare.
2. BERT-large geometry (24 x 16 x 64, d_model 1024): our time per head over BERT-base's.
"""

import argparse
import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from timing import medians
from torch import Tensor
from transformers import BertConfig, BertModel

import headscope
from headscope.measures.rank.dimensions import product_singular_values
from headscope.measures.rank.factors import Factors, layer_factors

GEOMETRIES = {"base": (12, 12, 768), "large": (24, 16, 1024)}  # layers, heads, d_model
N_SINGULAR = 64
Pairs = list[tuple[Tensor, Tensor]]


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


def dense_torch(heads: Pairs) -> list[Any]:
    return [torch.linalg.svdvals(W_Q @ W_K.T)[:N_SINGULAR] for W_Q, W_K in heads]


def dense_numpy(heads: Pairs) -> list[Any]:
    products = [W_Q.numpy() @ W_K.numpy().T for W_Q, W_K in heads]
    return [np.linalg.svd(product, compute_uv=False)[:N_SINGULAR] for product in products]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=6, help="heads of the dense SVDs")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    base, large = (layers_of(name) for name in GEOMETRIES)
    chosen = np.linspace(0, 143, given.heads).astype(int).tolist()  # spread over all layers
    pairs = [(base[i // 12].W_Q[i % 12], base[i // 12].W_K[i % 12]) for i in chosen]
    print(f"{torch.get_num_threads()} threads; dense SVDs of {len(pairs)} of 144 heads, scaled up")

    ours(base)  # once before the clock
    jobs = {
        "base": lambda: ours(base),
        "large": lambda: ours(large),
        "torch": lambda: dense_torch(pairs),
        "numpy": lambda: dense_numpy(pairs),
    }
    times = medians(jobs, given.repeats)
    print(f"BERT-base, all 144 heads: ours {times['base']:.3f} s")
    for name in ("torch", "numpy"):
        dense = times[name] * 144 / len(pairs)
        print(f"dense {name} {dense:.1f} s, as a multiple of ours: {dense / times['base']:.0f}")
    per_head = {"base": times["base"] / 144, "large": times["large"] / 384}
    print(
        f"per head: BERT-base {1e3 * per_head['base']:.2f} ms, BERT-large "
        f"{1e3 * per_head['large']:.2f} ms, ratio {per_head['large'] / per_head['base']:.2f}"
    )
    found = torch.cat(ours(base))[chosen].numpy()
    for name, exact in (("torch", dense_torch(pairs)), ("numpy", dense_numpy(pairs))):
        gap = np.abs(found - np.stack([np.asarray(sigma) for sigma in exact])) / found
        print(f"largest relative difference to dense {name}: {gap.max():.1e}")


if __name__ == "__main__":
    main()
