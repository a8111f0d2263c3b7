"""A save replaces what the same command has saved, and nothing that somebody else put there."""

import json
from pathlib import Path

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.artefacts.saving import check_target, whole_folder
from headscope.core.errors import InputError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = headscope.load(str(tiny_bert(tmp_path / "model")))
    return headscope.save(headscope.remove_heads(model, [(0, 1)]), tmp_path / "small")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_command_replaces_its_own_folder(saved):
    manifest = json.loads((saved / "headscope.json").read_text())
    assert manifest["saved_by"] == "save"
    assert set(manifest["files"]) == {*content(saved)}
    before = content(saved)
    headscope.save(headscope.load(str(saved)), saved)
    assert set(content(saved)) == set(before)
    assert headscope.validate(str(saved)).passed


@pytest.mark.parametrize("command", ["prune", "shrink"])
def test_another_command_does_not(command, saved):
    before = content(saved)
    options = {"save": saved}
    options |= {"heads": "L0H1"} if command == "prune" else {"max_drop": 0.5}
    for refused in (
        lambda: check_target(saved, by=command),
        lambda: whole_folder(saved, by=command).__enter__(),
        lambda: getattr(headscope, command)("no model", **options),  # before it is opened
    ):
        with pytest.raises(InputError, match=f"a model that save saved, and {command} would"):
            refused()
    assert content(saved) == before


def test_what_was_added_is_not_deleted(saved):
    graph = saved / "onnx" / "model.onnx"
    graph.parent.mkdir()
    graph.write_bytes(b"exported")
    with pytest.raises(InputError, match=r"did not write \(onnx/model.onnx\) and would delete"):
        headscope.save(headscope.load(str(saved)), saved)
    assert graph.read_bytes() == b"exported"


def test_a_folder_of_an_older_version_may_be_replaced(saved):
    path = saved / "headscope.json"
    manifest = json.loads(path.read_text())
    del manifest["saved_by"], manifest["files"]
    path.write_text(json.dumps(manifest))
    check_target(saved, by="prune")
