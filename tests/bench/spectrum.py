"""How are the singular values of softmax matrices had fastest, and how many sequences are enough?

Run from the repository: ``python tests/bench/spectrum.py TEXT.txt``. Prints medians, ratios and
errors measured side by side in one run, and asserts nothing: machines differ.

1. Routes to the singular values of real patterns, against a plain loop of ``numpy.linalg.svd``.
2. Their errors on patterns that are hard for a Gram matrix: nearly rank one, nearly identity.
3. What a user would write (output_attentions, then that loop) against our streamed pass.
4. The adaptive mode: sequences until every head is within 0.01, and whether its means are.
"""

import itertools
import statistics
import sys
import time
from functools import partial

import numpy as np
import scipy.linalg
import torch
from scipy.special import softmax
from threadpoolctl import threadpool_limits
from timing import medians, options, print_head, print_row

import headscope
from headscope.analyses.spectrum.measure import (
    MatrixPool,
    PatternSpectra,
    Spectrum,
    shares,
    singular_values,
)
from headscope.data.corpus import as_plain
from headscope.data.packing import pack
from headscope.models.run.implementation import use_implementation
from headscope.models.run.routing import Router, routed


def roots(eigenvalues):
    return np.sqrt(np.clip(eigenvalues[::-1], 0, None))


def gram_tridiagonal(p):
    """The two LAPACK steps that are needed, and nothing else; scipy holds the GIL meanwhile."""
    double = p.astype(np.float64)
    gram = (double.T @ double).T
    _, diagonal, beside, _, _ = scipy.linalg.lapack.dsytrd(gram, lower=1, lwork=8 * len(p))
    return roots(scipy.linalg.lapack.dsterf(diagonal, beside)[0])


def gram_torch(p):
    double = torch.from_numpy(p).double()
    return roots(torch.linalg.eigvalsh(double.mT @ double).numpy())


svd = partial(scipy.linalg.svd, compute_uv=False, check_finite=False)
eigvalsh = partial(scipy.linalg.eigvalsh, check_finite=False)
#: All take one float32 pattern.
ROUTES = {
    "numpy.linalg.svd (float64 inside)": lambda p: np.linalg.svd(p, compute_uv=False),
    "torch.linalg.svdvals, float32": lambda p: torch.linalg.svdvals(torch.from_numpy(p)).numpy(),
    "torch.linalg.svdvals, float64": lambda p: torch.linalg.svdvals(
        torch.from_numpy(p).double()
    ).numpy(),
    "scipy gesdd, float32": svd,
    "scipy gesvd, float32": partial(svd, lapack_driver="gesvd"),
    "Gram, scipy eigvalsh, float32": lambda p: roots(eigvalsh(p.T @ p)),
    "Gram, torch eigvalsh, float64": gram_torch,
    "Gram, scipy dsytrd + dsterf, float64": gram_tridiagonal,
    "Gram, numpy eigvalsh, float64 (ours)": lambda p: singular_values(p.astype(np.float64)),
}
NUMPY, *_, OURS = ROUTES


def patterns_of(loaded, ids):
    """(sequences * heads, n, n), float32."""
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        attentions = loaded.model(input_ids=ids, output_attentions=True).attentions
    return torch.cat([layer.flatten(0, 1) for layer in attentions]).numpy()


def hard_patterns(n):
    logits = np.random.default_rng(0).standard_normal((n, n))
    noise = softmax(logits, axis=1)
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    return {
        "uniform": np.full((n, n), 1.0 / n),
        "one key + 0.1% noise": 0.999 * np.eye(n)[:1] + 0.001 * noise,
        "identity + 0.1% noise": 0.999 * np.eye(n) + 0.001 * noise,
        "nearly one-hot rows": softmax(12 * logits, axis=1),
        "smooth band": softmax(-(distance**2) / 1000.0, axis=1),
    }


def errors(route, patterns):
    """Largest error of the share at n/4, of the curve, and of the share of squares at n/4."""
    worst = np.zeros(3)
    for pattern in patterns:
        exact = np.linalg.svd(pattern.astype(np.float64), compute_uv=False)
        outputs = np.asarray(route(pattern), dtype=np.float64)
        gap = np.abs(shares(outputs) - shares(exact))
        middle = len(pattern) // 4 - 1
        squares = np.abs(shares(outputs**2) - shares(exact**2))[middle]
        worst = np.maximum(worst, [gap[middle], gap.max(), squares])
    return worst.tolist()


