"""``headscope shrink`` and ``headscope export`` as a user types them."""

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tiny_models import WORDS, tiny_bert
from tokenizers import Tokenizer
from transformers import AutoModel

import headscope
from headscope.models.run.intervene import gated
from headscope.shrinking import ladder, serving, whole_model
from headscope.shrinking.serving import TORCH, Form

PIECES = [word for word in WORDS if not word.startswith("#")]


@pytest.fixture(scope="module", autouse=True)
def _one_graph_of_each_model():
    """Tracing a model is most of the time; a graph that was written is written again."""
    write = serving.write_graph
    graphs = {}

    def once(model, path, *, typed):
        key = (model.task_head, len(model.sites), typed)
        if key not in graphs:
            write(model, path, typed=typed)
            graphs[key] = path.read_bytes()
        path.write_bytes(graphs[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "write_graph", once)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    base = tmp_path_factory.mktemp("shrink")
    tiny_bert(base / "model")
    rng = np.random.default_rng(0)
    for name in ("train", "judge"):
        lines = {" ".join(rng.choice(PIECES, 6)) for _ in range(60)}
        (base / f"{name}.txt").write_text("\n".join(sorted(lines)) + "\n")
    (base / "few.txt").write_text("\n".join(sorted(lines)[:8]) + "\n")
    constant = AutoModel.from_pretrained(base / "model")
    last = constant.encoder.layer[-1].output.LayerNorm
    last.weight.data.zero_()
    last.bias.data.fill_(1.0)
    shutil.copytree(base / "model", base / "constant")
    constant.save_pretrained(base / "constant")
    return base


@pytest.fixture(scope="module")
def small(files, run):
    """A folder that holds one of two layers, served by openvino in 8 bits."""
    with pytest.MonkeyPatch.context() as patch:  # tests/unit/shrinking has the other forms
        patch.setattr(whole_model, "FORMS", (TORCH, Form("openvino", "int8")))
        patch.setattr(ladder, "SHARES", ((1 / 2, 1),))
        texts = ("--data", files / "judge.txt", "--text", files / "train.txt")
        keeping = ("--max-drop", 100, "--minutes", 0, "--save", files / "small")
        words = ("--runtime", "openvino", *keeping, "--format", "json", "-q")
        return run("shrink", files / "model", *texts, *words).json


def test_the_file_of_the_headline_lies_where_its_users_look(files, small):
    best = small["models"][small["chosen"]]
    assert (best["runtime"], best["precision"], len(best["layers"])) == ("openvino", "int8", 1)
    assert small["saved"]["file"] == "openvino/openvino_model.xml"
    assert (files / "small" / "openvino" / "openvino_model.bin").is_file()
    card = (files / "small" / "README.md").read_text()
    assert str(files) not in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert snippets
    for code in snippets:
        exec(code.replace("path/to/this", str(files / "small")), {})


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        ("model", "few.txt", "gives 8 examples, and max_drop needs 60 or more"),
        ("constant", "judge.txt", "The whole model gives every text the same embedding"),
    ],
)
def test_a_loss_that_no_data_can_tell_is_not_confirmed(
    files, small, run, model, data, said, checked
):
    call = ["shrink", files / model, "--runtime", "torch", "--data", files / data]
    call += ["--check", files / "small"] if checked else ["--text", files / "train.txt"]
    ended = run(*call, "--max-drop", 50, "--minutes", 0, "-q")
    assert ended.code == 1
    assert said in " ".join(ended.stderr.split())


def test_a_size_on_few_examples_says_that_the_loss_is_not_known(files, small, run):
    call = ("shrink", "--check", files / "small", "--data", files / "few.txt")
    ended = run(*call, "--mb", 1, "-q")
    assert ended.code == 0, ended.stderr
    assert "what is lost at most is not known (8 examples; 60 are needed)" in ended.flat


