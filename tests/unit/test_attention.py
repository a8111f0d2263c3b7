"""The three forms of attention against a definition in plain loops, and each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headscope.attention import (
    AttentionWeights,
    attention_by_head,
    attention_fused,
    causal_mask,
    combine_masks,
    key_padding_mask,
    masked_softmax,
    project_out,
    stream_attention,
)
from headscope.core.errors import MaskedRowWarning

few = settings(max_examples=40, deadline=None)
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
Form = Callable[..., tuple[Tensor, Tensor]]
MASKS = ("none", "padding", "causal", "both", "per head", "any")


@st.composite
def problems(draw: st.DrawFn, masks: tuple[str, ...] = MASKS) -> Problem:
    """Small shapes with n_q != n_k, d_v != d_head, and a mask that may leave rows empty."""
    sizes = {name: draw(st.integers(1, 3)) for name in ("batch", "n_heads", "d_head")}
    sizes |= {name: draw(st.integers(1, 5)) for name in ("d_v", "d_model", "n_q", "n_k")}
    return Problem(**sizes, kind=draw(st.sampled_from(masks)), seed=draw(st.integers(0, 2**32)))


class Problem:
    """Random float64 tensors of one shape; ``allowed`` is the mask written out in full."""

    def __init__(
        self, *, batch=2, n_heads=3, d_model=6, d_head=2, d_v=2, n_q=4, n_k=5, kind="none", seed=0
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.text = f"{batch=} {n_heads=} {d_model=} {d_head=} {d_v=} {n_q=} {n_k=} {kind=} {seed=}"
        self.x_q = self.random(batch, n_q, d_model)
        self.x_k = self.random(batch, n_k, d_model)
        shapes = {
            **{"W_Q": (n_heads, d_model, d_head), "b_Q": (n_heads, d_head)},
            **{"W_K": (n_heads, d_model, d_head), "b_K": (n_heads, d_head)},
            **{"W_V": (n_heads, d_model, d_v), "b_V": (n_heads, d_v)},
            **{"W_O": (n_heads, d_v, d_model), "b_O": (d_model,)},
        }
        self.weights = AttentionWeights(**{k: self.random(*shape) for k, shape in shapes.items()})
        self.gate = self.random(n_heads)
        self.mask = self._mask(kind, batch, n_heads, n_q, n_k)
        full = torch.ones(batch, n_heads, n_q, n_k, dtype=torch.bool)
        self.allowed = full if self.mask is None else full & self.mask
        self.n_heads = n_heads
        self.n_q = n_q
        self.n_k = n_k

    def __repr__(self) -> str:
        return self.text

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def _mask(self, kind: str, batch: int, n_heads: int, n_q: int, n_k: int) -> Tensor | None:
        padding = key_padding_mask(self.random(batch, n_k) > -0.5)
        if kind == "both":
            return combine_masks(padding, causal_mask(n_q, n_k))
        return {
            "none": None,
            "padding": padding,
            "causal": causal_mask(n_q, n_k),
            "per head": self.random(1, n_heads, n_q, n_k) > -0.5,
            "any": self.random(batch, n_heads, n_q, n_k) > 0,
        }[kind]

    def qkv(self) -> tuple[Tensor, ...]:
        w = self.weights
        factors = ((self.x_q, w.W_Q, w.b_Q), (self.x_k, w.W_K, w.b_K), (self.x_k, w.W_V, w.b_V))
        return tuple(torch.einsum("bnd,hde->bhne", x, W) + b[:, None] for x, W, b in factors)

    def warns(self) -> AbstractContextManager[Any]:
        """A warning exactly when some row is empty: any other warning is an error here."""
        empty = ~self.allowed.any(-1)
        return pytest.warns(MaskedRowWarning) if bool(empty.any()) else nullcontext()


def by_definition(
    p: Problem,
    scale: float | None = None,
    gate: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (out, pattern, z before the gate) from loops over NumPy vectors."""
    w = {f.name: getattr(p.weights, f.name).numpy() for f in fields(p.weights)}
    x_q = p.x_q.numpy()
    x_k = p.x_k.numpy()
    allowed = p.allowed.numpy()
    pattern = np.zeros(allowed.shape)
    z = np.zeros((*allowed.shape[:3], w["W_V"].shape[2]))
    out = np.zeros((*x_q.shape[:2], w["b_O"].size)) + w["b_O"]
    for b, h, i in itertools.product(*map(range, allowed.shape[:3])):
        q = x_q[b, i] @ w["W_Q"][h] + w["b_Q"][h]
        keys = np.flatnonzero(allowed[b, h, i])
        score = {}
        for j in keys:
            k = x_k[b, j] @ w["W_K"][h] + w["b_K"][h]
            score[j] = float(q @ k) * (scale or 1 / math.sqrt(len(q)))
            if softcap is not None:
                e = math.exp(2 * score[j] / softcap)
                score[j] = softcap * (e - 1) / (e + 1)
        total = sum(math.exp(s - max(score.values())) for s in score.values())
        for j in keys:
            pattern[b, h, i, j] = math.exp(score[j] - max(score.values())) / total
            z[b, h, i] += pattern[b, h, i, j] * (x_k[b, j] @ w["W_V"][h] + w["b_V"][h])
        xi = 1.0 if gate is None else float(gate[h])
        out[b, i] += (xi * z[b, h, i]) @ w["W_O"][h]
    return out, pattern, z


