"""Spectra of patterns by NumPy's SVD, cheap forms of attention by their definitions.

Means and intervals of heads: tests/real/test_spectrum.py.
"""

import numpy as np
import pytest
import torch
from hand_made import activations
from scipy.special import softmax

from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum.forms import (
    DRAWS,
    FORMS,
    RANDOM,
    CheapForms,
    low_rank,
    without_padding,
)
from headscope.analyses.spectrum.matrix_pool import MatrixPool, right_vectors, singular_values
from headscope.analyses.spectrum.measure import PatternSpectra, Spectrum, known_patterns, shares
from headscope.attention import attention_pattern

N = 32
D = 8
SPECIAL = (0, 31)


@pytest.fixture(scope="module")
def pool():
    with MatrixPool(2) as pool:
        yield pool


def random_softmax(n: int, sharpness: float) -> np.ndarray:
    return softmax(sharpness * np.random.default_rng(0).standard_normal((n, n)), axis=-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [4, 33])
def test_controls_are_what_the_svd_of_their_patterns_says(n, causal):
    """In a causal stack a row is spread over the keys that it sees."""
    generator = np.random.default_rng(5)
    controls = known_patterns(n, 5, 2, causal=causal)
    logits = np.stack([generator.standard_normal((n, n)) for _ in range(5)])
    even = np.zeros((n, n))
    if causal:
        later = np.triu_indices(n, k=1)
        logits[:, *later] = even[later] = -np.inf
    drawn = softmax(logits, axis=-1)
    previous = np.eye(n, k=-1)
    previous[0, 0] = 1.0
    for name, patterns in {
        "uniform": softmax(even, axis=-1)[None],
        "identity": np.eye(n)[None],
        "previous-token": previous[None],
        "random-logits": drawn,
    }.items():
        control = controls[name]
        for power, curve in ((1, control.curve), (2, control.curve_sq)):
            sigma = np.linalg.svd(patterns, compute_uv=False) ** power
            expected = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
            np.testing.assert_allclose(curve, expected, atol=1e-9)
        assert (control.share_at_k, control.draws) == (control.curve[1], len(patterns))


@pytest.mark.parametrize("sharpness", [0.0, 16.0])
def test_shares_of_any_sharpness(sharpness):
    pattern = random_softmax(128, sharpness).astype(np.float32).astype(np.float64)
    sigma = np.linalg.svd(pattern, compute_uv=False)
    np.testing.assert_allclose(singular_values(pattern), sigma, atol=1e-7 * sigma[0])
    cumulative = shares(singular_values(pattern))
    np.testing.assert_allclose(cumulative, np.cumsum(sigma) / sigma.sum(), atol=1e-6)
    u, s, vt = np.linalg.svd(pattern)
    ours = right_vectors(pattern)[:, :5]  # span the best subspace
    np.testing.assert_allclose(pattern @ ours @ ours.T, (u[:, :5] * s[:5]) @ vt[:5], atol=1e-10)
    np.testing.assert_array_equal(shares(np.zeros(3)), 1.0)  # of nothing


@pytest.mark.parametrize("n", [4, 20])
def test_offset_means(n, pool):
    pattern = random_softmax(n, 2.0)
    sums = Spectrum(1, 1, n)
    observer = PatternSpectra(sums, pool, lambda _: slice(1, n - 1))
    observer.observe(activations(torch.from_numpy(pattern)[None, None].float()))
    for i, r in enumerate(OFFSETS):
        inside = [pattern[q, q + r] for q in range(1, n - 1) if 0 <= q + r < n]
        expected = np.mean(inside) if inside else 0.0
        assert sums.means("offsets")[0, 0, i] == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def forms(pool: MatrixPool) -> CheapForms:
    return CheapForms(N, SPECIAL, 7, pool)


@pytest.fixture(scope="module")
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, N, D, dtype=torch.float64) for _ in range(3))


