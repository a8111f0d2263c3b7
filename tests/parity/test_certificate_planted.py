"""Errors planted in our attention are refused in every type, also where values are small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from families import tiny
from torch import Tensor

import headscope
from headscope.attention import stream_attention
from headscope.models import routing
from headscope.models.casting import cast
from headscope.models.certificate import validate_model
from headscope.models.loaded import LoadedModel

Attention = Callable[..., Tensor]


def scaled(factor: float) -> Attention:
    """One head's z is a little too large."""

    def wrong(*qkv: Tensor, **options: Any) -> Tensor:
        z = stream_attention(*qkv, **options).clone()
        z[:, 2] *= factor
        return z

    return wrong


def with_values(change: Callable[[Tensor], Tensor]) -> Attention:
    return lambda q, k, v, **options: stream_attention(q, k, change(v), **options)


def first_two_exchanged(v: Tensor) -> Tensor:
    return v[:, [1, 0, *range(2, v.shape[1])]]


def unmasked(*qkv: Tensor, **options: Any) -> Tensor:
    return stream_attention(*qkv, **{**options, "mask": None})


ERRORS: dict[str, Attention] = {
    "z of one head times 1.05": scaled(1.05),
    "z of one head times 0.95": scaled(0.95),
    "z of one head is zero": scaled(0.0),
    "values of the next head": with_values(lambda v: v.roll(1, 1)),
    "values of two heads exchanged": with_values(first_two_exchanged),
    "values of the next token": with_values(lambda v: v.roll(1, 2)),
    "values without their sign": with_values(torch.abs),
    "queries of the next head": lambda q, k, v, **options: stream_attention(
        q.roll(1, 1), k, v, **options
    ),
    "no mask": unmasked,
}
#: Weights as training starts make scores of a few hundredths, and values as small.
SPREADS = {"wide": 0.3, "small": 0.02}


@cache
def model(spread: str) -> LoadedModel:
    return headscope.wrap(tiny("bert", initializer_range=SPREADS[spread]))


@pytest.fixture
def loaded(spread: str, dtype: str) -> Iterator[LoadedModel]:
    found = cast(model(spread), dtype)
    found.certificate = None
    yield found
    found.certificate = None


each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
each_spread = pytest.mark.parametrize("spread", SPREADS)


@each_dtype
@each_spread
def test_nothing_planted_passes(loaded: LoadedModel) -> None:
    result = validate_model(loaded)
    assert result.passed, result.reasons
    for check in result.layers:
        assert check.rounding_z is not None
        assert check.rounding_z < 1
        assert check.z_scale is not None
        assert check.z_scale_error is not None
        assert abs(check.z_scale - 1) < max(1e-3, 3 * check.z_scale_error)


@pytest.mark.parametrize("error", ERRORS)
@each_dtype
@each_spread
def test_a_planted_error_is_refused(
    error: str, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "stream_attention", ERRORS[error])
    assert not validate_model(loaded).passed


def test_the_head_that_is_scaled_is_named(
    demo: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the 32 columns of z that a head of a real model has."""
    loaded = cast(demo, "bfloat16")
    monkeypatch.setattr(routing, "stream_attention", scaled(1.03))
    said = [r for r in validate_model(loaded).reasons if "the z of the installed attention" in r]
    assert len(said) == loaded.n_layers
    assert all("head 2" in reason or "layer 0:" in reason for reason in said), said


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@each_spread
def test_values_that_the_layout_misreads_are_refused(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed attention is right; the weights that headscope reads out are not."""
    site = type(loaded.sites[0])
    weights = site.weights

    def exchanged(self: Any) -> Any:
        import dataclasses

        found = weights(self)
        return dataclasses.replace(found, W_V=found.W_V.roll(1, 0), b_V=found.b_V.roll(1, 0))

    monkeypatch.setattr(site, "weights", exchanged)
    result = validate_model(loaded)
    assert not result.passed
    assert any("z" in reason for reason in result.reasons)