def streamed(p: Problem, **options: Any) -> tuple[Tensor, Tensor]:
    """Run the streaming form to the end: (out, pattern put together by the visitor)."""
    pattern = torch.full(p.allowed.shape, math.nan, dtype=p.x_q.dtype)

    def visit(rows: slice, heads: slice, chunk: Tensor, z: Tensor) -> None:
        pattern[rows, heads] = chunk

    z = stream_attention(*p.qkv(), visit=visit, **options)
    return project_out(z, p.weights), pattern


FORMS: dict[str, Form] = {
    "by_head": lambda p, **options: attention_by_head(p.x_q, p.x_k, p.weights, **options),
    "fused": lambda p, **options: attention_fused(p.x_q, p.x_k, p.weights, **options),
    "streamed": streamed,
    "streamed one by one": lambda p, **options: streamed(p, chunk_entries=1, **options),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@few
@given(
    p=problems(),
    scale=st.none() | st.floats(0.05, 3.0),
    softcap=st.none() | st.floats(0.5, 30.0),
    gate=st.none() | st.lists(st.sampled_from((0.0, 1.0, -0.7)), min_size=3, max_size=3),
    chunk_entries=st.integers(1, 200),
)
def test_every_form_is_the_definition(p, scale, softcap, gate, chunk_entries):
    """A closed head still attends, and takes its value bias with it, but not the layer's."""
    if gate is not None:
        gate = torch.tensor(gate[: p.n_heads], dtype=torch.float64)
    out, pattern, _ = by_definition(p, scale, gate, softcap)
    for name, form in FORMS.items():
        size = {"chunk_entries": chunk_entries} if name == "streamed" else {}
        with p.warns():
            ours = form(p, mask=p.mask, scale=scale, softcap=softcap, gate=gate, **size)
        np.testing.assert_allclose(ours[0], out, err_msg=name, **CLOSE)
        np.testing.assert_allclose(ours[1], pattern, err_msg=name, **CLOSE)
        assert not bool(ours[1][~p.allowed].any()), "masked keys get exactly zero"
        if gate is not None and not gate.any():
            assert bool((ours[0] == p.weights.b_O).all())


@few
@given(p=problems(), chunk_entries=st.integers(1, 200))
def test_visitor_sees_every_head_of_every_row_once_in_small_chunks(p, chunk_entries):
    _, pattern, z = by_definition(p)
    seen = torch.zeros(p.allowed.shape[:2], dtype=torch.int)

    def visit(rows: slice, heads: slice, chunk: Tensor, z_chunk: Tensor) -> None:
        seen[rows, heads] += 1
        assert chunk.numel() <= chunk_entries or chunk.shape[:2] == (1, 1)
        np.testing.assert_allclose(chunk, pattern[rows, heads], **CLOSE)
        np.testing.assert_allclose(z_chunk, z[rows, heads], **CLOSE)  # the gate comes later

    with p.warns():
        stream_attention(
            *p.qkv(), mask=p.mask, gate=p.gate, visit=visit, chunk_entries=chunk_entries
        )
    assert bool((seen == 1).all())


def test_causal_and_padding_masks_are_what_they_say():
    valid = torch.tensor([[1, 1, 0], [1, 0, 1]])
    mask = combine_masks(None, key_padding_mask(valid), causal_mask(4, 3))
    assert mask is not None
    for b, i, j in itertools.product(range(2), range(4), range(3)):
        assert bool(mask[b, 0, i, j]) == (bool(valid[b, j]) and j <= i)
    assert combine_masks(None, None) is None


@each_form
@few
@given(p=problems(masks=("padding", "causal", "both", "per head", "any")))
def test_additive_masks_equal_the_boolean_one(form, p):
    assert p.mask is not None
    with p.warns():
        expected = form(p, mask=p.mask)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for low in (-math.inf, torch.finfo(dtype).min):
            additive = torch.zeros(p.mask.shape, dtype=dtype).masked_fill(~p.mask, low)
            with p.warns():
                ours = form(p, mask=additive)
            torch.testing.assert_close(ours, expected, **CLOSE)
            assert bool((ours[1][~p.allowed] == 0).all())


@pytest.mark.parametrize("additive", [False, True])
@each_form
def test_empty_row_is_zero_warned_about_and_harmless_to_the_gradient(form, additive):
    """Its output is b_O, and the gradient is that of the same batch without the row."""
    p = Problem()
    p.allowed[1, :, 2] = False
    mask = p.allowed
    if additive:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~p.allowed, -math.inf)
    p.x_q.requires_grad_()
    p.x_k.requires_grad_()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        with pytest.warns(MaskedRowWarning):
            out, pattern = form(p, mask=mask)
        (out**2).sum().backward()
    assert not bool(pattern[1, :, 2].any())
    torch.testing.assert_close(out[1, 2], p.weights.b_O, rtol=0, atol=0)
    got = p.x_q.grad, p.x_k.grad

    other = Problem()
    other.x_q.requires_grad_()
    other.x_k.requires_grad_()
    out, _ = FORMS["fused"](other)
    keep = torch.ones(out.shape, dtype=torch.float64)
    keep[1, 2] = 0
    ((out * keep) ** 2).sum().backward()
    torch.testing.assert_close(got, (other.x_q.grad, other.x_k.grad), **CLOSE)


