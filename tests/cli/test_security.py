"""What docs/security.md promises of folders and files whose authors nobody knows."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

Run = Callable[..., Any]

PACKAGE = Path(__file__).parents[2] / "headscope"

# --- no code ------------------------------------------------------------------------------------


class _Payload:
    """What a pickle runs when it is read: it makes a folder."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _pickles_beside(folder: Path, trace: Path) -> None:
    names = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "model.pkl", "tokenizer.pkl")
    for name in names:
        (folder / name).write_bytes(pickle.dumps(_Payload(trace)))


def _pickled_module(folder: Path, trace: Path) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(
            '{"in_features": 32, "out_features": 8, "bias": true, "activation_function": '
            '"torch.nn.modules.linear.Identity"}'
        )
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload(trace)))


def _code(trace: Path) -> str:
    return f"import os\nos.mkdir({str(trace)!r})\n"


def _code_of_the_model(folder: Path, trace: Path) -> None:
    (folder / "modeling_own.py").write_text(_code(trace))
    own = {"AutoConfig": "modeling_own.C", "AutoModel": "modeling_own.M"}
    _edit(folder / "config.json", auto_map=own)


def _code_of_the_tokenizer(folder: Path, trace: Path) -> None:
    (folder / "tokenization_own.py").write_text(_code(trace))
    _edit(
        folder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["tokenization_own.T", "tokenization_own.T"]},
    )


def _code_of_a_module(folder: Path, trace: Path) -> None:
    (folder / "own_module.py").write_text(_code(trace))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own_module.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))


def _code_in_a_template(folder: Path, trace: Path) -> None:
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}" + _code(trace)
    (folder / "chat_template.jinja").write_text(attack)
    _edit(folder / "tokenizer_config.json", chat_template=attack)


