"""Bad input: one clear sentence on stderr, exit 1 (or typer's 2), and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import typer.main
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY

from headscope.cli.app import app
from headscope.cli.settings import options_by_command

Run = Callable[..., Any]
Damage = Callable[[Path], Any]

QUERY_WEIGHT = "encoder.layer.0.attention.self.query.weight"


def refused(outcome: Any, *words: str) -> None:
    """Exit 1, nothing on stdout, one sentence on stderr that holds all ``words``."""
    assert outcome.code == 1, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    for word in words:
        assert word in outcome.stderr, (word, outcome.stderr)


def usage(outcome: Any, *words: str) -> None:
    """Exit 2 with typer's usage error."""
    assert outcome.code == 2, outcome
    assert outcome.stdout == ""
    assert "Error" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    for word in words:
        assert word in outcome.stderr, (word, outcome.stderr)


# --- models -----------------------------------------------------------------------------------


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
    "ids beyond the vocabulary": (small_vocabulary, ("token id", "20 rows")),
    "no weights": (without("model.safetensors"), ("no weights", "model.safetensors")),
    "truncated": (cut, ("model.safetensors", "cut short", "download")),
    "no bytes": (write("model.safetensors", b""), ("model.safetensors", "damaged")),
    "git-lfs pointer": (
        write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        ("model.safetensors", "damaged"),
    ),
    "no tensor": (tensors(lambda weights: weights.clear()), ("model.safetensors", "no tensor")),
    "NaN": (
        tensors(lambda weights: weights[QUERY_WEIGHT].fill_(float("nan"))),
        ("not finite", QUERY_WEIGHT),
    ),
    "infinity": (
        tensors(lambda weights: weights[QUERY_WEIGHT].fill_(float("inf"))),
        ("not finite", QUERY_WEIGHT),
    ),
    "missing tensor": (
        tensors(lambda weights: weights.pop(QUERY_WEIGHT)),
        ("lacks 1", QUERY_WEIGHT),
    ),
    "missing layer": (config(num_hidden_layers=3), ("lacks 16", "encoder.layer.2")),
    "wrong shape": (
        tensors(lambda weights: weights.update({QUERY_WEIGHT: torch.zeros(3, 3)})),
        ("wrong shape", QUERY_WEIGHT),
    ),
    "missing shard": (
        sharded({"weight_map": {"a": "model-00001-of-00002.safetensors"}}),
        ("index.json", "model-00001-of-00002.safetensors", "download"),
    ),
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
def test_broken_models(case: str, run: Run, model: Path, tmp_path: Path) -> None:
    damage, words = BROKEN_MODELS[case]
    folder = shutil.copytree(model, tmp_path / "broken")
    damage(folder)
    out = tmp_path / "out"
    refused(run("classify", folder, "--limit", 3, "-o", out), str(folder), *words)
    assert not out.exists()
    if case != "no tokenizer":
        refused(run("validate", folder), str(folder), *words)


def test_validate_needs_no_tokenizer(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "bare")
    without("tokenizer.json", "tokenizer_config.json")(folder)
    assert run("validate", folder, "--format", "json").code == 0


def test_pickles_only_on_request(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "pickled")
    pickled(folder)
    outcome = run("validate", folder, "--format", "json", "--allow-pickle")
    assert outcome.code == 0
    assert json.loads(outcome.stdout)["passed"] is True


class _Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_with_code_never_runs(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "evil")
    pickled(folder)
    trace = tmp_path / "it ran"
    torch.save({"a": _Evil(trace)}, folder / "pytorch_model.bin")
    refused(run("validate", folder, "--allow-pickle"), str(folder))
    assert not trace.exists()


def test_a_broken_pickle(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "garbage")
    pickled(folder)
    (folder / "pytorch_model.bin").write_bytes(b"garbage")
    refused(run("validate", folder, "--allow-pickle"), str(folder))


def test_code_of_a_tokenizer_never_runs(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "code")
    changes = {"auto_map": {"AutoTokenizer": ["code.T", "code.T"]}, "tokenizer_class": "T"}
    config("tokenizer_config.json", **changes)(folder)
    (folder / "code.py").write_text("raise BaseException('remote code ran')\n")
    refused(run("validate", folder), str(folder), "remote code")


def test_a_sentence_of_other_tokens_than_the_models(run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "small")
    small_vocabulary(folder)
    refused(run("classify", folder, "--limit", 3, "--no-validate"), "token id", "20 rows")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no/such/folder", ("no/such/folder", "hub id")),
        ("./nowhere", ("./nowhere",)),
        ("/nowhere/at/all", ("/nowhere/at/all",)),
        ("~nobody-of-this-name/model", ("~nobody-of-this-name/model",)),
        ("my--model", ("my--model",)),
        ("my..model", ("my..model",)),
        ("org/model.", ("org/model.",)),
        ("x" * 97, ("x" * 97,)),
        ("y" * 300, ("y" * 300,)),
        ("two words", ("two words",)),
    ],
)
def test_no_such_model(run: Run, name: str, words: tuple[str, ...]) -> None:
    refused(run("validate", name), *words)


