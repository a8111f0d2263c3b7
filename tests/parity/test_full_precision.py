"""Products are computed in the type that a certificate states, whatever the caller had set."""

from collections.abc import Iterator

import pytest
import torch
from families import tiny
from torch import nn

import headscope
from headscope.models import loading
from headscope.models.certificate import validate_model
from headscope.models.full_precision import full_precision
from headscope.results.sections import SECTIONS

MEASURING = (*SECTIONS, "report", "scores", "measure")


def settings() -> tuple[object, ...]:
    """Everything that says how products are computed."""
    b = torch.backends
    kinds = (b.cuda.matmul, b.cudnn.conv, b.mkldnn.matmul, b.mkldnn.conv)
    sums = b.cuda.matmul.allow_fp16_reduced_precision_reduction
    also = b.cuda.matmul.allow_bf16_reduced_precision_reduction
    whole = torch.get_float32_matmul_precision(), b.cudnn.allow_tf32
    return (*(kind.fp32_precision for kind in kinds), sums, also, *whole)


@pytest.fixture(params=["highest", "high", "medium"])
def chosen(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def test_inside_everything_is_exact_and_afterwards_as_before(chosen):
    before = settings()
    with full_precision():
        cuda, conv, *own, sums, also, whole, tf32 = settings()
        assert not {cuda, conv, *own} - {"ieee", "none"}
        assert (sums, also, whole, tf32) == (False, False, "highest", False)
        with full_precision():
            pass
        assert torch.get_float32_matmul_precision() == "highest"
    assert settings() == before
    with pytest.raises(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert settings() == before


def test_a_setting_of_one_backend_alone_comes_back():
    """torch refuses to read the setting for all backends then."""
    cuda = torch.backends.cuda.matmul
    before = cuda.fp32_precision
    cuda.fp32_precision = "tf32"
    try:
        with full_precision():
            assert cuda.fp32_precision == "ieee"
        assert cuda.fp32_precision == "tf32"
    finally:
        cuda.fp32_precision = before


class _OpenedError(Exception):
    pass


@pytest.mark.parametrize("name", MEASURING)
def test_every_function_that_measures_is_inside(name, monkeypatch):
    def opens(*_: object, **__: object) -> None:
        raise _OpenedError(torch.get_float32_matmul_precision())

    monkeypatch.setattr(loading, "find_source", opens)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(_OpenedError, match="highest"):
            getattr(headscope, name)("demo")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_certificate_is_the_same_whatever_was_set(chosen):
    """On CPUs with bfloat16 units, "medium" alone would fail it by far."""
    seen = []

    def watch(module: nn.Module, *_: object) -> None:
        seen.append(torch.get_float32_matmul_precision())

    loaded = headscope.wrap(tiny("bert"))
    loaded.model.register_forward_hook(watch)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert set(seen) == {"highest"}
    assert result.max_abs_pattern < 1e-5
