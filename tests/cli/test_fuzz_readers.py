"""Files that hold anything: read, or refused in one sentence, soon; never a traceback.

``HEADSCOPE_FUZZ=20000 pytest -n 0 tests/cli/test_fuzz_readers.py`` looks longer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import VALUES, changed_bytes, changed_values, fuzzed, fuzzed_slowly
from safetensors.numpy import save_file

import headscope
from headscope.cli.app import main
from headscope.data.conllu import read_treebank
from headscope.data.corpus import SAMPLE, sample_corpus
from headscope.data.examples import read_labelled, read_pairs, read_texts, read_translations
from headscope.data.frequencies import find_frequencies
from headscope.errors import HeadscopeError
from headscope.pipeline.known_roles import find_roles, read_classification
from headscope.pipeline.resume import RunState
from headscope.pipeline.sections.previous import Previous
from headscope.pruning.head_list import parse_heads
from headscope.results import SECTIONS
from headscope.verdicts.reading import read_results

TREES = b"\n".join(SAMPLE.read_bytes().split(b"\n")[:60])
TABLES = {
    ".tsv": b"sentence\tlabel\nthe cat sat\t1\na dog ran\t0\n\nit was\t1\n",
    ".csv": b'sentence1,sentence2,score\n"the cat, sat",a dog,3.5\nit,"is ""big""",1\nhe,she,0\n',
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


def refused_well(error: HeadscopeError) -> None:
    """One sentence."""
    text = str(error)
    assert text
    assert "\n" not in text.strip()


def read(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except HeadscopeError as error:
        refused_well(error)
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@fuzzed
@given(changed_bytes(TREES))
def test_treebanks(folder: Path, data: bytes) -> None:
    path = folder / "x.conllu"
    path.write_bytes(data)
    read(lambda: list(read_treebank(path)))


@fuzzed
@given(st.data(), st.sampled_from(sorted(TABLES)), st.sampled_from(READERS))
def test_tables(folder: Path, data: Any, kind: str, reader: Callable[[Path], Any]) -> None:
    path = folder / f"x{kind}"
    path.write_bytes(data.draw(changed_bytes(TABLES[kind])))
    read(lambda: reader(path))


@fuzzed
@given(changed_bytes(b"the\t120\ncat\t3\n\nsat\t2.5\n"))
def test_frequencies(folder: Path, data: bytes) -> None:
    path = folder / "x.freq"
    path.write_bytes(data)
    read(lambda: find_frequencies(sample_corpus(), path, None))


@fuzzed
@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["L0H1", "L1H*", "cross:L0H0", "l0h2", "L9H9"])))
)
def test_heads(items: list[str]) -> None:
    found = read(lambda: parse_heads(",".join(items), HEADS))
    assert found is None or all(head in HEADS[stack, layer] for stack, layer, head in found)


def command(*words: str | Path) -> tuple[int, str]:
    """Run the command line here; whatever it does not catch fails the test."""
    before = sys.argv
    sys.argv = ["headscope", *map(str, words)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0), ""
    finally:
        sys.argv = before
    raise AssertionError("the command line ends by itself")


@fuzzed
@given(changed_bytes(CONFIG))
def test_config_files(folder: Path, data: bytes) -> None:
    path = folder / "x.toml"
    path.write_bytes(data)
    assert command("config", "show", "--config", path)[0] in (0, 1)


# --- results ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(folder: Path, model: Path) -> Path:
    """A folder of results of a tiny model, as files."""
    made = folder / "results"
    for name in ("classify", "rank"):
        assert command(name, model, "-o", made, *(("--limit", "8") * (name == "classify")))[0] == 0
    return made


@fuzzed
@given(st.data(), st.sampled_from(("classify", "rank")), st.booleans())
def test_result_files(folder: Path, results: Path, data: Any, name: str, raw: bool) -> None:
    whole = (results / f"{name}.json").read_bytes()
    broken = folder / "broken"
    broken.mkdir(exist_ok=True)
    if raw:
        spoilt = data.draw(changed_bytes(whole))
    else:
        spoilt = json.dumps(data.draw(changed_values(json.loads(whole)))).encode()
    path = broken / f"{name}.json"
    path.write_bytes(spoilt)
    assert command("diff", results / f"{name}.json", path)[0] in (0, 1, 3)
    path.unlink()


@fuzzed
@given(st.data(), st.booleans())
def test_roles(folder: Path, results: Path, loaded: Any, data: Any, raw: bool) -> None:
    whole = (results / "classify.json").read_bytes()
    path = folder / "roles.json"
    spoilt = (
        changed_bytes(whole)
        if raw
        else changed_values(json.loads(whole)).map(lambda values: json.dumps(values).encode())
    )
    path.write_bytes(data.draw(spoilt))
    found = read(lambda: read_classification(path))
    if found is not None:
        read(lambda: find_roles(loaded, found))


@pytest.fixture(scope="module")
def loaded(model: Path) -> Any:
    return headscope.load(str(model))


@fuzzed
@given(st.data(), st.booleans())
def test_reports_of_earlier_runs(folder: Path, results: Path, data: Any, raw: bool) -> None:
    document = {
        **{name: json.loads((results / f"{name}.json").read_text()) for name in ("rank",)},
        "schema": 2,
        "keys": {"rank": "key"},
        "digests": {"rank": "digest"},
        "files": {"rank": {"rank.csv": "0", "..": "0"}},
    }
    whole = json.dumps(document).encode()
    made = data.draw(changed_bytes(whole) if raw else changed_values(document))
    (folder / "report.json").write_bytes(made if raw else json.dumps(made).encode())
    before = Previous.read(folder)
    for name in SECTIONS:
        before.section(name, "key", "headscope report")
    read(lambda: read_results(folder))


# --- saved states -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def states(folder: Path, loaded: Any) -> dict[str, bytes]:
    """What runs saved."""
    headscope.classify(loaded, limit=8, state=folder / "state")
    return {"classify": (folder / "state").read_bytes()}


@fuzzed_slowly
@given(st.data())
def test_states(folder: Path, loaded: Any, states: dict[str, bytes], data: Any) -> None:
    path = folder / "bad-state"
    path.write_bytes(data.draw(changed_bytes(states["classify"])))
    read(lambda: headscope.classify(loaded, limit=8, state=path, resume=True))


@fuzzed_slowly
@given(st.data())
def test_states_that_were_forged(
    folder: Path, loaded: Any, states: dict[str, bytes], data: Any
) -> None:
    """Right checksums around wrong sums."""
    path = folder / "forged"
    path.write_bytes(states["classify"])
    from headscope.pipeline import resume

    meta, arrays = RunState[Any](path, {})._read(path)
    name = data.draw(st.sampled_from(sorted(arrays)))
    arrays[name] = data.draw(
        st.sampled_from(
            [
                np.zeros((0,)),
                np.zeros((3, 3)),
                np.array(7),
                arrays[name].astype(np.float32),
                np.concatenate([arrays[name].ravel()] * 2),
                np.frombuffer(json.dumps(data.draw(st.sampled_from(VALUES))).encode(), np.uint8),
            ]
        )
    )
    meta["passes"] = data.draw(
        st.sampled_from([meta["passes"], "{", "[]", '{"model": -1}', '{"model": "x"}', '{"x": 1}'])
    )
    meta["sha256"] = resume._digest(meta, arrays)
    save_file(arrays, path, metadata=meta)
    read(lambda: headscope.classify(loaded, limit=8, state=path, resume=True))
