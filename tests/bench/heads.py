"""What does the number of heads cost?

Run from the repository: ``python tests/bench/heads.py [--d-model 768] [--threads 1]``. Prints and
asserts nothing.

The same d_model is split into 1, 2, 4 ... heads. For each: parameters and floating-point operations
(a multiplication with its addition counts as two), exponentials of the softmax, and the time of
attention.py's two forms, the loop over heads and the fused one, as ratios to one head of the same
form and length; medians, in processor time where one thread runs.
"""

import time
from functools import partial

import torch
from timing import medians, options, print_head, print_row

from headscope.analyses.explain.measure import attention_flops
from headscope.attention import AttentionWeights, attention_by_head, attention_fused

FORMS = {"loop": attention_by_head, "fused": attention_fused}


def weights(d_model, n_heads):
    """The same four random maps, whatever the number of heads."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(4, d_model, d_model, generator=generator) / d_model**0.5
    b = torch.zeros(n_heads, d_model // n_heads)
    maps = (w.unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous() for w in W[:3])
    W_O = W[3].unflatten(0, (n_heads, -1))
    return AttentionWeights(*maps, b, b, b, W_O, torch.zeros(d_model))


def main():
    sizes = {"heads": [1, 2, 4, 8, 12, 24, 48, 96], "lengths": [16, 64, 128, 512], "tokens": 1024}
    settings = options(__doc__, d_model=768, rounds=15, threads=1, **sizes)
    torch.set_num_threads(settings.threads)
    d_model = settings.d_model
    weights_by_heads = {n: weights(d_model, n) for n in settings.heads if d_model % n == 0}
    first = next(iter(weights_by_heads))
    parameters = 4 * d_model**2
    print(f"d_model {d_model}, {settings.threads} thread(s), median of {settings.rounds} rounds")
    clock = time.process_time if settings.threads == 1 else time.perf_counter
    with torch.no_grad():
        for length in settings.lengths:
            batch = max(1, settings.tokens // length)
            x = torch.randn(batch, length, d_model)
            jobs = {
                (form, n): partial(FORMS[form], x, x, weights_by_heads[n])
                for form in FORMS
                for n in weights_by_heads
            }
            medians(jobs, 1)  # the first call of each sets buffers up
            times = medians(jobs, settings.rounds, clock)
            base = ", ".join(f"{form} {1e3 * times[form, first]:.1f} ms" for form in FORMS)
            print(f"\n{batch} x {length} tokens; one head: {base}")
            print_head(("heads x d_head", "parameters", "FLOPs", "exponentials", "loop", "fused"))
            for n in weights_by_heads:
                projections, scores, exponents = attention_flops(length, parameters, d_model, n)
                work = (parameters, batch * (projections + scores), batch * exponents)
                ratios = (f"{times[form, n] / times[form, first]:.2f}" for form in FORMS)
                print_row((f"{n} x {d_model // n}", *(f"{count:,}" for count in work), *ratios))


if __name__ == "__main__":
    main()