def test_what_sparse_forms_keep(forms, pool):
    for size in (1, 8):  # a window: so many keys around the query
        for i, row in enumerate(forms.keep("window", size, 0).numpy()):
            first = i - size // 2
            expected = [j for j in range(first, first + size) if 0 <= j < N]
            assert np.flatnonzero(row).tolist() == expected
            assert i in expected
    # Global tokens see and are seen.
    window = forms.keep("window", 4, 0)
    keep = forms.keep("window+global", 4, 0)
    assert keep[list(SPECIAL)].all()
    assert keep[:, list(SPECIAL)].all()
    inner = slice(1, N - 1)
    assert torch.equal(keep[inner, inner], window[inner, inner])
    assert (forms.keep("random-keys", 5, 0).sum(-1) == 5).all()  # anywhere
    assert forms.cost("random-keys", 5) == pytest.approx(5 / N)
    # Random blocks, of 4 here, are added as a whole.
    long = CheapForms(128, (0, 127), 1, pool)
    full = long.keep("window+global+random", 4, 0)
    assert (full & ~long.keep("window+global", 4, 0))[1:-1, 1:-1].any()
    blocks = full.reshape(32, 4, 32, 4).transpose(1, 2).flatten(2).all(-1)
    assert blocks.sum(-1).min() >= 3
    assert not torch.equal(full, long.keep("window+global+random", 4, 1))


def test_what_is_random_is_drawn_anew(qkv, forms):
    q, k, v = qkv
    for form in FORMS[:-1]:
        first_draw = forms.attend(form, 4, 0, q, k, v, 0.5, draw=0)
        second_draw = forms.attend(form, 4, 0, q, k, v, 0.5, draw=1)
        assert torch.equal(first_draw, second_draw) == (form not in RANDOM), form
        assert forms.draws(form) == (DRAWS if form in RANDOM else 1)
    many = torch.cat([forms.projection(16, layer, 0) for layer in range(200)])
    assert float(many.mul(4.0).var()) == pytest.approx(1.0, abs=0.01)  # one over their number
    (zeros,) = low_rank(torch.zeros(1, 1, N, D), None, [2], forms.pool)
    assert not zeros.any()


CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
NEAR = torch.tensor([[abs(i - j) <= 5 for j in range(N)] for i in range(N)])


def additive(seen: torch.Tensor) -> torch.Tensor:
    """A bias of each head and sequence, and what may not be seen as transformers writes it."""
    torch.manual_seed(3)
    bias = 2 * torch.randn(2, 3, N, N, dtype=torch.float64)
    return bias.masked_fill(~seen, torch.finfo(torch.float64).min)


EVERY = torch.ones(N, N, dtype=torch.bool)
#: Which keys may be seen, and the mask or bias that says so.
MASKS = {
    "none": (EVERY, None),
    "near": (NEAR, NEAR[None, None]),
    "bias": (EVERY, additive(EVERY)),
    "bias, causal": (CAUSAL, additive(CAUSAL)),
}


def masked_forms(pool: MatrixPool, mask: torch.Tensor | None) -> CheapForms:
    return CheapForms(N, SPECIAL, 7, pool, {0: without_padding(mask)})


def slow_pattern(q, k, mask: torch.Tensor | None, keep: np.ndarray, b: int, h: int) -> np.ndarray:
    """Softmax over the keys that are kept, pair by pair."""
    weights = np.zeros((N, N))
    for i, j in np.argwhere(keep):
        bias = 0.0
        if mask is not None and mask.dtype != torch.bool:
            bias = float(mask[b, h, i, j])
        weights[i, j] = np.exp(0.5 * float(q[b, h, i] @ k[b, h, j]) + bias)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("name", MASKS)
