"""Bad input: one clear sentence on stderr, exit 1 (or typer's 2), and nothing half-written."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import refused
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY

import headscope

Damage = Callable[[Path], Any]
QUERY_WEIGHT = "encoder.layer.0.attention.self.query.weight"


def without(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, data: str | bytes) -> Damage:
    encoded = data if isinstance(data, bytes) else data.encode()
    return lambda folder: (folder / name).write_bytes(encoded)


def config(name: str = "config.json", **changes: Any) -> Damage:
    """Change values of a JSON file; those that become None are taken away."""

    def damage(folder: Path) -> None:
        values = {**json.loads((folder / name).read_text()), **changes}
        gone = {key for key, value in changes.items() if value is None}
        remaining = {key: value for key, value in values.items() if key not in gone}
        (folder / name).write_text(json.dumps(remaining))

    return damage


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pickled_objects(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "path": Path("x")}, folder / "pytorch_model.bin")


def sharded(index: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def slow_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')


def small_vocabulary(folder: Path) -> None:
    name = "embeddings.word_embeddings.weight"
    tensors(lambda weights: weights.update({name: weights[name][:20].clone()}))(folder)
    config(vocab_size=20)(folder)


def code_of_a_tokenizer(folder: Path) -> None:
    changes = {"auto_map": {"AutoTokenizer": ["code.T", "code.T"]}, "tokenizer_class": "T"}
    config("tokenizer_config.json", **changes)(folder)
    (folder / "code.py").write_text("raise BaseException('remote code ran')\n")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
WEIGHTS = "model.safetensors"
SHARD = "model-00001-of-00002.safetensors"
BROKEN_MODELS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "no config": (without("config.json"), ("config.json", "save_pretrained")),
    "broken config": (write("config.json", '{"a":\n'), ("config.json", "not valid JSON", "line")),
    "config not UTF-8": (write("config.json", b'{"a": "\xe9"}'), ("config.json", "UTF-8")),
    "unknown model_type": (config(model_type="megaformer"), ("megaformer",)),
    "config does not fit together": (config(num_attention_heads=5), ("bert", "5")),
    "config value of the wrong kind": (config(hidden_size="wide"), ("hidden_size", "config.json")),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), ("tokenizer.json",)),
    "broken tokenizer": (write("tokenizer.json", '{"a":'), ("tokenizer", "cannot be read")),
    "slow tokenizer": (slow_tokenizer, ("no fast tokenizer", "tokenizer.json")),
    "code of a tokenizer": (code_of_a_tokenizer, ("remote code",)),
    "ids beyond the vocabulary": (small_vocabulary, ("token id", "20 rows")),
    "no weights": (without(WEIGHTS), ("no weights", WEIGHTS)),
    "truncated": (cut, (WEIGHTS, "cut short", "download")),
    "git-lfs pointer": (write(WEIGHTS, POINTER), (WEIGHTS, "pointer of Git LFS", "git lfs pull")),
    "tokenizer in git lfs": (write("tokenizer.json", POINTER), ("tokenizer.json", "git lfs pull")),
    "no tensor": (tensors(lambda weights: weights.clear()), (WEIGHTS, "no tensor")),
    "infinity": (
        tensors(lambda weights: weights[QUERY_WEIGHT].fill_(float("inf"))),
        ("not finite", QUERY_WEIGHT),
    ),
    "missing tensor": (tensors(lambda weights: weights.pop(QUERY_WEIGHT)), ("lacks 1", "query")),
    "missing layer": (config(num_hidden_layers=3), ("lacks 16", "encoder.layer.2")),
    "wrong shape": (
        tensors(lambda weights: weights.update({QUERY_WEIGHT: torch.zeros(3, 3)})),
        ("wrong shape", QUERY_WEIGHT),
    ),
    "missing shard": (sharded({"weight_map": {"a": SHARD}}), ("index.json", SHARD, "download")),
    "index with a number": (sharded({"weight_map": {"a": 1}}), ("index.json",)),
    "pickled objects": (pickled_objects, ("pytorch_model.bin", "more than tensors", "safetensors")),
    "remote code": (
        config(model_type="own", auto_map={"AutoModel": "x.X"}),
        ("auto_map", "never runs remote code"),
    ),
}


@pytest.mark.parametrize("case", BROKEN_MODELS)
def test_broken_models(case, run, copy, tmp_path):
    damage, words = BROKEN_MODELS[case]
    damage(copy)
    out = tmp_path / "out"
    refused(run("classify", copy, "--limit", 3, "-o", out), str(copy), *words)
    assert not out.exists()
    if case == "no tokenizer":  # which nothing needs here
        assert run("rank", copy, "--no-fresh").code == 0
        refused(run("depth", copy, "--length", 32), "tokenizer")
    if case == "ids beyond the vocabulary":
        refused(run("classify", copy, "--limit", 3, "--no-validate"), "token id", "20 rows")


MANIFEST = "headscope.json"
ALL = [0, 1, 2, 3]
REMOVED = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2)]
KEY = "encoder.layer.1.attention.self.key.weight"


@pytest.fixture(scope="module")
def compact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT without its first layer's heads and one more; read only."""
    folder = tmp_path_factory.mktemp("compact") / "model"
    return headscope.save(headscope.remove_heads(headscope.load(str(model)), REMOVED), folder)


