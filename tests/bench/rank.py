"""How fast is rank? Singular values from factors against dense SVDs, side by side in one run.

Run from the repository: ``python tests/bench/rank.py``. Prints medians and ratios, and asserts
nothing: machines differ.

1. BERT-base geometry (12 layers x 12 heads of 64, d_model 768), fresh weights: the singular values
   of W_Q W_K^T of all 144 heads, against those of the product in float64 (on ``--heads``, scaled
   up), and their largest relative difference.
2. BERT-large geometry (24 x 16 x 64, d_model 1024): our time per head over BERT-base's.
"""

import numpy as np
import torch
from timing import medians, options
from transformers import BertConfig, BertModel

import headscope
from headscope.stats.factors import layer_factors
from headscope.stats.spectra import product_singular_values


def layers_of(layers, heads, width):
    """Factors of every layer of a freshly initialised BERT (vocabulary and FFN kept small)."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width}
    network = BertModel(BertConfig(vocab_size=100, intermediate_size=8, **shape))
    return [layer_factors(site.weights()) for site in headscope.wrap(network).sites]


def ours(layers):
    """Singular values of every head's W_Q W_K^T, as the package finds them."""
    return [product_singular_values(factors.W_Q, factors.W_K) for factors in layers]


def with_torch(W_Q, W_K):
    return torch.linalg.svdvals(W_Q @ W_K.T)[:64].numpy()


def with_numpy(W_Q, W_K):
    return np.linalg.svd(W_Q.numpy() @ W_K.numpy().T, compute_uv=False)[:64]


def main():
    settings = options(__doc__, heads=6, repeats=5)
    base = layers_of(12, 12, 768)
    large = layers_of(24, 16, 1024)
    chosen = np.linspace(0, 143, settings.heads).astype(int).tolist()  # spread over all layers
    pairs = [(base[i // 12].W_Q[i % 12], base[i // 12].W_K[i % 12]) for i in chosen]
    print(f"{torch.get_num_threads()} threads; dense SVDs of {len(pairs)} of 144 heads, scaled up")

    values = torch.cat(ours(base))[chosen].numpy()  # once before the clock
    dense = {"torch": with_torch, "numpy": with_numpy}
    jobs = {name: lambda way=way: [way(*pair) for pair in pairs] for name, way in dense.items()}
    jobs |= {"base": lambda: ours(base), "large": lambda: ours(large)}
    times = medians(jobs, settings.repeats)
    print(f"BERT-base, all 144 heads: ours {times['base']:.3f} s")
    for name in dense:
        seconds = times[name] * 144 / len(pairs)
        print(f"dense {name} {seconds:.1f} s, as a multiple of ours: {seconds / times['base']:.0f}")
        gap = np.abs(values - np.stack(jobs[name]())) / values
        print(f"largest relative difference to dense {name}: {gap.max():.1e}")
    one = times["base"] / 144
    other = times["large"] / 384
    per_head = f"BERT-base {1e3 * one:.2f} ms, BERT-large {1e3 * other:.2f} ms"
    print(f"per head: {per_head}, ratio {other / one:.2f}")


if __name__ == "__main__":
    main()
