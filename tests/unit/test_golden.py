"""The golden record's tool: what it calls a change, what it takes for rounding or for one run's."""

import copy
from typing import Any

import pytest
from golden.__main__ import read_record
from golden.cases import COMMANDS, TINY, all_cases
from golden.compare import changes, report
from golden.read import read

from headscope.commands import COMMANDS as TABLE

TEXT = "Of 8 heads, 3 are positional.\nL0H2  0.912  43% of 8,588 tokens; p 1e-05\n"
STEP = {
    "command": "rank bert",
    "exit": 0,
    "stdout": TEXT,
    "files": {"out/rank.json": {"heads": [{"p": 1e-4, "stable": 3.1, "num": 8}], "stack": None}},
}
FIELD = ("files", "out/rank.json", "heads", 0)


def replaced(*words: str) -> tuple[tuple[str], str]:
    text = TEXT
    for old, new in zip(words[::2], words[1::2], strict=True):
        text = text.replace(old, new)
    return ("stdout",), text


@pytest.mark.parametrize(
    ("path", "new", "expected"),
    [
        (*replaced("positional", "syntactic"), 1),
        (*replaced("8,588", "8,589"), 1),
        (*replaced("L0H2", "L0H3"), 1),
        (*replaced("L0H2  0", "L0H2   0"), 1),
        (*replaced("0.912", "0.915"), 1),
        (*replaced("0.912", "0.913", "43%", "44%"), 0),
        (("exit",), 1, 1),
        (("files",), {}, 1),
        ((*FIELD, "stable"), 3.11, 1),
        ((*FIELD, "stable"), 3.1001, 0),
        ((*FIELD, "p"), 1.01e-4, 0),
        ((*FIELD, "num"), 7, 1),
        ((*FIELD, "stable"), None, 1),
        (("files", "out/rank.json", "heads"), [], 1),
    ],
)
def test_changes_are_named_and_roundings_are_not(path, new, expected):
    other = copy.deepcopy(STEP)
    container: Any = other
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = new
    said = [*changes([STEP], [other])]
    assert len(said) == expected
    if expected:
        assert str(path[-1]) in said[0][0]
        assert any("+" in line for line in report({"bert/rank": said}))


def test_what_is_of_one_run_is_masked():
    text = b"Made 2026-11-22T10:00:00+00:00 in /tmp/x/out, about 12 s"
    masked = read("README.md", text, {"/tmp/x": "<desk>"})
    assert masked == "Made <date> in <desk>/out, about <time>"
    table = read("a.csv", b"head,seconds,value\nL0H1,3.2,0.12345678\n", {})
    assert table == [{"head": "L0H1", "seconds": "<masked>", "value": 0.123457}]
    speed = read("a.json", b'{"speed": {"ms": {"value": 3.2}, "size": 8}, "value": 0.12345678}', {})
    assert speed == {"speed": {"ms": {"value": "<masked>"}, "size": 8}, "value": 0.123457}


def test_every_command_has_cases_and_those_without_shared_models_a_record():
    cases = [*all_cases()]
    assert len({case.id for case in cases}) == len(cases) >= 200
    assert set(TABLE) - {"config"} == set(COMMANDS)
    own_cases = [case for case in cases if case.model in (*TINY, "wrong", "words")]
    records = {model: read_record(model) for model in {case.model for case in own_cases}}
    assert [case.id for case in own_cases if case.name not in records[case.model]] == []
