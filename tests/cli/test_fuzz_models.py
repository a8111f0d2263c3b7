"""Model folders that hold anything: opened or refused, soon, and without much memory.

``HEADSCOPE_FUZZ=20000 pytest -n 0 tests/cli/test_fuzz_models.py`` looks longer.
"""

from __future__ import annotations

import json
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import VALUES, changed_bytes, changed_values, fuzzed_slowly

import headscope
from headscope.errors import HeadscopeError

pytestmark = pytest.mark.filterwarnings("ignore")

#: What a damaged folder of a few kilobytes may make the process ask for in addition.
_ROOM = 3 << 30
_SIZES = [-1, 0, 1, 3, 5, 7, 63, 2**31, 10**9, 10**18, 10**30, 0.5, "8", None, True, [8], {"a": 8}]
_POOLING = [
    {"type": "sentence_transformers.models.Transformer", "path": "", "idx": 0, "name": "0"},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling", "idx": 1, "name": "1"},
]


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    """Refuse the process more memory than a damaged folder may cost."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def copy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of which each test changes a file."""
    folder = shutil.copytree(model, tmp_path_factory.mktemp("fuzz") / "model")
    (folder / "modules.json").write_text(json.dumps(_POOLING))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    removed = headscope.remove_heads(headscope.load(str(model)), [(0, 1)])
    headscope.save(removed, folder.parent / "pruned")
    return folder


def opened(folder: Path) -> None:
    """Open a model and measure a little with it."""
    said = ""
    try:
        loaded = headscope.load(str(folder))
        headscope.classify(loaded, limit=2)
    except HeadscopeError as error:
        said = str(error)
    assert "\n" not in said.strip()


def spoilt(folder: Path, name: str, data: bytes) -> None:
    """Open a folder of which one file holds something else, and mend it again."""
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        opened(folder)
    finally:
        path.write_bytes(whole)


def as_json(values: Any) -> bytes:
    return json.dumps(values).encode()


@fuzzed_slowly
@given(st.data())
def test_sizes_in_config(copy: Path, data: Any) -> None:
    config = json.loads((copy / "config.json").read_text())
    names = [key for key, value in config.items() if isinstance(value, int | float)]
    for _ in range(data.draw(st.integers(1, 2))):
        config[data.draw(st.sampled_from(names))] = data.draw(st.sampled_from(_SIZES))
    spoilt(copy, "config.json", as_json(config))


@fuzzed_slowly
@given(st.data())
def test_values_in_config(copy: Path, data: Any) -> None:
    config = json.loads((copy / "config.json").read_text())
    family = data.draw(
        st.sampled_from(
            ["bert", "bart", "t5", "albert", "deberta-v2", "marian", "gpt2", "xlm", "modernbert"]
        )
    )
    config["model_type"] = data.draw(st.sampled_from([config["model_type"], family]))
    extra = data.draw(st.sampled_from(["pruned_heads", "auto_map", "architectures", "id2label"]))
    config[extra] = data.draw(st.sampled_from(VALUES))
    spoilt(copy, "config.json", as_json(data.draw(changed_values(config))))


@fuzzed_slowly
@given(st.data(), st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json"]))
def test_bytes_of_files(copy: Path, data: Any, name: str) -> None:
    spoilt(copy, name, data.draw(changed_bytes((copy / name).read_bytes())))


@fuzzed_slowly
@given(st.data(), st.sampled_from(["tokenizer.json", "tokenizer_config.json", "modules.json"]))
def test_values_of_files(copy: Path, data: Any, name: str) -> None:
    values = json.loads((copy / name).read_text())
    spoilt(copy, name, as_json(data.draw(changed_values(values))))


@fuzzed_slowly
@given(st.data(), st.booleans())
def test_pooling(copy: Path, data: Any, raw: bool) -> None:
    whole = {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 32}
    made = changed_bytes(as_json(whole)) if raw else changed_values(whole).map(as_json)
    spoilt(copy, "1_Pooling/config.json", data.draw(made))


@fuzzed_slowly
@given(st.data(), st.sampled_from(["headscope.json", "config.json"]))
def test_manifests_of_pruned_models(copy: Path, data: Any, name: str) -> None:
    folder = copy.parent / "pruned"
    values = json.loads((folder / name).read_text())
    spoilt(folder, name, as_json(data.draw(changed_values(values))))


@fuzzed_slowly
@given(st.data())
def test_headers_of_weights(copy: Path, data: Any) -> None:
    """Offsets, shapes and types that no tensor has, in a header of any length."""
    whole = (copy / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header, rest = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(header)))
        part = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        values = [[], [0], [2**62], [-1], [2**63, 2**63], [1e30], "F64", "BOOL", "X", None, [5, 1]]
        header[name][part] = data.draw(st.sampled_from(values))
    else:
        header = data.draw(changed_values(header))
    text = as_json(header)
    lengths = st.sampled_from([len(text), 0, 1, 2**63, 2**64 - 1, len(text) - 1, 10**8])
    length = data.draw(st.one_of(st.just(len(text)), lengths))
    spoilt(copy, "model.safetensors", struct.pack("<Q", length) + text + rest)


@fuzzed_slowly
@given(st.data())
def test_bytes_of_weights(copy: Path, data: Any) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    spoilt(copy, "model.safetensors", data.draw(changed_bytes(whole)))
