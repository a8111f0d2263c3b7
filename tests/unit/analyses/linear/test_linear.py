"""Linear forms by plain loops, their errors over all tokens, and what is read back from N keys."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.linear.forms import AVERAGES, EVEN, FORMS_AND_EVEN, linear_attention
from headscope.analyses.linear.measure import LinearSums
from headscope.analyses.linear.resamples import Resamples
from headscope.analyses.linear.stored_keys import (
    closed_form,
    coherence,
    readout_errors,
    unit_keys,
)
from headscope.attention import attention_pattern
from headscope.models.run.formulas import HeadInputs

N = 5
D = 3


def draw(seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, N, D, generator=generator, dtype=torch.float64).unbind()


FEATURES = {
    "linear": lambda x: x,
    "first": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "exp": math.exp,
    "elu": lambda x: x + 1 if x > 0 else math.exp(x),
}


def by_hand(form: str, q: Tensor, k: Tensor, v: Tensor, scale: float, sees) -> list[list[float]]:
    """Every number on its own: for query i the keys j that it sees, entry by entry."""
    name, _, normalised = form.partition("-")
    z = []
    root = scale**0.5
    for i in range(N):
        total = 0.0
        answer = [0.0] * D
        for j in range(N):
            if not sees(i, j):
                continue
            weight = 1.0 if form in (EVEN, "first-order") else 0.0
            if form != EVEN:
                f = FEATURES[name]
                weight += sum(f(float(q[i, e]) * root) * f(float(k[j, e]) * root) for e in range(D))
            total += weight
            answer = [a + weight * float(v[j, e]) for e, a in enumerate(answer)]
        if normalised or form == EVEN:
            answer = [a / total if total else 0.0 for a in answer]
        z.append(answer)
    return z


@pytest.mark.parametrize("case", ["padded", "causal", "additive", "-10000"])
def test_a_form_is_its_sum_over_keys(case):
    q, k, v = draw()
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    if case == "padded":
        mask = torch.tensor([1, 1, 1, 0, 0], dtype=torch.bool)[None]
    model_mask = mask
    if case == "additive":  # with a bias, which no linear form can hold
        model_mask = torch.full((N, N), 0.7).masked_fill(~mask, torch.finfo(torch.float32).min)
    if case == "-10000":  # what some models write for minus infinity
        model_mask = torch.zeros(N, N).masked_fill(~mask, -10000.0)
    for form in FORMS_AND_EVEN:
        ours = linear_attention(form, q, k, v, scale=0.37, mask=model_mask)
        rows = by_hand(form, q, k, v, 0.37, lambda i, j: bool(mask.expand(N, N)[i, j]))
        expected = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9, msg=form)


def test_what_could_divide_by_nothing_or_overflow():
    # Keys whose scores sum to minus their number: 1 + s q.k sums to zero but for rounding.
    q = torch.ones(1, 1)
    k = torch.tensor([[-1.3], [-0.7]])
    v = torch.tensor([[1.0], [2.0]])
    assert linear_attention("first-order", q, k, v, scale=1.0).tolist() == [[0.0]]
    # A query without any weight gets zeros.
    q, k, v = draw()
    none = torch.zeros(N, N, dtype=torch.bool)
    for form in FORMS_AND_EVEN:
        assert not linear_attention(form, q, k, v, scale=1.0, mask=none).any()
    assert not linear_attention("relu-normalised", -q.abs(), k, v, scale=1.0).any()
    # Half precision is summed in single; sums without normalisation would not fit into it.
    q, k, v = torch.stack(draw()).to(torch.float16)
    for form in FORMS_AND_EVEN:
        z = linear_attention(form, 9 * q, 9 * k, v, scale=1.0)
        assert z.dtype == torch.float32
        assert bool(z.isfinite().all())


SCALE = 0.4
HEADS = 2
LENGTHS = (5, 3, 6, 4)


def inputs_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> HeadInputs:
    """What all heads of the site in row 5 attend with."""
    site = SimpleNamespace(row=5, softcap=None)
    return HeadInputs(site, tuple(range(q.shape[1])), q, k, v, mask, SCALE)


def measured() -> tuple[LinearSums, dict[str, np.ndarray], np.ndarray]:
    """Sums of two batches with padding; every form's output and z at real tokens, (t, h, d)."""
    generator = torch.Generator().manual_seed(2)
    z_of = []
    y_of = {form: [] for form in FORMS_AND_EVEN}
    batches = [torch.tensor(lengths) for lengths in (LENGTHS[:2], LENGTHS[2:])]
    masks = [torch.arange(int(n.max()))[None] < n[:, None] for n in batches]
    sums = LinearSums({4: 1, 5: HEADS}, masks, D)  # of two sites the second
    for number, (lengths, real) in enumerate(zip(batches, masks, strict=True)):
        shape = (3, 2, HEADS, real.shape[1], D)
        q, k, v = torch.randn(shape, generator=generator, dtype=torch.float64)
        mask = real[:, None, None]
        z = attention_pattern(q, k, scale=SCALE, mask=mask) @ v
        sums.update(number, inputs_of(q, k, v, mask), z)
        for form in FORMS_AND_EVEN:
            y = linear_attention(form, q, k, v, scale=SCALE, mask=mask)
            y_of[form] += [y[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)]
        z_of += [z[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)]
    return sums, {f: torch.cat(y).numpy() for f, y in y_of.items()}, torch.cat(z_of).numpy()