def entry(number: int, **changes: Any) -> Damage:
    """Change what the manifest says of one module."""

    def damage(folder: Path) -> None:
        entries = json.loads((folder / MANIFEST).read_text())["attention"]
        entries[number].update(changes)
        config(MANIFEST, attention=entries)(folder)

    return damage


#: config.json as headscope 0.1 wrote it: plainly of its family.
before = partial(
    config, model_type="bert", base_model_type=None, kept_heads=None, heads_before=None
)
THREE = [{"layers": [i], "kept": ALL, "removed": []} for i in range(3)]
LIES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "not JSON": (write(MANIFEST, "{"), (MANIFEST, "not valid JSON")),
    "of the future": (config(MANIFEST, schema=2), ("schema 1", "newer")),
    "no entries": (config(MANIFEST, attention=[]), ("does not say which heads",)),
    "heads in words": (config(MANIFEST, n_heads="four"), ("'four' is not a number of heads",)),
    "other number of heads": (
        both(
            config(MANIFEST, n_heads=3),
            entry(0, kept=[], removed=[0, 1, 2]),
            entry(1, kept=[0, 1], removed=[2]),
        ),
        ("3 heads a layer, config.json of 4",),
    ),
    "head out of range": (entry(1, kept=[0, 1, 7]), ("[0, 1, 7]", "below 4")),
    "head twice": (entry(1, kept=[0, 0, 1]), ("[0, 0, 1]",)),
    "other heads kept": (entry(1, kept=[0], removed=[1, 2, 3]), ("wrong shape", "layer.1")),
    "too many modules": (config(MANIFEST, attention=THREE), ("names no module of its own",)),
    "a row too few": (
        tensors(lambda weights: weights.update({KEY: weights[KEY][:-1].clone()})),
        ("wrong shape", "key.weight"),
    ),
    "manifest lost, and no heads in the config": (
        both(without(MANIFEST), config(kept_heads=None)),
        ("config.json", "kept_heads does not list the heads"),
    ),
    "manifest lost, and a plain family": (
        both(without(MANIFEST), before()),
        ("wrong shape", "attention"),
    ),
    "a family of its own kind": (
        config(base_model_type="headscope"),
        ("config.json names 'headscope' as base_model_type",),
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_manifest_that_lies(case, run, compact, tmp_path):
    damage, words = LIES[case]
    folder = shutil.copytree(compact, tmp_path / "broken")
    damage(folder)
    refused(run("validate", folder), str(folder), *words)


@pytest.mark.parametrize(
    "older",
    [
        without(MANIFEST),
        before(),
        both(without(MANIFEST), before(pruned_heads={"0": ALL, "1": [2]})),
    ],
    ids=["transformers 5", "headscope 0.1", "transformers 4"],
)
def test_folders_whose_config_names_the_heads(older, run, compact, tmp_path):
    folder = shutil.copytree(compact, tmp_path / "copy")
    older(folder)
    described = run("validate", folder, "--format", "json").json["provenance"]["model"]
    assert described["removed_heads"] == [list(head) for head in REMOVED]


@pytest.mark.parametrize(
    "name", ["no/such/folder", "~nobody-of-this-name/model", "my--model", "y" * 300]
)
def test_no_such_model(run, name):
    refused(run("validate", name), name, *(["hub id"] if name.startswith("no/") else []))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_such_device(run, model):
    refused(run("validate", model, "--device", "cuda"), "cuda", "cpu")


def row(number: object, form: str, head: object, relation: str = "dep", columns: int = 10) -> str:
    cells = [str(number), form, "_", "_", "_", "_", str(head), relation, "_", "_"]
    return "\t".join(cells[:columns])


ROOT = row(1, "cat", 0, "root")
TREEBANKS: dict[str, tuple[list[str], int, str]] = {
    "cycle": ([row(1, "a", 2), row(2, "b", 1), row(3, "c", 0)], 2, "cycle: 1 -> 2 -> 1"),
    "nine columns": ([ROOT, row(2, "a", 1, columns=9)], 3, "9 columns"),
    "head too large": ([ROOT, row(2, "a", 3)], 3, "head 3 is out of range 0..2"),
    "late, beyond the limit": ([ROOT, "", ROOT, "", ROOT, "", row(1, "cat", 5)], 8, "out of range"),
}


@pytest.mark.parametrize("case", TREEBANKS)
def test_bad_treebanks(case, run, model, tmp_path):
    rows, line, words = TREEBANKS[case]
    path = tmp_path / "bad.conllu"
    out = tmp_path / "out"
    path.write_text("\n".join(["# a comment", *rows, "", ""]))
    call = ("classify", model, "--treebank", path, "--limit", 2, "-o", out)
    refused(run(*call), f"{path}, line {line}: ", words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "data", "words"),
    [
        ("--text", b"\n  \n\t\n", "holds no sentence"),
        ("--text", "cat\n".encode("utf-16-le"), "UTF-16 without a byte order mark"),
        ("--text", b"the cat sat " * 30 + b"\n", "None of the 1 sentences"),
        ("--treebank", b"# newdoc\n\n# text = none\n", "no sentence"),
        ("--treebank", b"# c\n\n# caf\xe9\n", "line 3: not UTF-8"),
        ("--treebank", b"# a comment\nThe cat sat on the mat.\n", "as text"),
        ("--frequencies", b"the\t5\n\ncat\tmany\n", "line 3: "),
        ("--frequencies", b"the\t5\nthe\tDET\t5\n", "line 2: "),
    ],
)
def test_unreadable_files(option, data, words, run, model, tmp_path):
    """In a folder of results, what was there stays."""
    path = tmp_path / "bad.data"
    path.write_bytes(data)
    refused(run("classify", model, option, path, "--limit", 2, "-o", tmp_path), str(path), words)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("option", ["--text", "--treebank", "--frequencies", "--config"])