ATTACKS = {
    "pickles beside the weights": _pickles_beside,
    "a pickled module": _pickled_module,
    "auto_map of a known family": _code_of_the_model,
    "auto_map of a tokenizer": _code_of_the_tokenizer,
    "a module of its own": _code_of_a_module,
    "a template": _code_in_a_template,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_in_a_model_folder_runs(name: str, run: Run, model: Path, tmp_path: Path) -> None:
    folder, trace = shutil.copytree(model, tmp_path / "model"), tmp_path / "it ran"
    ATTACKS[name](folder, trace)
    before = sorted(path.name for path in folder.rglob("*"))
    # prune compares embeddings, and so reads the modules of a sentence-transformers folder too.
    few = ("--limit", "4", "--calibration-limit", "4", "--no-roles")
    outcome = run("prune", folder, "--heads", "L0H0", *few, "--format", "json")
    assert outcome.code in (0, 1), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not trace.exists()
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_the_payload_would_run(tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    pickle.loads(pickle.dumps(_Payload(tmp_path / "trace")))
    assert (tmp_path / "trace").is_dir()


_RUNS = re.compile(r"\b(eval|exec|system|loads?)\(|pickle|subprocess|trust_remote_code")


def _calls(path: Path) -> Iterator[ast.Call]:
    text = path.read_text(encoding="utf-8")
    if _RUNS.search(text):
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


def test_no_source_file_calls_what_runs_code() -> None:
    """Neither pickle nor eval; torch.load with weights_only; trust_remote_code never True."""
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "joblib.load"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in _calls(path):
            name, given = (
                ast.unparse(call.func),
                {k.arg: ast.unparse(k.value) for k in call.keywords},
            )
            assert name not in forbidden, path
            if name.startswith("subprocess."):  # git alone, as a list, so without a shell
                assert (path.name, name) == ("revisions.py", "subprocess.run"), path
                assert ast.unparse(call.args[0]).startswith("[program, "), path
                assert "shell" not in given, path
            assert given.get("trust_remote_code", "False") == "False", path
            if name == "torch.load":
                assert given.get("weights_only") == "True", path
            if name.endswith("np.load"):
                assert given.get("allow_pickle", "False") == "False", path


# --- no network ---------------------------------------------------------------------------------

#: Runs commands one after the other and prints every attempt to reach another machine.
_GUARDED = """
import json, os, sys
os.environ.pop("HF_HUB_OFFLINE", None)
tried = []
def look(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        tried.append(event)
        raise OSError(101, "the guard refuses")
sys.addaudithook(look)
from headscope.cli.app import main
found = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["headscope", *words]
    try:
        main()
    except SystemExit as stop:
        found[words[0]] = [stop.code, tried.copy()]
import socket
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    found["guard"] = [0, tried.copy()]
print("FOUND", json.dumps(found))
"""


def test_no_command_on_a_folder_opens_a_socket(model: Path, tmp_path: Path) -> None:
    out, few = str(tmp_path / "out"), ("--limit", "4", "--format", "json")
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    commands = [
        ("validate", str(model)),
        ("classify", str(model), *few, "-o", out),
        ("diff", out, out),
    ]
    words = [sys.executable, "-c", _GUARDED, json.dumps(commands)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.rpartition("FOUND ")[2])
    assert found.pop("guard")[1], "the guard sees nothing"
    assert found == {words[0]: [0, []] for words in commands}


# --- nothing outside the folder -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/{}/elsewhere.safetensors", ".."])
def test_weights_lie_in_their_folder(name: str, run: Run, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    name = name.format(tmp_path)
    index = {"weight_map": dict.fromkeys(("embeddings.word_embeddings.weight",), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    outcome = run("validate", folder)
    assert outcome.code == 1
    assert "index.json" in outcome.stderr
    assert "not in its folder" in outcome.stderr or "not there" in outcome.stderr


def test_a_forged_report_deletes_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    """A report.json names the files that it wrote; only those are ever taken away."""
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    out.mkdir()
    for path in (mine, out / "notes.txt"):
        path.write_text("mine")
    names = ["notes.txt", "../mine.txt", str(mine), "..", ".", "", "a\0b", "x" * 300]
    forged = {"schema": 2, "files": {"rank": dict.fromkeys(names, "0" * 64)}}
    (out / "report.json").write_text(json.dumps(forged))
    assert run("report", model, "-o", out, "--only", "validate", "--quiet").code == 0
    assert (mine.read_text(), (out / "notes.txt").read_text()) == ("mine", "mine")


# --- bounded memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 10**10}, "vocab_size"),
        ({"hidden_size": 4_000_000}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": -(10**9)}, "num_hidden_layers"),
        ({"num_labels": 10**9}, "num_labels"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
        ({"intermediate_size": 1_000_000}, "numbers"),
        ({"vocab_size": 1_000_000}, "numbers"),
    ],
)
def test_absurd_sizes(
    changes: dict[str, int], said: str, run: Run, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    _edit(folder / "config.json", **changes)
    outcome = run("validate", folder)
    assert (outcome.code, outcome.stderr.count("\n")) == (1, 1), outcome.stderr
    assert "config.json does not belong to the weights" in outcome.stderr
    assert said in outcome.stderr


@pytest.mark.parametrize(
    "changes", [{"pad_token_id": -1}, {"chunk_size_feed_forward": 3}], ids=lambda c: next(iter(c))
)
def test_odd_settings_that_change_nothing(
    changes: dict[str, int], run: Run, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    _edit(folder / "config.json", **changes)
    assert run("validate", folder, "--format", "json").code == 0


def test_a_large_vocabulary_that_is_there(run: Run, model: Path, tmp_path: Path) -> None:
    """Sizes that the weights have are believed."""
    folder = shutil.copytree(model, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    weights[name] = torch.cat([weights[name], torch.zeros(300_000, weights[name].shape[1])])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _edit(folder / "config.json", vocab_size=len(weights[name]))
    assert run("validate", folder, "--format", "json").code == 0
