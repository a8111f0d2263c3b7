"""Files that hold anything: read, or refused in one sentence, soon; never a traceback.

``HEADSCOPE_FUZZ=20000 pytest -n 0 tests/cli/test_fuzz_readers.py`` looks longer.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import changed_bytes, changed_values, fuzzed, fuzzed_slowly
from outcomes import Command

import headscope
from headscope.analyses.classify.known_roles import find_roles, read_classification
from headscope.core.errors import HeadscopeError
from headscope.data.corpus import SAMPLE
from headscope.data.examples import read_labelled, read_pairs, read_texts, read_translations
from headscope.data.treebanks import read_treebank
from headscope.tasks.units import parse_heads

TREES = b"\n".join(SAMPLE.read_bytes().split(b"\n")[:60])
TABLES = {
    ".tsv": b"sentence\tlabel\nthe cat sat\t1\na dog ran\t0\n\nit was\t1\n",
    ".csv": b'sentence1,sentence2,score\n"the cat, sat",a dog,3.5\nit,"is ""big""",1\nhe,she,0\n',
    ".json": b'[{"text": "the cat", "label": 1},\n {"text": "x", "label": 0}]\n',
    ".jsonl": b'{"source": "the cat", "target": "a cat"}\n{"source": "x", "target": "y", "n": 1}\n',
}
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

READERS: list[Callable[[Path], Any]] = [read_labelled, read_pairs, read_translations, read_texts]
CONFIG = b"""[classify]
limit = 3
language = "en"
[classify.thresholds]
positional = 0.8
q = 0.05
[prune]
method = ["fisher", "random"]
fraction = [0.5]
export = ["onnx", "graph"]
[rank]
share_projections = "8,16"
[limits]
max_without_role = 0.5
min_self = 1
fail_on = ["role-lost", "metric-drop=2%"]
insights = {1 = "holds"}
"""
HEADS = {("encoder", 0): (0, 1, 2), ("encoder", 1): (5,), ("cross", 0): ()}


def read(call: Callable[[], Any]) -> Any:
    """What a reader returns, or None where it refuses in one sentence."""
    try:
        return call()
    except HeadscopeError as error:
        said = str(error).strip()
    assert len(said.splitlines()) == 1
    return None


def spoilt(data: st.DataObject, content: bytes) -> bytes:
    """A JSON document with bytes or values changed."""
    if data.draw(st.booleans()):
        return data.draw(changed_bytes(content))
    return json.dumps(data.draw(changed_values(json.loads(content)))).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@fuzzed
@given(changed_bytes(TREES))
def test_treebanks(folder, data):
    path = folder / "x.conllu"
    path.write_bytes(data)
    read(lambda: list(read_treebank(path)))


@fuzzed
@given(st.data(), st.sampled_from(sorted(TABLES)), st.sampled_from(READERS))
def test_tables(folder, data, kind, reader):
    path = folder / f"x{kind}"
    path.write_bytes(data.draw(changed_bytes(TABLES[kind])))
    read(lambda: reader(path))


@fuzzed
@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from("LHlh019*:, crosden\t\0\u0663\ud800")).map("".join),
            st.sampled_from(["L0H1", "L1H*", "cross:L0H0", "l0h2", "L9H9"]),
        )
    )
)
def test_heads(items):
    heads = read(lambda: parse_heads(",".join(items), HEADS))
    assert heads is None or all(head in HEADS[stack, layer] for stack, layer, head in heads)


@fuzzed
@given(changed_bytes(CONFIG))
def test_config_files(folder, run, data):
    path = folder / "x.toml"
    path.write_bytes(data)
    assert run("config", "show", "--config", path).code in (0, 1)


@pytest.fixture(scope="module")
def results(folder: Path, model: Path, run: Command) -> Path:
    """A folder of results of a tiny model, as files."""
    for words in (("classify", model, "--limit", 8), ("rank", model)):
        assert run(*words, "-o", folder / "results").code == 0
    return folder / "results"


@fuzzed
@given(st.data(), st.sampled_from(("classify", "rank")))
def test_result_files(folder, results, run, data, name):
    path = folder / "broken" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(spoilt(data, (results / f"{name}.json").read_bytes()))
    assert run("diff", results / f"{name}.json", path).code in (0, 1, 3)
    path.unlink()


@fuzzed
@given(st.data())
def test_roles(folder, results, loaded, data):
    path = folder / "roles.json"
    path.write_bytes(spoilt(data, (results / "classify.json").read_bytes()))
    classification = read(lambda: read_classification(path))
    if classification is not None:
        read(lambda: find_roles(loaded, classification))


@pytest.fixture(scope="module")
def loaded(model: Path) -> Any:
    return headscope.load(str(model))


@pytest.fixture(scope="module")
def state(folder: Path, loaded: Any) -> bytes:
    """What a run saved."""
    headscope.classify(loaded, limit=8, state=folder / "state")
    return (folder / "state").read_bytes()


@fuzzed_slowly
@given(st.data())
def test_states(folder, loaded, state, data):
    path = folder / "bad-state"
    path.write_bytes(data.draw(changed_bytes(state)))
    read(lambda: headscope.classify(loaded, limit=8, state=path, resume=True))