def routes_table(patterns):
    """Time every route on every pattern in turn, so that a drift of the machine meets all."""
    patterns_in_turn = {name: itertools.cycle(patterns) for name in ROUTES}
    jobs = {name: lambda n=name: ROUTES[n](next(patterns_in_turn[n])) for name in ROUTES}
    with threadpool_limits(limits=1, user_api="blas"):
        # Processor time of this thread: other work on the machine does not distort it.
        times = medians(jobs, len(patterns), time.thread_time)
        print(
            f"\n{len(patterns)} real patterns, n = {patterns.shape[-1]}, one thread: median "
            "processor ms a matrix, times as fast as the numpy loop, largest errors against the "
            "float64 SVD\n"
        )
        print_head(("route", "ms", "ratio", "share at n/4", "curve", "share of squares"))
        for name, route in ROUTES.items():
            worst = errors(route, patterns[:: max(1, len(patterns) // 24)])
            figures = f"{1e3 * times[name]:.2f}", f"{times[NUMPY] / times[name]:.2f}"
            print_row((name, *figures, *(f"{error:.0e}" for error in worst)))


def hard_table(n):
    chosen = ("scipy gesdd, float32", "Gram, scipy eigvalsh, float32", OURS)
    print(f"\nlargest error of the curve on hard patterns, n = {n}\n")
    print_head(("pattern", *chosen))
    with threadpool_limits(limits=1, user_api="blas"):
        for name, pattern in hard_patterns(n).items():
            errors_of_routes = [errors(ROUTES[r], [pattern.astype(np.float32)])[1] for r in chosen]
            print_row((name, *(f"{e:.0e}" for e in errors_of_routes)))


def script(loaded, ids):
    """What a user would write."""
    for sequence in ids:
        for pattern in patterns_of(loaded, sequence[None]):
            np.linalg.svd(pattern, compute_uv=False)


def ours(loaded, ids):
    sums = Spectrum(loaded.n_layers, loaded.n_heads, ids.shape[1])
    with MatrixPool() as pool:
        observer = PatternSpectra(sums, pool, lambda _: slice(1, -1))
        with routed(loaded.model, Router(loaded.sites, [observer])) as router:
            router.run(lambda: loaded.forward(ids, torch.ones_like(ids)))


def side_by_side(loaded, ids, repeats):
    jobs = {"script": lambda: script(loaded, ids), "ours": lambda: ours(loaded, ids)}
    reference_time, our_time = medians(jobs, repeats).values()
    sequences, length = ids.shape
    each = (
        f"ours {our_time / sequences:.2f} s a sequence, script {reference_time / sequences:.2f} s"
    )
    print(f"\nn = {length}, {sequences} sequences, whole pass with the model: {each};")
    print(f"ratio {reference_time / our_time:.2f}", flush=True)


def adaptive(loaded, text, length, check):
    result = headscope.spectrum(loaded, text, length=length, precision=0.01)
    n = result.sequences
    half = result.sampling.half_width
    print(f"\nn = {length}: every head within 0.01 after {n} sequences (widest {half:.4f});")
    print(f"10,000 are {10_000 / n:.0f} times the work")
    if check:
        full = headscope.spectrum(loaded, text, length=length, sequences=10_000)
        pairs = zip(result.heads, full.heads, strict=True)
        gaps = [abs(one.share_at_k.value - other.share_at_k.value) for one, other in pairs]
        inside = sum(gap < 0.01 for gap in gaps)
        print(
            f"against all {full.sequences} windows: {inside} of {len(gaps)} heads within 0.01, "
            f"median gap {statistics.median(gaps):.4f}, largest {max(gaps):.4f}"
        )


def main():
    settings = options(__doc__, "text?", model="demo", repeats=3)
    loaded = headscope.load(settings.model)
    cores = torch.get_num_threads()
    versions = ", ".join(f"{kind.__name__} {kind.__version__}" for kind in (np, scipy, torch))
    print(f"{sys.platform}, torch uses {cores} threads; {versions}")
    plain = as_plain(settings.text)
    for length, sequences in ((128, 4), (512, 1)):
        windows = pack(plain, loaded, length)
        some, two = (torch.tensor(windows.batch(windows.spread(n))) for n in (sequences, 2))
        patterns = patterns_of(loaded, some)
        torch.set_num_threads(1)
        routes_table(patterns)
        torch.set_num_threads(cores)
        hard_table(length)
        side_by_side(loaded, two, settings.repeats)
        adaptive(loaded, settings.text, length, check=length == 128)


if __name__ == "__main__":
    main()