@pytest.mark.parametrize("left_out", [None, 0, 2])
def test_errors_are_those_of_all_tokens_of_the_sentences(left_out):
    """Fits are to these sentences: z - m and c y - z, also without each sentence."""
    sums, outputs, z = measured()
    errors_of_fit = {}
    for fit, (of_all, without_each) in sums.errors().items():
        errors_of_fit[fit] = (of_all if left_out is None else without_each[left_out])[1:]
    counted = np.repeat(np.arange(4) != left_out, LENGTHS) if left_out is not None else slice(None)
    z = z[counted]
    outputs = {form: y[counted] for form, y in outputs.items()}
    scales = sums.scales()[1:]
    assert sums.tokens.tolist() == list(LENGTHS)
    for h, (i, form) in itertools.product(range(HEADS), enumerate(FORMS_AND_EVEN)):
        z_of_head = z[:, h]
        y = outputs[form][:, h]
        spread = np.linalg.norm(z_of_head - z_of_head.mean(0))
        c = np.linalg.lstsq(y.reshape(-1, 1), z_of_head.ravel(), rcond=None)[0][0]
        assert left_out is not None or scales[h, i] == pytest.approx(c)
        for fit, scale in (("error", 1.0), ("scaled", c)):
            error = np.linalg.norm(scale * y - z_of_head) / spread
            assert errors_of_fit[fit][h, i] == pytest.approx(error)


@pytest.mark.parametrize(("lines", "known"), [(7, False), (9, True)])
def test_errors_of_averages_have_an_interval_from_eight_lines(lines, known):
    """Forms whose sums grow with the line never have one: a few long lines decide them."""
    batch = torch.randn(3, lines, HEADS, 5, D, generator=torch.Generator().manual_seed(3))
    q, k, v = batch.double()
    real = torch.ones(lines, 5, dtype=torch.bool)
    sums = LinearSums({5: HEADS}, [real], D)
    z = attention_pattern(q, k, scale=SCALE, mask=real[:, None, None]) @ v
    sums.update(0, inputs_of(q, k, v, real[:, None, None]), z)
    resamples = Resamples(sums, 0)
    for head in (None, 0):
        for row in resamples.form_errors(head):
            for error in (row.error, row.scaled):
                assert (error.interval is not None) == (known and row.form in AVERAGES)
        assert (resamples.stored_keys(head).linear.interval is not None) == known


def test_a_head_that_never_changes_has_no_error_and_one_that_sees_all_the_whole_entropy():
    q, k, varied = torch.randn(3, 1, 1, 4, D, generator=torch.Generator().manual_seed(0))
    v = torch.ones(1, 1, 4, D)
    real = [torch.ones(1, 4, dtype=torch.bool)]
    sums = LinearSums({5: 1}, real, D)
    sums.update(0, inputs_of(q, k, v, None), v)
    assert all(np.isnan(of_all).all() for of_all, _ in sums.errors().values())
    sums = LinearSums({5: 1}, real, D)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    sums.update(0, inputs_of(0 * q, 0 * k, varied, causal), varied)
    assert sums.entropy[0, 0] == pytest.approx(1.0)  # a share of what can be seen


