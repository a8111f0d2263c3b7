"""Every command finds on a second device, simulated or real, what it finds on a CPU."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import frozen
import pytest
import torch
from families import FAMILIES, tiny
from pandas.testing import assert_frame_equal
from simulated_device import NAME, Simulated, simulated_device
from tiny_models import tiny_bert

import headscope
from headscope.core import widest
from headscope.core.errors import InputError
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.devices import pick_device, widest_dtype

SENTENCES = ["the big house", "she saw a dog on the mat and ran", "he sat", "it is a cat in"]

Runs = dict[str, Callable[..., Any]]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"), heads=2)


def with_words(*words: str) -> list[str]:
    """Write each sentence with each of some words behind it."""
    return [f"{sentence} {word}" for sentence, word in itertools.product(SENTENCES, words)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(with_words("a", "he", "red")))
    return path


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Examples to train and to test on; none is in both."""
    folder = tmp_path_factory.mktemp("labelled")
    train = with_words("a", "he", "of", "red", "saw")
    test = [f"{sentence} to" for sentence in train]
    for name, sentences in (("train", train), ("test", test)):
        rows = [f"{sentence}\t{i % 2}" for i, sentence in enumerate(sentences)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return folder / "train.tsv", folder / "test.tsv"


@pytest.fixture
def float64() -> bool:
    return False


@pytest.fixture
def device(float64: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    if not float64:
        monkeypatch.setattr(widest, "WITHOUT_FLOAT64", {NAME})
    with simulated_device(monkeypatch, float64=float64) as simulated:
        yield simulated


@pytest.fixture(scope="module")
def calls(bert: Path, text: Path, labelled: tuple[Path, Path]) -> Runs:
    of_text = {"length": 8, "sequences": 1}
    ablated = {"ablate": True, "data": text, "ablate_limit": 2}
    short = {"limit": 3, "calibration_limit": 2, "fractions": [0.5]}
    once = {"sizes": [8], "seeds": 1, "spread_seeds": 1, "steps": 2, "search": False}
    few = {"train_limit": 16, "test_limit": 12, "variants": ["layernorm"], "random": []}
    return {
        "validate": partial(headscope.validate, bert),
        "classify": partial(headscope.classify, bert, limit=2, **ablated),
        "rank": partial(headscope.rank, bert, text=text),
        "spectrum": partial(headscope.spectrum, bert, text, **of_text),
        "efficient": partial(headscope.spectrum, bert, text, efficient=True, **of_text),
        "depth": partial(headscope.depth, bert, text, control=False, **of_text),
        "linear": partial(headscope.linear, bert, text, sentences=1, control=False),
        "symmetric": partial(headscope.symmetric, bert, text, sentences=1),
        "attribute": partial(headscope.attribute, bert, "the cat sat", "a dog ran"),
        "explain": partial(headscope.explain, bert, "the cat sat"),
        "prune": partial(headscope.prune, bert, methods=["fisher"], repairs=["none"], **short),
        "transfer": partial(headscope.transfer, bert, *labelled, **once, **few),
    }


#: Those that take a second or more each once a week: a simulated device is slow.
#: (Not flow: its pad_sequence makes a tensor in C++, where this device is ordinary memory.)
_SLOW = ("efficient", "linear", "symmetric", "prune")
NAMES: tuple[str, ...] = (
    "validate",
    "rank",
    "spectrum",
    "depth",
    "explain",
    "attribute",
    "transfer",
)
if frozen.recompute:
    NAMES += _SLOW


@pytest.mark.parametrize("name", NAMES)
def test_a_command_runs_on_a_device_without_float64(name, calls, device):
    """Which is the hardest: nothing of another device, and nothing of float64."""
    result = calls[name](device=NAME)
    assert device.operations > 100
    assert result.provenance["device"] == f"{NAME}:0"
    assert result.provenance["dtype"] == "float32"


def test_classify_finds_what_it_finds_on_a_cpu(calls, device):
    """All but the last digits of its sums."""
    on_device = calls["classify"](device=NAME)
    on_cpu = calls["classify"](device="cpu")
    assert on_device.provenance["device"] != on_cpu.provenance["device"]
    for head, cpu_head in zip(on_device.heads, on_cpu.heads, strict=True):
        assert head.roles == cpu_head.roles
        assert head.positional.rates == cpu_head.positional.rates
        assert head.entropy == pytest.approx(cpu_head.entropy, rel=1e-5)


@pytest.mark.parametrize("float64", [True])
def test_with_float64_the_sums_are_the_same(bert, device):
    on_device = headscope.classify(bert, limit=3, device=NAME)
    on_cpu = headscope.classify(bert, limit=3, device="cpu")
    assert device.operations > 100
    # Equal but for the last digits: views that are copied there are strided here, and without
    # vector units a sum over either goes in another order.
    assert_frame_equal(on_device.to_frame(), on_cpu.to_frame(), rtol=1e-6, atol=1e-9)


def there(patch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    patch.setattr(torch.cuda, "device_count", lambda: cuda)
    patch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_devices_and_types_that_are_there_are_named(monkeypatch):
    there(monkeypatch, cuda=2)
    assert str(pick_device("auto")) == "cuda"
    assert str(pick_device("cuda:1")) == "cuda:1"
    for device in ("cuda:2", "cuda:-1", "cuda:x", "cuda:", "cpu:00", "mps", "tpu", ""):
        said = f"^device {device} is not available: .* sees cpu and cuda here"
        with pytest.raises(InputError, match=said):
            headscope.load("demo", device=device)
    there(monkeypatch, mps=True)  # an Apple GPU is taken only when asked for
    assert (str(pick_device("auto")), str(pick_device("mps"))) == ("cpu", "mps")
    assert (widest_dtype("mps"), widest_dtype("cpu")) == ("float32", "float64")
    with pytest.raises(InputError, match="dtype float64 is not available on mps; give float32"):
        headscope.load("demo", device="mps", dtype="float64")
    with pytest.raises(InputError, match="dtype int8 is not available on cpu; give float64"):
        headscope.load("demo", device="cpu", dtype="int8")


DEVICES = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}


@pytest.fixture(params=DEVICES)
def gpu(request: pytest.FixtureRequest) -> str:
    if not DEVICES[request.param]():
        pytest.skip(f"torch sees no device {request.param} here")
    return str(request.param)


each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_certified(family, dtype, gpu):
    result = validate_model(headscope.wrap(tiny(family, dtype).to(gpu)))
    assert result.passed, result.reasons


@pytest.mark.gpu
@each_dtype
def test_the_demo_is_certified_with_reduced_precision_asked_for(dtype, gpu):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        result = headscope.validate("demo", device=gpu, dtype=dtype)
    finally:
        torch.set_float32_matmul_precision(before)
    assert result.passed, result.reasons


@pytest.mark.gpu
def test_classify_counts_what_a_cpu_counts(gpu):
    """Up to ties within a rounding: one argmax in a thousand queries may fall the other way."""
    on_cpu = headscope.classify("demo", device="cpu", limit=120)
    on_gpu = headscope.classify("demo", device=gpu, limit=120)
    for gpu_head, cpu_head in zip(on_gpu.heads, on_cpu.heads, strict=True):
        assert gpu_head.roles == cpu_head.roles
        assert gpu_head.positional.rates == pytest.approx(cpu_head.positional.rates, abs=1e-3)
        assert gpu_head.entropy == pytest.approx(cpu_head.entropy, abs=1e-4)
