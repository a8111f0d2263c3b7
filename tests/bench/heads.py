"""What does the number of heads cost?

Run from the repository: ``python tests/bench/heads.py [--d-model 768] [--threads 1]``. Prints and
asserts nothing.

The same d_model is split into 1, 2, 4 ... heads. For each: parameters and floating-point operations
(a multiplication with its addition counts as two), exponentials of the softmax, and the time of
attention.py's two forms, the loop over heads and the fused one, as ratios to one head of the same
form and length. The forms and all numbers of heads run in turn, so that a drift of the machine
meets all of them; a time is the median of the rounds, in processor time where one thread runs, so
that other programs hardly count.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from timing import medians, print_head, print_row
from torch import Tensor

from headscope.attention import AttentionWeights, attention_by_head, attention_fused
from headscope.measures.explain import attention_flops

FORMS: dict[str, Callable[..., object]] = {"loop": attention_by_head, "fused": attention_fused}


def split(W: Tensor, n_heads: int) -> Tensor:
    """Cut a map (d_model, d_model) into heads: (n_heads, d_model, d_head)."""
    return W.unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous()


def weights(d_model: int, n_heads: int) -> AttentionWeights:
    """The same four random maps, whatever the number of heads."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(4, d_model, d_model, generator=generator) / d_model**0.5
    b = torch.zeros(n_heads, d_model // n_heads)
    W_Q, W_K, W_V = (split(w, n_heads) for w in W[:3])
    W_O = W[3].unflatten(0, (n_heads, -1))
    return AttentionWeights(W_Q, W_K, W_V, b, b, b, W_O, torch.zeros(d_model))


def times(
    d_model: int,
    heads: Sequence[int],
    shape: tuple[int, int],
    rounds: int,
    clock: Callable[[], float],
) -> dict[tuple[str, int], float]:
    """Median seconds by form and number of heads, for a batch of this shape."""
    x = torch.randn(*shape, d_model)
    made = {n: weights(d_model, n) for n in heads}
    jobs = {(form, n): partial(FORMS[form], x, x, made[n]) for form in FORMS for n in heads}
    medians(jobs, 1)  # the first call of each sets buffers up
    return medians(jobs, rounds, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 2, 4, 8, 12, 24, 48, 96])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 512])
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a batch, about")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    d_model, heads = given.d_model, [n for n in given.heads if given.d_model % n == 0]
    print(f"d_model {d_model}, {given.threads} thread(s), median of {given.rounds} rounds")
    clock = time.process_time if given.threads == 1 else time.perf_counter
    with torch.no_grad():
        for length in given.lengths:
            batch = max(1, given.tokens // length)
            found = times(d_model, heads, (batch, length), given.rounds, clock)
            first = {form: found[form, heads[0]] for form in FORMS}
            base = ", ".join(f"{form} {1e3 * seconds:.1f} ms" for form, seconds in first.items())
            print(f"\n{batch} x {length} tokens; one head: {base}")
            print_head(("heads x d_head", "parameters", "FLOPs", "exponentials", "loop", "fused"))
            for n in heads:
                made = weights(d_model, n)
                w = sum(part.numel() for part in (made.W_Q, made.W_K, made.W_V, made.W_O))
                projections, scores, exponentials = attention_flops(length, w, d_model, n)
                ratios = (f"{found[form, n] / first[form]:.2f}" for form in FORMS)
                work = (batch * (projections + scores), batch * exponentials)
                print_row((f"{n} x {d_model // n}", *(f"{c:,}" for c in (w, *work)), *ratios))


if __name__ == "__main__":
    main()
