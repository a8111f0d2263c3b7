"""Model folders that hold anything: opened or refused, soon, and without much memory.

``HEADSCOPE_FUZZ=20000 pytest -n 0 tests/cli/test_fuzz_models.py`` looks longer.
"""

import json
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import changed_bytes, changed_values, fuzzed_slowly

import headscope
from headscope.core.errors import HeadscopeError

pytestmark = pytest.mark.filterwarnings("ignore")

#: What a damaged folder of a few kilobytes may make the process ask for in addition.
_ROOM = 3 << 30
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
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a pruned one, of which each test changes a file."""
    top = tmp_path_factory.mktemp("fuzz")
    folder = shutil.copytree(model, top / "model")
    (folder / "modules.json").write_text(json.dumps(_POOLING))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 32}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    removed = headscope.remove_heads(headscope.load(str(model)), [(0, 1)])
    headscope.save(removed, top / "pruned")
    return top


def opened_with(path: Path, data: bytes) -> None:
    """Open a folder of which one file holds something else, measure a little, and mend it again."""
    content = path.read_bytes()
    said = ""
    path.write_bytes(data)
    folder = path.parent if path.parent.name != "1_Pooling" else path.parents[1]
    try:
        headscope.classify(headscope.load(str(folder)), limit=2)
    except HeadscopeError as error:
        said = str(error)
    finally:
        path.write_bytes(content)
    assert "\n" not in said.strip()


several = settings(fuzzed_slowly, max_examples=2 * fuzzed_slowly.max_examples)
#: Which files have their values changed, and which their bytes.
AS_VALUES = [
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/modules.json",
    "model/1_Pooling/config.json",
    "pruned/headscope.json",
    "pruned/config.json",
]
AS_BYTES = [
    "model/config.json",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/1_Pooling/config.json",
    "model/model.safetensors",
]


@several
@given(st.data(), st.sampled_from(AS_VALUES))
def test_values_of_files(folders, data, name):
    values = json.loads((folders / name).read_text())
    opened_with(folders / name, json.dumps(data.draw(changed_values(values))).encode())


@several
@given(st.data(), st.sampled_from(AS_BYTES))
def test_bytes_of_files(folders, data, name):
    path = folders / name
    opened_with(path, data.draw(changed_bytes(path.read_bytes())))


@fuzzed_slowly
@given(st.data())
def test_headers_of_weights(folders, data):
    """Offsets, shapes and types that no tensor has, in a header of any length."""
    path = folders / "model" / "model.safetensors"
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    rest = content[8 + size :]
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(header)))
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        values = [[], [0], [2**62], [-1], [2**63, 2**63], [1e30], "F64", "BOOL", "X", None, [5, 1]]
        header[name][field] = data.draw(st.sampled_from(values))
    else:
        header = data.draw(changed_values(header))
    text = json.dumps(header).encode()
    lengths = st.sampled_from([len(text), 0, 1, 2**63, 2**64 - 1, len(text) - 1, 10**8])
    length = data.draw(st.one_of(st.just(len(text)), lengths))
    opened_with(path, struct.pack("<Q", length) + text + rest)