def test_the_model_is_a_file(run: Run, model: Path) -> None:
    path = model / "model.safetensors"
    refused(run("validate", path), str(path), "is a file", "config.json")


def test_the_model_is_an_empty_folder(run: Run, tmp_path: Path) -> None:
    refused(run("classify", tmp_path), str(tmp_path), "config.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_such_device(run: Run, model: Path) -> None:
    refused(run("validate", model, "--device", "cuda"), "cuda", "cpu")


# --- treebanks --------------------------------------------------------------------------------


def row(number: object, form: str, head: object, relation: str = "dep", columns: int = 10) -> str:
    cells = [str(number), form, "_", "_", "_", "_", str(head), relation, "_", "_"]
    return "\t".join(cells[:columns])


ROOT = row(1, "cat", 0, "root")
TREEBANKS: dict[str, tuple[list[str], int, str]] = {
    "cycle": ([row(1, "a", 2), row(2, "b", 1), row(3, "c", 0)], 2, "cycle: 1 -> 2 -> 1"),
    "long cycle": (
        [ROOT, row(2, "b", 3), row(3, "c", 4), row(4, "d", 2)],
        3,
        "cycle: 2 -> 3 -> 4 -> 2",
    ),
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
}


@pytest.mark.parametrize("case", TREEBANKS)
def test_bad_treebanks(case: str, run: Run, model: Path, tmp_path: Path) -> None:
    rows, line, words = TREEBANKS[case]
    path = tmp_path / "bad.conllu"
    path.write_text("\n".join(["# a comment", *rows, "", ""]))
    out = tmp_path / "out"
    refused(run("classify", model, "--treebank", path, "-o", out), f"{path}, line {line}: ", words)
    assert not out.exists()


def test_a_slip_late_in_the_treebank_is_found_first(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "late.conllu"
    path.write_text(f"{ROOT}\n\n" * 10 + row(1, "cat", 5) + "\n")
    refused(run("classify", model, "--treebank", path, "--limit", 2), f"{path}, line 21: ")


# --- files of text ----------------------------------------------------------------------------

UNREADABLE = {
    "empty": (b"", "holds no sentence"),
    "blank lines": (b"\n  \n\t\n", "holds no sentence"),
    "not UTF-8": (b"# c\n\n# caf\xe9\n", "line 3: not UTF-8"),
    "UTF-16": ("the cat\n".encode("utf-16"), "line 1: not UTF-8"),
}


@pytest.mark.parametrize("option", ["--text", "--treebank"])
@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_files(case: str, option: str, run: Run, model: Path, tmp_path: Path) -> None:
    data, words = UNREADABLE[case]
    path = tmp_path / "bad.data"
    path.write_bytes(data)
    out = tmp_path / "out"
    refused(run("classify", model, option, path, "-o", out), str(path), words)
    assert not out.exists()


@pytest.mark.parametrize("option", ["--text", "--treebank", "--frequencies", "--config"])
def test_missing_files_and_folders(option: str, run: Run, model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    refused(run("classify", model, option, missing, "--limit", 2), str(missing))
    refused(run("classify", model, option, tmp_path, "--limit", 2), str(tmp_path), "directory")


#: Every command that reads sentences from a text file, with the option that names it.
READERS = [
    *((name, "--text") for name in ("classify", "depth", "flow", "insights", "linear", "rank")),
    *((name, "--text") for name in ("report", "spectrum", "symmetric")),
    *(("prune", option) for option in ("--data", "--calibration")),
]


@pytest.mark.parametrize(("command", "option"), READERS)
def test_a_treebank_is_no_text(
    command: str, option: str, run: Run, model: Path, tmp_path: Path
) -> None:
    """Whatever the file is called; but prune reads a file that is named as one as a treebank."""
    bank = f"# text = cat mat\n{ROOT}\n{row(2, 'mat', 1)}\n\n"
    for name in ("bank.txt", *(["bank.conllu"] if command != "prune" else [])):
        path, out = tmp_path / name, tmp_path / "out"
        path.write_text(bank * 3)
        mend = "as treebank in place of text" if name == "bank.conllu" else "name the file .conllu"
        outcome = run(command, model, option, path, "-o", out, "--quiet")
        refused(outcome, f"{path}, line 3: this looks like CoNLL-U", mend)
        assert not out.exists()


def test_every_reader_of_text_is_tried() -> None:
    commands = options_by_command(typer.Context(typer.main.get_command(app)))
    reading = {(name, "--text") for name, options in commands.items() if "text" in options}
    assert reading == {reader for reader in READERS if reader[1] == "--text"}


def test_a_text_is_no_treebank(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lines.conllu"
    path.write_text("# a comment\nThe cat sat on the mat.\n")
    for command in ("classify", "flow"):
        refused(run(command, model, "--treebank", path), f"{path}, line 2: ", "as text")


def test_comments_without_a_sentence(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "comments.conllu"
    path.write_text("# newdoc\n\n# text = none\n")
    refused(run("classify", model, "--treebank", path), str(path), "no sentence")


def test_every_sentence_is_too_long(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(("the cat sat " * 30 + "\n") * 3)
    out = tmp_path / "out"
    outcome = run("classify", model, "--text", path, "-o", out)
    refused(outcome, str(path), "None of the 3 sentences", "longer")
    assert not out.exists()


@pytest.mark.parametrize("option", ["--text", "--treebank", "--frequencies"])
def test_a_pipe_cannot_be_read_twice(option: str, run: Run, model: Path, tmp_path: Path) -> None:
    lines = {"--text": "the cat\n", "--treebank": f"{ROOT}\n\n", "--frequencies": "the\t3\n"}
    reading, writing = os.pipe()
    os.write(writing, lines[option].encode())
    os.close(writing)
    try:
        outcome = run("classify", model, option, f"/dev/fd/{reading}", "--limit", 3)
    finally:
        os.close(reading)
    refused(outcome, f"/dev/fd/{reading}", "file")
    assert "longer" not in outcome.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the\t5\ncat\n", 2),
        ("the\t5\n\ncat\tmany\n", 3),
        ("\t5\n", 1),
        ("the\t-1\n", 1),
        ("the\tnan\n", 1),
        ("the\tinf\n", 1),
        ("the 5\n", 1),
        ("the\t5\nthe\tDET\t5\n", 2),
    ],
)
def test_malformed_frequencies(text: str, line: int, run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text(text)
    outcome = run("classify", model, "--frequencies", path, "--limit", 2)
    refused(outcome, f"{path}, line {line}: ", "word<TAB>count")


def test_empty_frequencies(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("\n\n")
    refused(run("classify", model, "--frequencies", path, "--limit", 2), str(path))


def test_frequencies_that_are_not_utf8(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_bytes(b"the\t5\ncaf\xe9\t2\n")
    outcome = run("classify", model, "--frequencies", path, "--limit", 2)
    refused(outcome, f"{path}, line 2: not UTF-8")


@pytest.mark.parametrize("language", ["english", "en_US.UTF-8", "English, please!"])
def test_no_such_language(language: str, run: Run, model: Path) -> None:
    refused(run("classify", model, "--language", language, "--limit", 2), language)


@pytest.mark.parametrize("language", ["ja", "ko", "zh"])
def test_languages_that_need_another_package(language: str, run: Run, model: Path) -> None:
    """MeCab or jieba may be there or not; a traceback must not be."""
    outcome = run("classify", model, "--language", language, "--limit", 2, "--format", "json")
    if outcome.code:
        refused(outcome, language)


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--limit", "0"), ("0", "1 sentence")),
        (("--limit", "-3"), ("-3",)),
        (("--resume",), ("resume", "-o")),
        (("--threshold", "positonal=0.5"), ("'positonal'", "did you mean 'positional'?")),
        (("--threshold", "xyzzy=1"), ("'xyzzy'", "known are positional")),
        (("--threshold", "positional"), ("'positional'", "NAME=VALUE")),
        (("--threshold", "=0.5"), ("threshold",)),
        (("--threshold", "positional=2"), ("positional is 2", "at most 1")),
        (("--threshold", "positional=-0.1"), ("positional is -0.1",)),
        (("--threshold", "positional=most"), ("positional", "'most'", "number")),
        (("--threshold", "positional=nan"), ("positional", "nan")),
        (("--threshold", "syntactic=inf"), ("syntactic", "inf")),
        (("--threshold", "min_trials=2.5"), ("min_trials", "2.5")),
        (("--threshold", "min_trials=inf"), ("min_trials", "inf")),
        (("--threshold", "syntactic_relative=perhaps"), ("syntactic_relative", "true or false")),
        (("--control", "--seed", str(2**70)), ("seed",)),
    ],
)
def test_values_out_of_range(
    arguments: tuple[str, ...], words: tuple[str, ...], run: Run, model: Path
) -> None:
    limit = () if "--limit" in arguments else ("--limit", "2")
    refused(run("classify", model, *limit, *arguments, "--format", "json"), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("classify",), ("MODEL",)),
        (("clasify", "m"), ("clasify", "classify")),
        (("classify", "m", "--nope"), ("--nope",)),
        (("classify", "m", "--format", "xml"), ("--format", "xml", "json")),
        (("validate", "m", "--format", "xml"), ("--format", "xml", "json")),
        (("validate", "m", "--dtype", "int8"), ("--dtype", "int8", "float32")),
        (("validate", "m", "--device", "tpu"), ("--device", "tpu", "cuda")),
        (("classify", "m", "--limit", "many"), ("--limit",)),
        (("classify", "m", "--limit"), ("--limit",)),
        (("classify", "m", "n"), ("n",)),
        (("classify", "m", "--treebank", "a", "--text", "b"), ("--treebank", "--text", "both")),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], words: tuple[str, ...], run: Run) -> None:
    usage(run(*arguments), *words)


# --- config files -----------------------------------------------------------------------------

CONFIGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown key": ("[classify]\nlimt = 3", ("limt", "did you mean 'limit'?")),
    "unknown table": ("[clasify]\nlimit = 3", ("clasify", "did you mean [classify]?")),
    "syntax": ("[classify\n", ("not valid TOML", "line 1")),
    "not a table": ("classify = 3", ("[classify]",)),
    "a flag's name": ("[classify]\nhelp = true", ("help",)),
    "unknown threshold": ("[classify.thresholds]\npositonal = 1", ("positonal", "'positional'")),
    "list": ("[classify.thresholds]\npositional = [1]", ("positional", "number")),
    "true": ("[classify.thresholds]\nq = true", ("q is True", "number")),
    "infinity": ("[classify.thresholds]\nmin_trials = inf", ("min_trials", "inf")),
    "no whole number": ("[classify.thresholds]\nmin_trials = 2.7", ("min_trials", "2.7")),
    "thresholds not a table": ("[classify]\nthresholds = 3", ("thresholds",)),
    "value": ("[classify]\nlimit = 0", ("0", "1 sentence")),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_config_files(case: str, run: Run, model: Path, tmp_path: Path) -> None:
    text, words = CONFIGS[case]
    path = tmp_path / "settings.toml"
    path.write_text(text)
    limit = () if case == "value" else ("--limit", "2")
    refused(run("classify", model, "--config", path, *limit), *words)


def test_a_config_file_that_is_not_utf8(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b'[classify]\nlanguage = "\xe9"\n')
    refused(run("classify", model, "--config", path), str(path), "not valid TOML")


@pytest.mark.parametrize("line", ['format = "xml"', 'limit = "x"', "limit = 2.5", "limit = [1]"])
def test_config_values_of_the_wrong_kind(line: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"[classify]\n{line}\n")
    refused(
        run("classify", "m", "--config", path), str(path), f"[classify] {line.partition(' ')[0]}"
    )


# --- the folder of -o -------------------------------------------------------------------------


def test_output_is_a_file(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    usage(run("classify", model, "-o", path), "--output")
    assert path.read_text() == "kept"


def test_output_cannot_be_made(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "out"
    refused(run("classify", model, "--limit", 2, "-o", folder), str(folder), "-o")


def test_output_cannot_be_written_to(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    real = os.access  # root may write anywhere, so permissions alone prove nothing
    monkeypatch.setattr(
        os, "access", lambda path, mode, **k: not (mode & os.W_OK) and real(path, mode, **k)
    )
    refused(run("classify", model, "--limit", 2, "-o", folder), str(folder), "written", "-o")
    assert list(folder.iterdir()) == []


def test_nothing_is_left_of_nested_folders(run: Run, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    blank = tmp_path / "blank.txt"
    blank.write_text("the cat " * 60)
    refused(run("classify", model, "--text", blank, "-o", folder), "None of the 1 sentences")
    assert sorted(tmp_path.iterdir()) == [blank]


def test_what_was_in_the_folder_stays(run: Run, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    long = tmp_path / "long.txt"
    long.write_text("the cat " * 60)
    refused(run("classify", model, "--text", long, "-o", folder), "None of the 1 sentences")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("kind", ["garbage", "foreign", "other run"])
def test_states_that_cannot_be_resumed(kind: str, run: Run, model: Path, tmp_path: Path) -> None:
    state = tmp_path / ".classify.state.safetensors"
    if kind == "garbage":
        state.write_bytes(b"garbage")
    elif kind == "foreign":
        save_file({"a": torch.zeros(1)}, state)
    else:
        save_file({"a": torch.zeros(1)}, state, metadata={"identity": '{"seed": 99}'})
    before = state.read_bytes()
    outcome = run("classify", model, "--limit", 2, "-o", tmp_path, "--resume")
    refused(outcome, str(state), "saved state")
    assert state.read_bytes() == before
    assert list(tmp_path.iterdir()) == [state]
