"""Linear forms against plain loops over queries and keys."""

import math

import pytest
import torch
from torch import Tensor

from headscope.measures.linear.feature_maps import EVEN, FORMS, linear_attention

N, D = 5, 3


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
    found, root = [], scale**0.5
    for i in range(N):
        total, answer = 0.0, [0.0] * D
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
        found.append(answer)
    return found


@pytest.mark.parametrize("form", [*FORMS, EVEN])
@pytest.mark.parametrize("case", ["all", "padded", "causal", "additive", "-10000"])
def test_a_form_is_its_sum_over_keys(form, case):
    q, k, v = draw()
    padded = torch.tensor([1, 1, 1, 0, 0], dtype=torch.bool)[None]
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    mask = {"all": None, "padded": padded}.get(case, causal)
    sees = (lambda i, j: True) if mask is None else (lambda i, j: bool(mask.expand(N, N)[i, j]))
    given = mask
    if case == "additive":  # with a bias, which no linear form can hold
        given = torch.full((N, N), 0.7).masked_fill(~mask, torch.finfo(torch.float32).min)
    if case == "-10000":  # what some models write for minus infinity
        given = torch.zeros(N, N).masked_fill(~mask, -10000.0)
    ours = linear_attention(form, q, k, v, scale=0.37, mask=given)
    expected = torch.tensor(by_hand(form, q, k, v, 0.37, sees), dtype=torch.float64)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_the_first_order_of_small_scores_is_their_softmax():
    q, k, v = draw(2)
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    for size, near in ((1e-3, 1e-5), (8.0, None)):
        scores = (q @ k.T * 0.5 * size).masked_fill(~mask, -torch.inf)
        softmax = torch.softmax(scores, -1) @ v
        ours = linear_attention("first-order", size * q, k, v, scale=0.5, mask=mask)
        gap = float((ours - softmax).abs().max())
        assert gap < near if near else gap > 0.05


def test_what_could_divide_by_nothing_or_overflow():
    # Keys whose scores sum to minus their number: 1 + s q.k sums to zero but for rounding.
    q, k, v = torch.ones(1, 1), torch.tensor([[-1.3], [-0.7]]), torch.tensor([[1.0], [2.0]])
    assert linear_attention("first-order", q, k, v, scale=1.0).tolist() == [[0.0]]
    # A query without any weight gets zeros.
    q, k, v = draw()
    none = torch.zeros(N, N, dtype=torch.bool)
    for form in (*FORMS, EVEN):
        assert not linear_attention(form, q, k, v, scale=1.0, mask=none).any()
    assert not linear_attention("relu-normalised", -q.abs(), k, v, scale=1.0).any()
    # Half precision is summed in single.
    q, k, v = (x.to(torch.float16) for x in draw())
    found = linear_attention("exp-normalised", 9 * q, 9 * k, v, scale=1.0)
    assert found.dtype == torch.float16
    assert bool(found.isfinite().all())