def test_extreme_scores_stay_finite_and_masked_keys_zero():
    scores = torch.tensor([[-3e4, -3e4, 3e4], [3e4, -3e4, 0.0], [-3e4, -3e4, -3e4]])
    expected = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        pattern = masked_softmax(scores.to(dtype), torch.tensor([True, True, False]))
        torch.testing.assert_close(pattern, expected.to(dtype), rtol=0, atol=0)


@few
@given(p=problems(masks=("none", "padding", "any")), chunk_entries=st.integers(1, 100))
def test_all_forms_have_the_same_gradient(p, chunk_entries):
    leaves = [p.x_q, p.x_k, p.gate, *(getattr(p.weights, f.name) for f in fields(p.weights))]
    gradients = []
    for name, form in FORMS.items():
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        size = {"chunk_entries": chunk_entries} if name == "streamed" else {}
        with p.warns():
            out, _ = form(p, mask=p.mask, gate=p.gate, **size)
        (out**2).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-8, atol=1e-9)


#: Shapes that do not go with 3 heads, d_model 6, d_head 2 and d_v 4.
WRONG_SHAPES = {
    "W_Q": [(6, 6), (2, 6, 2), (3, 6, 1)],
    "W_O": [(2, 4, 6), (3, 1, 6), (12, 6)],
    "b_Q": [(6,), (3, 1)],
    "b_V": [(3, 2), (3, 1)],
    "b_O": [(1,), (3, 6)],
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_weights_know_their_sizes_and_refuse_inconsistent_shapes(name):
    weights = Problem(n_heads=3, d_model=6, d_head=2, d_v=4).weights
    assert (weights.n_heads, weights.d_model, weights.d_head) == (3, 6, 2)
    for shape in WRONG_SHAPES[name]:
        with pytest.raises(ValueError, match=r"[Wb]_[QKVO] has"):
            replace(weights, **{name: torch.zeros(shape, dtype=torch.float64)})
