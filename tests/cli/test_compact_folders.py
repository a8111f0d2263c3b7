"""Commands on folders that headscope saved: compact, dense, and with a manifest that lies."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcomes import read_rows, refused
from safetensors.torch import load_file, save_file

import headscope

REMOVED = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]


@pytest.fixture(scope="session")
def compact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT without its first layer's heads and one more; read only."""
    folder = tmp_path_factory.mktemp("compact") / "model"
    return headscope.save(headscope.remove_heads(headscope.load(str(model)), REMOVED), folder)


def test_heads_are_named_as_they_were(run, compact, tmp_path):
    result = run("validate", compact, "--format", "json").json
    assert result["passed"] is True
    assert [check["calls"] for check in result["layers"]] == [1, 1]
    outcome = run("classify", compact, "--limit", 20, "--control", "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.stderr
    result = json.loads((tmp_path / "out" / "classify.json").read_text())
    assert [(h["layer"], h["head"]) for h in result["heads"]] == [(1, 0), (1, 1), (1, 3)]
    assert result["control"]["heads"] == 3
    rows = read_rows((tmp_path / "out" / "heads.csv").read_text())
    assert [row["head"] for row in rows] == ["0", "1", "3"]
    # An empty row, not a missing one.
    assert any(line.startswith("L0") for line in outcome.stdout.splitlines())
    ranked = run("rank", compact, "--no-fresh", "--format", "json").json
    assert [(h["layer"], h["head"]) for h in ranked["heads"]] == [(1, 0), (1, 1), (1, 3)]
    assert [layer["heads"] for layer in ranked["layers"]] == [[], [0, 1, 3]]
    # The dense folder measures the same numbers for heads of the layer that lost a head.
    dense = headscope.save_dense(headscope.load(str(compact)), tmp_path / "dense")
    found = run("classify", dense, "--limit", 20, "--format", "json").json["heads"]
    assert len(found) == 8
    entropies = {(h["layer"], h["head"]): h["entropy"] for h in found}
    for head in result["heads"]:
        whole = entropies[head["layer"], head["head"]]
        assert head["entropy"] == pytest.approx(whole, abs=1e-5)


def edited(entry: int | None = None, **changes: Any) -> Callable[[Path], Any]:
    """Change the manifest, or what it says of one module."""

    def damage(folder: Path) -> None:
        path = folder / "headscope.json"
        manifest = json.loads(path.read_text())
        (manifest if entry is None else manifest["attention"][entry]).update(changes)
        path.write_text(json.dumps(manifest))

    return damage


def cut_rows(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.key.weight"
    weights[name] = weights[name][:-1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def as_before(folder: Path, **more: Any) -> None:
    """Write config.json as headscope 0.1 did: plainly of its family."""
    path = folder / "config.json"
    found = json.loads(path.read_text())
    for key in ("base_model_type", "kept_heads", "heads_before"):
        del found[key]
    path.write_text(json.dumps({**found, "model_type": "bert", **more}))


ALL = [0, 1, 2, 3]
LIES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "not JSON": (
        lambda folder: (folder / "headscope.json").write_text("{"),
        ("headscope.json", "not valid JSON"),
    ),
    "of the future": (edited(schema=2), ("schema 1", "newer")),
    "no entries": (edited(attention=[]), ("does not say which heads",)),
    "heads in words": (edited(n_heads="four"), ("n_heads is 'four'",)),
    "other number of heads": (
        lambda folder: [
            edited(n_heads=3)(folder),
            edited(0, kept=[], removed=[0, 1, 2])(folder),
            edited(1, kept=[0, 1], removed=[2])(folder),
        ],
        ("3 heads a layer, config.json of 4",),
    ),
    "head out of range": (edited(1, kept=[0, 1, 7]), ("[0, 1, 7]", "below 4")),
    "head twice": (edited(1, kept=[0, 0, 1]), ("[0, 0, 1]",)),
    "head neither kept nor removed": (edited(1, removed=[]), ("entry 1", "4 heads")),
    "other heads kept": (edited(1, kept=[0], removed=[1, 2, 3]), ("8 rows", "weights have 24")),
    "too many modules": (
        lambda folder: edited(
            attention=[{"layers": [i], "kept": ALL, "removed": []} for i in range(3)]
        )(folder),
        ("attention module 2, but the model has 2",),
    ),
    "layers swapped": (
        lambda folder: [edited(0, layers=[1])(folder), edited(1, layers=[0])(folder)],
        ("layer 1 kept heads []",),
    ),
    "a row too few": (cut_rows, ("key.weight", "24 rows", "weights have 23")),
    "manifest lost, and no heads in the config": (
        lambda folder: [(folder / "headscope.json").unlink(), config(folder, kept_heads=None)],
        ("config.json", "kept_heads does not list the heads"),
    ),
    "manifest lost, and a plain family": (
        lambda folder: [(folder / "headscope.json").unlink(), as_before(folder)],
        ("wrong shape", "attention"),
    ),
    "a family of its own kind": (
        lambda folder: config(folder, base_model_type="headscope"),
        ("config.json names 'headscope' as base_model_type",),
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_manifest_that_lies(case, run, compact, tmp_path):
    damage, words = LIES[case]
    folder = shutil.copytree(compact, tmp_path / "broken")
    damage(folder)
    for command in (("validate", folder), ("classify", folder, "--limit", 2)):
        refused(run(*command), str(folder), *words)


@pytest.mark.parametrize(
    ("manifest", "before"), [(False, None), (True, {}), (False, {"0": ALL, "1": [2]})]
)
def test_folders_whose_config_names_the_heads(manifest, before, run, compact, tmp_path):
    """Saved by transformers 5, by headscope 0.1, and by transformers 4 with ``pruned_heads``."""
    folder = shutil.copytree(compact, tmp_path / "copy")
    if not manifest:
        (folder / "headscope.json").unlink()
    if before is not None:
        as_before(folder, **({"pruned_heads": before} if before else {}))
    found = run("validate", folder, "--format", "json").json["provenance"]["model"]
    assert found["removed_heads"] == [list(place) for place in REMOVED]
