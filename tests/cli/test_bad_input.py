"""Bad input: one clear sentence on stderr, exit 1 (or typer's 2), and nothing half-written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import typer.main
from outcomes import refused
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY

from headscope.cli.app import app
from headscope.cli.settings import options_by_command

Damage = Callable[[Path], Any]
QUERY_WEIGHT = "encoder.layer.0.attention.self.query.weight"


def without(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, data: str | bytes) -> Damage:
    encoded = data if isinstance(data, bytes) else data.encode()
    return lambda folder: (folder / name).write_bytes(encoded)


def config(name: str = "config.json", **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        values = {**json.loads((folder / name).read_text()), **changes}
        kept = {key: value for key, value in values.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return damage


def tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pickled(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


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


WEIGHTS, SHARD = "model.safetensors", "model-00001-of-00002.safetensors"
BROKEN_MODELS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "no config": (without("config.json"), ("config.json", "save_pretrained")),
    "broken config": (write("config.json", '{"a":\n'), ("config.json", "not valid JSON", "line")),
    "config is a list": (write("config.json", "[]"), ("config.json", "model_type")),
    "config not UTF-8": (write("config.json", b'{"a": "\xe9"}'), ("config.json", "UTF-8")),
    "no model_type": (config(model_type=None), ("config.json", "model_type")),
    "unknown model_type": (config(model_type="megaformer"), ("megaformer",)),
    "config does not fit together": (config(num_attention_heads=5), ("bert", "5")),
    "config value of the wrong kind": (config(hidden_size="wide"), ("hidden_size", "config.json")),
    "no tokenizer": (without("tokenizer.json", "tokenizer_config.json"), ("tokenizer.json",)),
    "broken tokenizer": (write("tokenizer.json", '{"a":'), ("tokenizer", "cannot be read")),
    "empty tokenizer": (write("tokenizer.json", "{}"), ("tokenizer", "cannot be read")),
    "slow tokenizer": (slow_tokenizer, ("no fast tokenizer", "tokenizer.json")),
    "code of a tokenizer": (code_of_a_tokenizer, ("remote code",)),
    "ids beyond the vocabulary": (small_vocabulary, ("token id", "20 rows")),
    "no weights": (without(WEIGHTS), ("no weights", WEIGHTS)),
    "truncated": (cut, (WEIGHTS, "cut short", "download")),
    "no bytes": (write(WEIGHTS, b""), (WEIGHTS, "damaged")),
    "git-lfs pointer": (write(WEIGHTS, "version https://git-lfs.github.com"), (WEIGHTS, "damaged")),
    "no tensor": (tensors(lambda weights: weights.clear()), (WEIGHTS, "no tensor")),
    **{
        value: (
            tensors(lambda weights, x=float(value): weights[QUERY_WEIGHT].fill_(x)),
            ("not finite", QUERY_WEIGHT),
        )
        for value in ("nan", "inf")
    },
    "missing tensor": (tensors(lambda weights: weights.pop(QUERY_WEIGHT)), ("lacks 1", "query")),
    "missing layer": (config(num_hidden_layers=3), ("lacks 16", "encoder.layer.2")),
    "wrong shape": (
        tensors(lambda weights: weights.update({QUERY_WEIGHT: torch.zeros(3, 3)})),
        ("wrong shape", QUERY_WEIGHT),
    ),
    "missing shard": (sharded({"weight_map": {"a": SHARD}}), ("index.json", SHARD, "download")),
    "empty index": (sharded({}), ("index.json",)),
    "index is a list": (sharded([]), ("index.json",)),
    "index without a map": (sharded({"weight_map": None}), ("index.json",)),
    "index with a number": (sharded({"weight_map": {"a": 1}}), ("index.json",)),
    "only pickles": (pickled, ("pytorch_model.bin", "allow_pickle", "safetensors")),
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
        assert run("validate", copy).code == 0
        assert run("rank", copy, "--no-fresh").code == 0
        for more in (("rank", "--share-projections", "8"), ("depth", "--length", 32)):
            refused(run(more[0], copy, *more[1:]), "tokenizer")
    else:
        refused(run("validate", copy), str(copy), *words)
    if case == "ids beyond the vocabulary":
        refused(run("classify", copy, "--limit", 3, "--no-validate"), "token id", "20 rows")


class _Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_pickles_only_on_request_and_without_their_code(run, copy, tmp_path):
    pickled(copy)
    call = ("validate", copy, "--format", "json", "--allow-pickle")
    assert run(*call).json["passed"] is True
    torch.save({"a": _Evil(tmp_path / "it ran")}, copy / "pytorch_model.bin")
    refused(run(*call), str(copy))
    assert not (tmp_path / "it ran").exists()
    (copy / "pytorch_model.bin").write_bytes(b"garbage")
    refused(run(*call), str(copy))


@pytest.mark.parametrize(
    "name",
    [
        *("no/such/folder", "./nowhere", "~nobody-of-this-name/model", "my--model", "my..model"),
        *("org/model.", "x" * 97, "y" * 300, "two words"),
    ],
)
def test_no_such_model(run, name):
    refused(run("validate", name), name, *(["hub id"] if name.startswith("no/") else []))


def test_what_is_no_model_folder(run, model, tmp_path):
    path = model / WEIGHTS
    refused(run("validate", path), str(path), "is a file", "config.json")
    refused(run("classify", tmp_path), str(tmp_path), "config.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_such_device(run, model):
    refused(run("validate", model, "--device", "cuda"), "cuda", "cpu")


def row(number: object, form: str, head: object, relation: str = "dep", columns: int = 10) -> str:
    cells = [str(number), form, "_", "_", "_", "_", str(head), relation, "_", "_"]
    return "\t".join(cells[:columns])


ROOT = row(1, "cat", 0, "root")
LONG_CYCLE = [ROOT, row(2, "b", 3), row(3, "c", 4), row(4, "d", 2)]
TREEBANKS: dict[str, tuple[list[str], int, str]] = {
    "cycle": ([row(1, "a", 2), row(2, "b", 1), row(3, "c", 0)], 2, "cycle: 1 -> 2 -> 1"),
    "long cycle": (LONG_CYCLE, 3, "cycle: 2 -> 3 -> 4 -> 2"),
    "self-loop": ([ROOT, row(2, "a", 2)], 3, "its own head"),
    "two roots": ([ROOT, row(2, "a", 0)], 3, "second root"),
    "no root": ([row(1, "a", 2), row(2, "b", 1)], 2, "cycle"),
    "nine columns": ([ROOT, row(2, "a", 1, columns=9)], 3, "9 columns"),
    "eleven columns": ([ROOT + "\t_"], 2, "11 columns"),
    "spaces for tabs": (["1 cat _ _ _ _ 0 root _ _"], 2, "tabs"),
    "head too large": ([ROOT, row(2, "a", 3)], 3, "head 3 is out of range 0..2"),
    "negative head": ([ROOT, row(2, "a", -1)], 3, "out of range"),
    "head is a word": ([ROOT, row(2, "a", "x")], 3, "'x' is not a number"),
    "head is empty": ([ROOT, row(2, "a", "")], 3, "not a number"),
    "no head": ([ROOT, row(2, "a", "_")], 3, "'_' is not a number"),
    "head with a point": ([ROOT, row(2, "a", "1.5")], 3, "'1.5' is not a number"),
    "id left out": ([ROOT, row(3, "a", 1)], 3, "row id 3 where 2"),
    "id twice": ([ROOT, row(1, "a", 1)], 3, "row id 1 where 2"),
    "id from 0": ([row(0, "a", 0)], 2, "row id 0 where 1"),
    "id is a word": ([row("x", "a", 0)], 2, "'x' is not a row id"),
    "empty form": ([ROOT, row(2, "", 1)], 3, "form is empty"),
    "late, beyond the limit": ([ROOT, "", ROOT, "", ROOT, "", row(1, "cat", 5)], 8, "out of range"),
}


@pytest.mark.parametrize("case", TREEBANKS)
def test_bad_treebanks(case, run, model, tmp_path):
    rows, line, words = TREEBANKS[case]
    path, out = tmp_path / "bad.conllu", tmp_path / "out"
    path.write_text("\n".join(["# a comment", *rows, "", ""]))
    call = ("classify", model, "--treebank", path, "--limit", 2, "-o", out)
    refused(run(*call), f"{path}, line {line}: ", words)
    assert not out.exists()


#: What a file holds that classify reads by an option, and what is said of it.
FILES: list[tuple[str, bytes, str]] = [
    *((option, b"", "holds no sentence") for option in ("--text", "--treebank")),
    *((option, b"\n  \n\t\n", "holds no sentence") for option in ("--text", "--treebank")),
    *((o, b"# c\n\n# caf\xe9\n", "line 3: not UTF-8") for o in ("--text", "--treebank")),
    *((o, "cat\n".encode("utf-16"), "line 1: not UTF-8") for o in ("--text", "--treebank")),
    ("--treebank", b"# newdoc\n\n# text = none\n", "no sentence"),
    ("--text", b"the cat sat " * 30 + b"\n", "None of the 1 sentences"),
    ("--frequencies", b"\n\n", ""),
    ("--frequencies", b"the\t5\ncaf\xe9\t2\n", "line 2: not UTF-8"),
    *(
        ("--frequencies", text, f"line {line}: ")
        for text, line in (
            *(
                (b"the\t5\ncat\n", 2),
                (b"the\t5\n\ncat\tmany\n", 3),
                (b"\t5\n", 1),
                (b"the\t-1\n", 1),
            ),
            *(
                (b"the\tnan\n", 1),
                (b"the\tinf\n", 1),
                (b"the 5\n", 1),
                (b"the\t5\nthe\tDET\t5\n", 2),
            ),
        )
    ),
]


@pytest.mark.parametrize(("option", "data", "words"), FILES)
def test_unreadable_files(option, data, words, run, model, tmp_path):
    path, out = tmp_path / "bad.data", tmp_path / "a" / "out"
    path.write_bytes(data)
    refused(run("classify", model, option, path, "--limit", 2, "-o", out), str(path), words)
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


#: Every command that reads sentences from a text file, with the option that names it.
READERS = [
    *((name, "--text") for name in ("classify", "depth", "flow", "insights", "linear", "rank")),
    *((name, "--text") for name in ("report", "spectrum", "symmetric")),
    *(("prune", option) for option in ("--data", "--calibration")),
]


@pytest.mark.parametrize(("command", "option"), READERS)
def test_a_treebank_is_no_text_nor_is_nothing(command, option, run, model, tmp_path):
    """Whatever the file is called; but prune reads a file that is named as one as a treebank."""
    bank = f"# text = cat mat\n{ROOT}\n{row(2, 'mat', 1)}\n\n"
    out = tmp_path / "out"
    for name in ("bank.txt", *(["bank.conllu"] if command != "prune" else [])):
        path = tmp_path / name
        path.write_text(bank * 3)
        mend = "as treebank in place of text" if name == "bank.conllu" else "name the file .conllu"
        outcome = run(command, model, option, path, "-o", out, "--quiet")
        refused(outcome, f"{path}, line 3: this looks like CoNLL-U", mend)
    for data in (None, b"", b"\n \n", b"\xff\xfe caf\xe9\n"):
        path = tmp_path / "text.txt"
        if data is not None:
            path.write_bytes(data)
        refused(run(command, model, option, path, "-o", out, "--quiet"), "text.txt")
    assert not out.exists()


def test_every_reader_of_text_is_tried():
    commands = options_by_command(typer.Context(typer.main.get_command(app)))
    reading = {(name, "--text") for name, options in commands.items() if "text" in options}
    assert reading == {reader for reader in READERS if reader[1] == "--text"}


def test_a_text_is_no_treebank(run, model, tmp_path):
    path = tmp_path / "lines.conllu"
    path.write_text("# a comment\nThe cat sat on the mat.\n")
    for command in ("classify", "flow"):
        refused(run(command, model, "--treebank", path), f"{path}, line 2: ", "as text")


@pytest.mark.parametrize("language", ["ja", "ko", "zh"])
def test_languages_that_need_another_package(language, run, model):
    """MeCab or jieba may be there or not; a traceback must not be."""
    outcome = run("classify", model, "--language", language, "--limit", 2, "--format", "json")
    if outcome.code:
        refused(outcome, language)


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


def test_what_was_in_the_folder_stays(run, model, tmp_path):
    folder, long = tmp_path / "out", tmp_path / "long.txt"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    long.write_text("the cat " * 60)
    refused(run("classify", model, "--text", long, "-o", folder), "None of the 1 sentences")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("kind", ["garbage", "foreign", "other run"])
def test_states_that_cannot_be_resumed(kind, run, model, tmp_path):
    state = tmp_path / ".classify.state.safetensors"
    if kind == "garbage":
        state.write_bytes(b"garbage")
    else:
        other = {"metadata": {"identity": '{"seed": 99}'}} if kind == "other run" else {}
        save_file({"a": torch.zeros(1)}, state, **other)
    before = state.read_bytes()
    outcome = run("classify", model, "--limit", 2, "-o", tmp_path, "--resume")
    refused(outcome, str(state), "saved state")
    assert state.read_bytes() == before
    assert list(tmp_path.iterdir()) == [state]
