"""What is written beside a model: its card, and a graph that gives what the model gives."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from families import tiny
from huggingface_hub import ModelCard
from tiny_models import tiny_bert, translator

import headscope
from headscope.artefacts.onnx_graph import check_exportable, need_packages, write_graph
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.validation import ValidationSummary
from headscope.pruning.card import CardFacts, model_card
from headscope.pruning.result import DropFidelity, DropLook, DropPart, MaxDrop, PruneResult
from headscope.pruning.view import verdict

SOURCE_CARD = "---\nlicense: apache-2.0\nlanguage: en\ntags: [x]\n---\n# The full model\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_bert(tmp_path_factory.mktemp("card") / "full")
    (folder / "README.md").write_text(SOURCE_CARD, encoding="utf-8")
    return headscope.load(str(folder))


@pytest.fixture(scope="module")
def result(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> PruneResult:
    return headscope.prune(
        model,
        heads="L0H1,L1H0,L1H3",
        repairs=["none"],
        limit=20,
        ablation=False,
        roles=False,
        save=tmp_path_factory.mktemp("card") / "small",
        benchmark=True,
        command="headscope prune full --heads L0H1,L1H0,L1H3 --save small",
    )


def card_of(result: PruneResult, model: LoadedModel) -> str:
    measured = result.saved[0].measured
    return model_card(result, model, CardFacts("compact", "import headscope", measured))


def test_header_and_tables(model, result):
    text = card_of(result, model)
    header = ModelCard(text).data.to_dict()
    assert (header["license"], header["language"]) == ("apache-2.0", "en")
    assert "headscope" in header["tags"]
    assert "x" not in header["tags"]
    assert "base_model" not in header  # a folder is no id of the hub
    metric = header["model-index"][0]["results"][0]["metrics"][0]
    assert metric["type"] == "cosine"
    assert metric["value"] == pytest.approx(result.saved[0].measured, abs=5.1e-5)
    point = result.curves[0].points[0]
    row = result.speed.rows[0]
    for line in (
        "| L0 | 3 of 4 | H1 |",
        "| L1 | 2 of 4 | H0, H3 |",
        "headscope prune full --heads L0H1,L1H0,L1H3 --save small",
        f"| change (paired) | {point.difference:+.4f} |",
        f"| this folder, opened again | {result.saved[0].measured:.4f} |",
        f"| {row.batch_size} x {row.length} | torch | {row.full_ms:.1f} |",
    ):
        assert line in text


def test_a_source_card_that_cannot_be_read(model, result):
    path: Path = model.folder / "README.md"
    for card in ("---\n: [\n---\n", "no header", "---\nlicense: 7\n---\n", ""):
        path.write_text(card, encoding="utf-8")
        try:
            header = ModelCard(card_of(result, model)).data.to_dict()
        finally:
            path.write_text(SOURCE_CARD, encoding="utf-8")
        assert "license" not in header


def test_a_check_that_was_not_run_did_not_fail(model, result):
    line = "Check that headscope's attention is the model's own: "
    for passed, word in ((True, "passed"), (False, "failed"), (None, "not run")):
        said = dataclasses.replace(result, validation=ValidationSummary(passed))
        assert f"{line}{word}\n" in card_of(said, model)


def test_what_a_search_settled_tested_and_refused_is_told(model, result):
    """How many numbers, on how many examples, what ended it, and the fidelity."""
    part = DropPart(3, 120, 1.0, 0.98, -0.02, (-0.03, -0.01), 0.975)
    looks = tuple(
        DropLook("fisher", "none", heads, "tested", 0.02, lost, 0.975, allowed, 0.97, 0.96)
        for heads, lost, allowed in ((2, 0.02, True), (3, 0.03, True), (4, 0.0623, False))
    )
    near = DropFidelity("text.txt", "0" * 64, 3000, "cosine", 0.95, 0.97, (0.96, 0.98), 0.95)
    found = MaxDrop(
        *(0.05, 3, "fisher", "none", part, None, looks, None, "tested", (2, 3, 4, 5)),
        left_out=result.data.examples - 120,
        fidelity=near,
    )
    said = dataclasses.replace(result, max_drop=found)
    text = card_of(said, model)
    words = (
        "the order of 4 numbers of heads were settled beforehand, without these examples. The "
        f"numbers were tested one after the other, each on the 120 of {result.data.examples} "
        "examples that share no sentence with what heads were chosen on, up to the first refusal: "
        "4 heads (up to 0.0623, 97.5%; fidelity at least 0.9600). On 3,000 sentences without "
        "labels the cosine to the whole model's embeddings is at least 0.9600 (95%; 0.95 was asked "
        "for)."
    )
    assert words in text
    args = ModelCard(text).data.to_dict()["model-index"][0]["results"][0]["metrics"][0]["args"]
    assert (args["refused_heads"], args["sequence_of_heads"]) == ([4], [2, 3, 4, 5])
    assert (args["fidelity_interval"], args["min_fidelity"]) == ([0.96, 0.98], 0.95)
    assert (args["max_drop"], args["examples"]) == (0.05, 120)
    headline = verdict(said)
    assert words in headline
    assert "at most 0.0300 of the cosine is lost (97.5%)" in headline


#: A layer that is whole, one that has lost some heads, and one that has lost all.
REMOVED = [(1, 0), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3)]


@pytest.fixture(scope="module")
def full() -> LoadedModel:
    return headscope.wrap(tiny("bert"))


@pytest.fixture(scope="module")
def path(full: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_graph(headscope.remove_heads(full, REMOVED), path)
    return path


def texts(lengths: Sequence[int]) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(5, 61, length).tolist() for length in lengths]


def run(path: Path, rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Feed rows padded to the longest, as a program without torch would."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    embedding, hidden = session.run(
        ["embedding", "last_hidden_state"], {"input_ids": ids, "attention_mask": mask}
    )
    return embedding, hidden


def test_a_graph_is_the_model_with_gates_of_zero(full, path):
    """No head is removed on this side: the full model runs, text by text, without padding."""
    gates = torch.ones(3, 4)
    for layer, head in REMOVED:
        gates[layer, head] = 0
    for lengths in ((1,), (7,), (40,), (3, 1), (5, 2, 9, 5, 40)):
        rows = texts(lengths)
        embedding, hidden = run(path, rows)
        with gated(full, gates) as ours:
            for i, row in enumerate(rows):
                expected = ours(*full.pad([row]))[0][0].numpy()
                np.testing.assert_allclose(hidden[i, : len(row)], expected, atol=2e-5)
                np.testing.assert_allclose(embedding[i], expected.mean(0), atol=2e-5)


def test_heads_are_gone_from_the_file_and_no_path_of_this_machine_is_there(path):
    """The widths of all maps of attention, read from the file: 4, 2 and 0 heads of 8."""
    graph = onnx.load(path).graph
    onnx.checker.check_model(onnx.load(path))
    widths = [list(tensor.dims) for tensor in graph.initializer if 32 in tensor.dims]
    for heads in (4, 2):
        assert widths.count([32, 8 * heads]) >= 3, widths
    sizes = [[size.dim_param for size in value.type.tensor_type.shape.dim] for value in graph.input]
    assert sizes == [["batch", "length"]] * 2
    content = path.read_bytes()
    assert b".py" not in content
    assert str(Path(headscope.__file__).parent).encode() not in content


def test_what_cannot_be_exported_is_said(full, monkeypatch):
    with pytest.raises(UnsupportedModelError, match="is an encoder-decoder model"):
        check_exportable(headscope.wrap(translator("bart")))
    with pytest.raises(InputError, match="runs in float16; give dtype float32"):
        check_exportable(headscope.wrap(tiny("bert").half()))

    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("this branch\ndepends on data")

    monkeypatch.setattr("torch.export.export", fail)
    with pytest.raises(UnsupportedModelError, match=r"torch says: this branch depends on data$"):
        check_exportable(full)
    need_packages()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "run" in name else name)
    with pytest.raises(InputError, match=r"needs onnxruntime; .*'headscope\[export\]'\.$"):
        need_packages()
