"""What docs/security.md promises of folders of unknown authors; folders that headscope saved."""

import ast
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import refused
from safetensors.torch import load_file, save_file


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
    auto_map = {"AutoConfig": "modeling_own.C", "AutoModel": "modeling_own.M"}
    _edit(folder / "config.json", auto_map=auto_map)


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
def test_nothing_in_a_model_folder_runs(name, run, copy, tmp_path):
    trace = tmp_path / "it ran"
    ATTACKS[name](copy, trace)
    before = sorted(path.name for path in copy.rglob("*"))
    # prune compares embeddings, and so reads the modules of a sentence-transformers folder too.
    few = ("--limit", "4", "--calibration-limit", "4")
    outcome = run("prune", copy, "--heads", "L0H0", *few, "--format", "json")
    assert outcome.code in (0, 1), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not trace.exists()
    assert sorted(path.name for path in copy.rglob("*")) == before
    pickle.loads(pickle.dumps(_Payload(trace)))
    assert trace.is_dir(), "the payload does not run: this test could not fail"


def test_pickles_without_their_code(run, copy, tmp_path):
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    call = ("validate", copy)
    torch.save(weights, copy / "pytorch_model.bin")
    outcome = run(*call)
    assert outcome.code == 0
    assert outcome.flat.count("are pickled (pytorch_model.bin)") == 1
    wide = torch.ones(1).expand(1000, 1000, 1000, 1000)  # a few bytes that claim terabytes
    torch.save({**weights, "embeddings.word_embeddings.weight": wide}, copy / "pytorch_model.bin")
    refused(run(*call), "larger than it is stored")
    torch.save({"a": _Payload(tmp_path / "it ran")}, copy / "pytorch_model.bin")
    refused(run(*call), str(copy))
    assert not (tmp_path / "it ran").exists()


def test_no_source_file_calls_what_runs_code():
    """Neither pickle nor eval; torch.load with weights_only; trust_remote_code never True."""
    forbidden = {"eval", "exec", "pickle.load", "pickle.loads", "os.system", "joblib.load"}
    runs = re.compile(r"\b(eval|exec|system|loads?)\(|pickle|subprocess|trust_remote_code")
    for path in sorted((Path(__file__).parents[2] / "headscope").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text)) if runs.search(text) else ()
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert name not in forbidden, path
            assert not name.startswith("subprocess."), path  # no other program is started
            assert keywords.get("trust_remote_code", "False") == "False", path
            if name == "torch.load":
                assert keywords.get("weights_only") == "True", path
            if name.endswith("np.load"):
                assert keywords.get("allow_pickle", "False") == "False", path


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/{}/elsewhere.safetensors", ".."])
def test_weights_lie_in_their_folder(name, run, copy, tmp_path):
    (copy / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    name = name.format(tmp_path)
    index = {"weight_map": dict.fromkeys(("embeddings.word_embeddings.weight",), name)}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    outcome = run("validate", copy)
    refused(outcome, "index.json")
    assert "not in its folder" in outcome.stderr or "not there" in outcome.stderr


def test_a_forged_report_deletes_nothing(run, model, tmp_path):
    """A report.json names the files that it wrote; only those are ever taken away."""
    out = tmp_path / "out"
    secret = tmp_path / "mine.txt"
    out.mkdir()
    for path in (secret, out / "notes.txt"):
        path.write_text("mine")
    names = ["notes.txt", "../mine.txt", str(secret), "..", ".", "", "a\0b", "x" * 300]
    forged = {"schema": 2, "files": {"rank": dict.fromkeys(names, "0" * 64)}}
    (out / "report.json").write_text(json.dumps(forged))
    assert run("report", model, "-o", out, "--only", "validate", "--quiet").code == 0
    assert (secret.read_text(), (out / "notes.txt").read_text()) == ("mine", "mine")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 10**10}, "vocab_size"),
        ({"vocab_size": 10**400}, "vocab_size"),  # no float is as large
        ({"hidden_size": 4_000_000}, "hidden_size"),
        ({"num_hidden_layers": -(10**9)}, "num_hidden_layers"),
        ({"intermediate_size": 1_000_000}, "numbers"),
    ],
)
def test_absurd_sizes(changes, said, run, copy):
    _edit(copy / "config.json", **changes)
    refused(run("validate", copy), "config.json does not belong to the weights", said)


def test_odd_settings_and_sizes_that_the_weights_have(run, copy):
    weights = load_file(copy / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    weights[name] = torch.cat([weights[name], torch.zeros(300_000, weights[name].shape[1])])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    odd = {"pad_token_id": -1, "chunk_size_feed_forward": 3}
    _edit(copy / "config.json", vocab_size=len(weights[name]), **odd)
    assert run("validate", copy, "--format", "json").code == 0