def test_forms_are_their_definitions(qkv, pool, name, size):
    """With what the model adds to its scores: the SVD of P and of P V, Linformer, kept keys."""
    q, k, v = qkv
    seen, mask = MASKS[name]
    forms = masked_forms(pool, mask)
    b = 1
    h = 2
    value = v[b, h].numpy()
    pattern = slow_pattern(q, k, mask, seen.numpy(), b, h)
    u, s, vt = np.linalg.svd(pattern)
    expected = {"truncated": (u[:, :size] * s[:size]) @ vt[:size] @ value}
    u, s, vt = np.linalg.svd(pattern @ value, full_matrices=False)
    expected["bound"] = (u[:, :size] * s[:size]) @ vt[:size]
    R = forms.projection(size, 0, 0).numpy()
    expected["random"] = pattern @ R.T @ (R @ value)
    for form in ("window", "window+global", "window+global+random", "random-keys"):
        keep = forms.keep(form, size, 0).numpy()
        assert not (keep & ~seen.numpy()).any()
        expected[form] = slow_pattern(q, k, mask, keep, b, h) @ value
    expected["uniform"] = np.stack([value[row].mean(0) for row in seen.numpy()])
    if name == "none":
        few_k = k[b, h].reshape(size, -1, D).mean(1)
        few_v = v[b, h].reshape(size, -1, D).mean(1)
        expected["pooled"] = (attention_pattern(q[b, h], few_k, scale=0.5) @ few_v).numpy()
    for form, z in expected.items():
        ours = forms.attend(form, size, 0, q, k, v, 0.5, 0, mask)
        np.testing.assert_allclose(ours[b, h], z, atol=1e-6, err_msg=form)
    # Pooled keys are left out where pairs of positions count.
    assert forms.left_out == (() if name == "none" else ("pooled",))
    assert set(expected) == {form for form, _ in forms.points} == set(FORMS) - set(forms.left_out)


def test_windows_and_keys_of_a_model_that_looks_back(pool):
    forms = masked_forms(pool, CAUSAL[None, None])
    window = forms.keep("window", 5, 0).numpy()
    drawn = forms.keep("random-keys", 5, 0).numpy()
    for i in range(N):
        assert np.flatnonzero(window[i]).tolist() == list(range(max(0, i - 4), i + 1))
        assert drawn[i].sum() == min(5, i + 1)
    for mask in (EVERY[None, None], torch.zeros(1, 1, 1, N)):  # forbids and adds nothing
        assert masked_forms(pool, mask).left_out == ()


def test_layers_may_see_different_keys(pool):
    """The second of two layers has a sliding window."""
    forms = CheapForms(N, SPECIAL, 7, pool, {0: None, 1: NEAR[None, None]})
    plain = CheapForms(N, SPECIAL, 7, pool)
    assert torch.equal(forms.keep("window", 16, 0), plain.keep("window", 16, 0))
    assert torch.equal(forms.keep("window", 16, 1), plain.keep("window", 16, 1) & NEAR)
    shares_kept = [float(forms.keep("window", 16, layer).double().mean()) for layer in (0, 1)]
    assert forms.cost("window", 16) == pytest.approx(sum(shares_kept) / 2)


@pytest.mark.parametrize("name", ["none", "bias, causal"])
def test_errors_and_mass_by_sequence_and_draw(qkv, pool, name):
    """One sequence at a time, as a chunk comes: each with its own part of the mask."""
    q, k, v = qkv
    mask = MASKS[name][1]
    forms = masked_forms(pool, mask)
    pattern = attention_pattern(q, k, scale=0.5, mask=mask)
    z = pattern @ v
    chunks = []
    for row in range(2):
        rows = slice(row, row + 1)
        chunk_mask = mask[rows] if mask is not None and len(mask) > 1 else mask
        chunk = (q[rows], k[rows], v[rows], pattern[rows], z[rows])
        chunks.append(forms.errors(0, *chunk, scale=0.5, mask=chunk_mask))
    errors = np.concatenate([chunk_errors for chunk_errors, _ in chunks])
    masses = np.concatenate([chunk_masses for _, chunk_masses in chunks])
    for i, (form, size) in enumerate(forms.points):
        for draw in range(DRAWS):
            seeded = draw if form in RANDOM else 0
            gap = forms.attend(form, size, 0, q, k, v, 0.5, seeded, mask) - z
            error = (gap.square().sum((2, 3)) / z.square().sum((2, 3))).sqrt()
            np.testing.assert_allclose(errors[:, draw, :, i], error, rtol=1e-6, atol=1e-9)
            form_masses = masses[:, draw, :, i]
            if form.startswith(("window", "random-keys")):
                keep = forms.keep(form, size, 0, seeded)
                mass = [[p[keep].sum() / N for p in sequence] for sequence in pattern]
                np.testing.assert_allclose(form_masses, mass, rtol=1e-6)
            else:
                assert np.isnan(form_masses).all()