def test_a_check_of_a_task_of_pairs_needs_no_text(run, tmp_path):
    folder = tiny_bert(tmp_path / "model", layers=1, seed=3, task_head="token-classification")
    tags = itertools.cycle(("LABEL_0", "LABEL_1", "LABEL_1"))
    lines = []
    for first in range(9):
        lines += [f"{word} {next(tags)}" for word in PIECES[first : first + 5]]
        lines.append("")
    (tmp_path / "tags.txt").write_text("\n".join(lines) + "\n")
    task = ("--task", "token-classification", "--data", tmp_path / "tags.txt")
    ended = run("shrink", folder, "--check", folder, *task, "--mb", 100, "--format", "json", "-q")
    assert ended.code == 0, ended.stderr
    assert ended.json["text"] == []
    assert ended.json["sentences"] == 0


@pytest.mark.parametrize(("bound", "code"), [(["--max-drop", 100], 0), (["--mb", 0.001], 3)])
def test_a_gate_for_ci_names_its_model_by_the_folder(files, small, run, bound, code):
    call = ("shrink", "--check", files / "small", "--data", files / "judge.txt", *bound, "-q")
    ended = run(*call)
    assert ended.code == code, ended.stderr
    if code:
        assert "0.001 MB was asked for" in ended.flat


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shrink"], "Name the MODEL, or with --check a folder"),
        (["shrink", "--check", "/nowhere", "--mb", 1], "does not say which model"),
        (["shrink", "MODEL", "--speed", 1], "--speed"),
        (["shrink", "MODEL", "--text", "/nowhere.txt"], "There is no file /nowhere.txt"),
        (["export", "/nowhere", "onnx"], "there is no folder /nowhere"),
        (["export", "MODEL", "openvino", "--precision", "int8-dynamic"], "has float32 and int8"),
        (["export", "MODEL", "onnx", "--precision", "int8"], "onnx has float32 and int8-dynamic"),
    ],
)
def test_wrong_input_ends_with_one_sentence(files, run, words, said):
    ended = run(*(files / "model" if word == "MODEL" else word for word in words))
    assert ended.code != 0
    assert said in " ".join(ended.stderr.replace("│", " ").split())
    assert "Traceback" not in ended.stderr


def exported(run, folder: Path, *words: object) -> None:
    """Let a folder get another runtime's file; the rest of it stays as it is."""
    before = (folder / "config.json").read_bytes()
    ended = run("export", folder, *words)
    assert ended.code == 0, ended.stderr
    assert "differ from the model's in torch by" in ended.flat
    assert (folder / "config.json").read_bytes() == before


def test_a_saved_model_gets_a_file_in_8_bits(files, small, run):
    folder = files / "small"
    exported(run, folder, "openvino", "--precision", "int8", "--text", files / "train.txt")
    assert (folder / "openvino" / "openvino_model_qint8_quantized.xml").is_file()


TEXTS = [
    ("the cat sat on the mat", "a dog ran"),
    ("the big cat", "he saw it was red and she ran to the house"),
    ("she sat", "on the mat"),
]


def test_a_graph_is_the_pruned_classifier_of_pairs(run, tmp_path):
    """With onnxruntime and tokenizers alone, against the full model with gates of zero."""
    tiny_bert(tmp_path / "model", layers=1, seed=3, task_head="classification")
    path = tmp_path / "model" / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]  # which of two texts a token is of
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": names}))
    full = headscope.load(str(tmp_path / "model"), task_head="auto")
    folder = headscope.save(headscope.remove_heads(full, [(0, 1), (0, 2)]), tmp_path / "small")
    exported(run, folder, "onnx")

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(TEXTS)
    feed = {
        "input_ids": np.array([text.ids for text in encoded]),
        "attention_mask": np.array([text.attention_mask for text in encoded]),
        "token_type_ids": np.array([text.type_ids for text in encoded]),
    }
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    assert [item.name for item in session.get_inputs()] == list(feed)
    (logits,) = session.run(["logits"], feed)

    expected = []
    gates = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    for pair in TEXTS:
        tokens = full.tokenizer(*pair, return_tensors="pt")
        with gated(full, gates) as through_gates:
            _, logits_of_pair = through_gates(*(tokens[name] for name in feed))
        expected.append(logits_of_pair)
    np.testing.assert_allclose(logits, torch.cat(expected).detach().numpy(), atol=2e-5)
