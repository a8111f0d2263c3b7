"""``headscope shrink`` and ``headscope export`` as a user types them."""

import json
import re

import numpy as np
import pytest
from tiny_models import WORDS, tiny_bert

PIECES = [word for word in WORDS if not word.startswith("#")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    base = tmp_path_factory.mktemp("shrink")
    tiny_bert(base / "model", layers=3)
    rng = np.random.default_rng(0)
    for name in ("train", "judge"):
        lines = {" ".join(rng.choice(PIECES, 6)) for _ in range(60)}
        (base / f"{name}.txt").write_text("\n".join(sorted(lines)) + "\n")
    return base


@pytest.fixture(scope="module")
def small(files, run):
    """A folder that holds two of three layers, served by openvino in 8 bits."""
    ended = run(
        *("shrink", files / "model", "--data", files / "judge.txt", "--text", files / "train.txt"),
        *("--runtime", "openvino", "--max-drop", 1, "--minutes", 0, "--save", files / "small"),
        *("--format", "json", "-q"),
    )
    assert ended.code == 0, ended.stderr
    return ended.json


def test_the_file_of_the_headline_lies_where_its_users_look(files, small):
    best = small["models"][small["chosen"]]
    assert best["runtime"] == "openvino"
    assert small["saved"]["file"] == "openvino/openvino_model.xml"
    assert (files / "small" / "openvino" / "openvino_model.bin").is_file()
    card = (files / "small" / "README.md").read_text()
    assert str(files) not in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert snippets
    for code in snippets:
        exec(code.replace("path/to/this", str(files / "small")), {})


@pytest.mark.parametrize(("bound", "code"), [(["--max-drop", 1], 0), (["--mb", 0.001], 3)])
def test_a_gate_for_ci_names_its_model_by_the_folder(files, small, run, bound, code):
    ended = run(
        *("shrink", "--check", files / "small", "--data", files / "judge.txt", *bound), "-q"
    )
    assert ended.code == code, ended.stderr
    if code:
        assert "0.001 MB was asked for" in ended.flat


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shrink"], "Name the MODEL, or with --check a folder"),
        (["shrink", "--check", "/nowhere", "--mb", 1], "does not say which model"),
        (["shrink", "MODEL", "--speed", 2, "--mb", 3], "are two targets"),
        (["shrink", "MODEL", "--speed", 1], "--speed"),
        (["shrink", "MODEL", "--text", "/nowhere.txt"], "There is no file /nowhere.txt"),
        (["export", "/nowhere", "onnx"], "there is no folder /nowhere"),
        (["export", "MODEL", "openvino", "--precision", "int8-dynamic"], "float32 and int8"),
    ],
)
def test_wrong_input_ends_with_one_sentence(files, run, words, said):
    ended = run(*(files / "model" if word == "MODEL" else word for word in words))
    assert ended.code != 0
    assert said in " ".join(ended.stderr.replace("│", " ").split())
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["onnx"], "onnx/model.onnx"),
        (["openvino", "--precision", "int8"], "openvino/openvino_model_qint8_quantized.xml"),
    ],
)
def test_a_saved_model_gets_another_runtime_s_file(files, run, words, file):
    before = json.loads((files / "model" / "config.json").read_text())
    ended = run("export", files / "model", *words)
    assert ended.code == 0, ended.stderr
    assert (files / "model" / file).is_file()
    assert "differ from the model's in torch by" in ended.flat
    assert json.loads((files / "model" / "config.json").read_text()) == before