def keys(n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 1, n, d, generator=generator, dtype=torch.float64)


def all_real(n: int) -> Tensor:
    return torch.ones(1, n, dtype=torch.bool)


def errors(k: Tensor, beta: float = 3.0) -> dict[str, float]:
    real = all_real(k.shape[2])
    unit, _ = unit_keys(k, real, centred=False)
    return {name: float(x) for name, x in readout_errors(unit, real, {"softmax": beta}).items()}


def test_expected_errors_are_those_of_orthonormal_values_stored_for_real():
    n = 7
    d = 4
    k = F.normalize(keys(n, d, 3)[0, 0], dim=-1)
    v = torch.eye(n, dtype=torch.float64)
    by_readout = errors(k[None, None], beta=2.0)

    def error(answers: Tensor) -> float:
        return float(np.mean([0.5 * float(((v[j] - answers[j]) ** 2).sum()) for j in range(n)]))

    memory = sum(torch.outer(v[i], k[i]) for i in range(n))  # (n, d): fast weights
    answers = torch.stack([memory @ k[j] for j in range(n)])
    best = min(error(c * answers) for c in np.linspace(0, 1, 2001))
    assert by_readout["scaled-sum"] == pytest.approx(best, abs=1e-6)
    weights = torch.linalg.pinv(k) @ v
    assert by_readout["least-squares"] == pytest.approx(error(k @ weights))
    assert by_readout["least-squares"] == pytest.approx(0.5 * (1 - d / n))
    sharp = torch.exp(2 * k @ k.T)
    assert by_readout["softmax"] == pytest.approx(error(sharp / sharp.sum(1, keepdim=True) @ v))
    pairs = [abs(float(k[i] @ k[j])) for i, j in itertools.permutations(range(n), 2)]
    assert float(coherence(k[None, None], all_real(n))) == pytest.approx(np.mean(pairs))


def test_padding_and_the_keys_mean_change_nothing_they_should_not():
    k = keys(5, 3)
    padded = torch.cat([k, 7 * torch.ones(1, 1, 2, 3, dtype=torch.float64)], dim=2)
    real = torch.tensor([[1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    for centred in (False, True):
        ours, length = unit_keys(padded, real, centred=centred)
        alone, same = unit_keys(k, all_real(5), centred=centred)
        torch.testing.assert_close(length, same)
        torch.testing.assert_close(coherence(ours, real), coherence(alone, all_real(5)))
        expected = readout_errors(alone, all_real(5), {"softmax": 3.0})
        torch.testing.assert_close(readout_errors(ours, real, {"softmax": 3.0}), expected)
    moved, _ = unit_keys(k + 100, all_real(5), centred=True)
    torch.testing.assert_close(moved, unit_keys(k, all_real(5), centred=True)[0])
    assert float(coherence(unit_keys(k + 100, all_real(5), centred=False)[0], all_real(5))) > 0.99


@pytest.mark.parametrize(("n", "d"), [(8, 16), (48, 8)])
def test_values_really_stored_under_random_keys_have_the_closed_forms(n, d):
    rng = np.random.default_rng(n)
    drawn: dict[str, list[float]] = {"scaled-sum": [], "least-squares": []}
    for _ in range(100):
        vectors = rng.normal(size=(2, n, d))
        k, v = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        for readout, answers in (
            ("scaled-sum", k @ (k.T @ v) / (1 + (n - 1) / d)),
            ("least-squares", k @ np.linalg.lstsq(k, v, rcond=None)[0]),
        ):
            drawn[readout].append(0.5 * np.square(v - answers).sum(1).mean())
    for readout, values in drawn.items():
        expected = closed_form(readout, n, d)
        sem = np.std(values, ddof=1) / 10
        assert expected is not None
        assert abs(np.mean(values) - expected) < 3 * sem + 1e-9, readout
    if n > d:
        assert closed_form("least-squares", n, d) == pytest.approx(0.5 * (1 - d / n))
    # Any keys that span d dimensions have it, however alike they are.
    alike = keys(20, 5) * 0.05 + 1
    assert errors(alike)["least-squares"] == pytest.approx(0.5 * (1 - 5 / 20))
