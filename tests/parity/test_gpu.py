"""The same numbers on a real accelerator; without one, everything here is skipped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import FAMILIES, tiny

import headscope
from headscope.models.certificate import validate_model

DEVICES = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
}


@pytest.fixture(params=DEVICES)
def gpu(request: pytest.FixtureRequest) -> str:
    if not DEVICES[request.param]():
        pytest.skip(f"torch sees no device {request.param} here")
    return str(request.param)


each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
pytestmark = pytest.mark.gpu


@each_dtype
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_certified(family, dtype, gpu):
    result = validate_model(headscope.wrap(tiny(family, dtype).to(gpu)))
    assert result.passed, result.reasons


@each_dtype
def test_the_demo_is_certified_with_reduced_precision_asked_for(dtype, gpu):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        result = headscope.validate("demo", device=gpu, dtype=dtype)
    finally:
        torch.set_float32_matmul_precision(before)
    assert result.passed, result.reasons


def test_classify_counts_what_a_cpu_counts(gpu):
    """Up to ties within a rounding: one argmax in a thousand queries may fall the other way."""
    run: Callable[..., Any] = headscope.classify
    here, there = (run("demo", device=device, limit=120) for device in ("cpu", gpu))
    assert [head.roles for head in there.heads] == [head.roles for head in here.heads]
    for ours, theirs in zip(there.heads, here.heads, strict=True):
        assert ours.positional.rates == pytest.approx(theirs.positional.rates, abs=1e-3)
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-4)


@pytest.mark.parametrize("section", ["rank", "spectrum", "depth", "flow", "linear", "symmetric"])
def test_the_other_sections_run(section, gpu):
    """With the little text that each of them needs."""
    less = {
        "rank": {},
        "spectrum": {"length": 32, "sequences": 4},
        "depth": {"length": 32, "sequences": 4},
        "flow": {"limit": 24, "control": False},
        "linear": {"sentences": 8},
        "symmetric": {"sentences": 8},
    }
    result = getattr(headscope, section)("demo", device=gpu, **less[section])
    assert result.validation.passed
    assert result.provenance["device"].startswith(gpu)