def test_what_is_no_file(option, run, model, tmp_path):
    missing = tmp_path / "missing"
    refused(run("classify", model, option, missing, "--limit", 2), str(missing))
    refused(run("classify", model, option, tmp_path, "--limit", 2), str(tmp_path), "directory")
    if option == "--config":
        return
    lines = {"--text": "the cat\n", "--treebank": f"{ROOT}\n\n", "--frequencies": "the\t3\n"}
    reading, writing = os.pipe()  # which cannot be read twice
    os.write(writing, lines[option].encode())
    os.close(writing)
    try:
        outcome = run("classify", model, option, f"/dev/fd/{reading}", "--limit", 3)
    finally:
        os.close(reading)
    refused(outcome, f"/dev/fd/{reading}", "file")
    assert "longer" not in outcome.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [("classify", "--text"), ("rank", "--text"), ("shrink", "--text"), ("prune", "--data")],
)
def test_a_treebank_is_no_text_nor_is_nothing(command, option, run, model, tmp_path):
    """Whatever the file is called; but prune and shrink read one that is named as it is."""
    bank = f"# text = cat mat\n{ROOT}\n{row(2, 'mat', 1)}\n\n"
    out = tmp_path / "out"
    names = ["bank.txt"] if command in ("prune", "shrink") else ["bank.txt", "bank.conllu"]
    for name in names:
        path = tmp_path / name
        path.write_text(bank * 3)
        mend = "as treebank in place of text" if name == "bank.conllu" else "name the file .conllu"
        outcome = run(command, model, option, path, "-o", out, "--quiet")
        refused(outcome, f"{path}, line 3: this looks like CoNLL-U", mend)
    path = tmp_path / "text.txt"
    for data in (None, b"\n \n", b"caf\xe9 \xff\n"):
        if data is not None:
            path.write_bytes(data)
        refused(run(command, model, option, path, "-o", out, "--quiet"), "text.txt")
    assert not out.exists()


def test_folders_that_cannot_be_written(run, model, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("kept")
    refused(run("classify", model, "-o", path), "--output", code=2)
    refused(run("classify", model, "--limit", 2, "-o", path / "out"), str(path / "out"), "-o")
    assert path.read_text() == "kept"
    folder = tmp_path / "out"
    folder.mkdir()
    real = os.access  # root may write anywhere, so permissions alone prove nothing
    monkeypatch.setattr(
        os, "access", lambda path, mode, **k: not (mode & os.W_OK) and real(path, mode, **k)
    )
    refused(run("classify", model, "--limit", 2, "-o", folder), str(folder), "written", "-o")
    assert list(folder.iterdir()) == []


def test_a_state_of_another_run_is_not_resumed(run, model, tmp_path):
    state = tmp_path / ".classify.state.safetensors"
    save_file({"a": torch.zeros(1)}, state, metadata={"identity": '{"seed": 99}'})
    before = state.read_bytes()
    outcome = run("classify", model, "--limit", 2, "-o", tmp_path, "--resume")
    refused(outcome, str(state), "belongs to another run", "seed")
    assert [*tmp_path.iterdir()] == [state]
    assert state.read_bytes() == before


@pytest.mark.parametrize("name", ["classify", "spectrum"])
def test_a_saved_state_is_kept_and_named(name, run, model, tmp_path, monkeypatch):
    state = tmp_path / f".{name}.state.safetensors"
    save_file({"a": torch.zeros(1)}, state, metadata={"identity": "{}"})
    before = state.read_bytes()
    outcome = run(name, model, "-o", tmp_path)
    refused(outcome, str(state), "--resume", "delete that file to start anew", code=2)
    assert [*tmp_path.iterdir()] == [state]
    assert state.read_bytes() == before

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("headscope.session.opening.load", interrupted)
    ended = run(name, "demo", "-o", tmp_path, "--resume")
    assert ended.code == 130
    assert ended.stderr == (
        f"headscope: interrupted; what was measured is saved in {state}: the same command with "
        "--resume goes on from there; delete that file to start anew\n"
    )
    state.unlink()
    assert run(name, "demo", "-o", tmp_path).stderr == "headscope: interrupted\n"
