"""``prune --export onnx``: the folder, what it is worth, and what is refused."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from huggingface_hub import ModelCard
from outcomes import Command, refused
from rich.console import Console
from tiny_models import tiny_bert
from tokenizers import Tokenizer

from headscope.artefacts.onnx_graph import write_graph
from headscope.core.serialise import from_dict
from headscope.models.loaded import LoadedModel
from headscope.pruning.result import PruneResult
from headscope.pruning.speed import benchmark
from headscope.pruning.view import VIEW, blocks
from headscope.show.blocks import Text
from headscope.show.style import FigureStyle, styled

TEXTS = [
    ("the cat sat on the mat", "a dog ran"),
    ("the big cat", "he saw it was red and she ran to the house"),
    ("she sat", "on the mat"),
    ("it is a red house", "the dog is big"),
    ("he ran", "she ran"),
    ("of the cat and the dog", "it was in the house on the big mat"),
] * 8


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that classifies pairs, and pairs."""
    room = tmp_path_factory.mktemp("export")
    tiny_bert(room / "model", layers=2, heads=4, seed=3, task_head="classification")
    path = room / "model" / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    lines = "".join(f"{a}\t{b}\t{i % 2}\n" for i, (a, b) in enumerate(TEXTS))
    (room / "pairs.tsv").write_text(lines, encoding="utf-8")
    return room


def words(room: Path, folder: str, *more: str) -> list[str]:
    return [
        *("prune", str(room / "model"), "--task", "classification"),
        *("--data", str(room / "pairs.tsv"), "--heads", "L0H1,L0H2,L1H0"),
        *("--no-roles", "--no-validate", "--export", "onnx", str(room / folder), *more),
    ]


@pytest.fixture(scope="module")
def exported(room: Path, run: Command) -> Any:
    """One run with everything: the graph, 8 bits and the benchmark.

    The full model's graph, which is there to be timed only, is a copy of the pruned one's here.
    """
    written: list[bytes] = []

    def write_once(loaded: LoadedModel, path: Path, **more: Any) -> None:
        if not written:
            write_graph(loaded, path, **more)
            written.append(path.read_bytes())
        path.write_bytes(written[0])

    with pytest.MonkeyPatch.context() as patch:
        parts = "headscope.pruning"
        quick = partial(benchmark, lengths=(8, 32), batch_sizes=(2,))
        patch.setattr(f"{parts}.keep.benchmark", quick)
        patch.setattr(f"{parts}.speed._SECONDS", 0.0)
        patch.setattr(f"{parts}.export.write_graph", write_once)
        more = ("--quantize", "int8", "--benchmark", "-o", str(room / "out"))
        assert run(*words(room, "graph", *more)).code == 0
    return json.loads((room / "out" / "prune.json").read_text(encoding="utf-8"))


def predicted(room: Path, file: str) -> np.ndarray:
    """Classify with onnxruntime and tokenizers alone."""
    tokenizer = Tokenizer.from_file(str(room / "graph" / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(TEXTS)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    feed = {name: np.array([getattr(e, at) for e in encoded]) for name, at in columns.items()}
    session = onnxruntime.InferenceSession(str(room / "graph" / file))
    logits: np.ndarray = session.run(["logits"], feed)[0]
    return logits


def test_the_folder_runs_without_headscope(room, exported):
    gold = np.arange(len(TEXTS)) % 2
    for found in exported["exported"]:
        right = predicted(room, found["file"]).argmax(1) == gold
        assert found["measured"] == pytest.approx(100 * right.mean())
        assert found["size"] == (room / "graph" / found["file"]).stat().st_size
    exact, small = exported["exported"]
    assert (exact["weights"], small["weights"]) == ("float32", "int8")
    assert exact["max_difference"] < 1e-4
    assert exact["value"] == exported["curves"][0]["points"][-1]["value"]
    assert exact["measured"] == pytest.approx(exact["value"])
    assert exact["difference"] is None
    assert small["difference"] == pytest.approx(small["measured"] - exact["measured"])
    manifest = json.loads((room / "graph" / "headscope.json").read_text(encoding="utf-8"))
    assert manifest["form"] == "onnx"
    assert manifest["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [entry["kept"] for entry in manifest["attention"]] == [[0, 3], [1, 2, 3]]
    card = ModelCard.load(room / "graph" / "README.md")
    assert card.data.library_name == "onnx"
    assert "`model.int8.onnx`: int8 weights" in card.text


def test_graphs_are_timed_beside_the_models(exported):
    speed = exported["speed"]
    assert speed["onnxruntime"] == onnxruntime.__version__
    for row in speed["rows"]:
        times = row["onnx"]
        assert times["ratio"] == pytest.approx(times["pruned_ms"] / times["full_ms"])
        assert times["int8_ms"] > 0
        assert 0 < times["attention_full_ms"] < 20 * times["full_ms"]


def test_results_show_the_graphs(room, exported, run):
    result = from_dict(PruneResult, exported)
    page = io.StringIO()
    with styled(FigureStyle(), verbose=True):
        Console(file=page, width=200).print(*VIEW.human(result))
    small = result.exported[1]
    said = f"{small.measured:.2f}, {small.difference:+.2f} against float32 (95% interval"
    assert said in " ".join(page.getvalue().split()), page.getvalue()  # paths wrap it anywhere
    assert "model.int8.onnx" in " ".join(
        block.text for block in blocks(result) if isinstance(block, Text)
    )
    refused(run("validate", room / "graph"), "holds an ONNX graph")


def test_a_graph_that_differs_is_refused(room, exported, run, monkeypatch):
    """The folder of other heads' graph is what is written here."""
    other = (room / "graph" / "model.onnx").read_bytes()
    parts = "headscope.pruning"
    monkeypatch.setattr(f"{parts}.run.check_exportable", lambda _: None)
    monkeypatch.setattr(f"{parts}.export.write_graph", lambda _, p, **o: p.write_bytes(other))
    arguments = [w.replace("L0H1", "L0H0") for w in words(room, "new")]
    found = run(*arguments)
    assert found.code == 1
    assert "differs from the pruned model" in found.stderr
    assert found.stderr.count("\n") == 1
    assert not (room / "new").exists()
    assert run(*words(room, "new")).code == 0, "the same file is right for its own heads"
    assert (room / "new" / "model.onnx").is_file()


def test_a_masked_model_without_labels(run, tmp_path):
    """In torch one run of the head reads both models' states; a graph has run its own already."""
    model = tiny_bert(tmp_path / "model", task_head="mlm")
    (tmp_path / "lines.txt").write_text("".join(f"{a}\n{b}\n" for a, b in TEXTS[:4]))
    data = ("--data", tmp_path / "lines.txt", "--heads", "L0H1,L1H0", "--no-roles")
    found = run("prune", model, *data, "--export", "onnx", tmp_path / "graph", "--format", "json")
    assert found.code == 0, found.stderr
    (graph,) = json.loads(found.stdout)["exported"]
    assert graph["measured"] == pytest.approx(graph["value"], abs=1e-4)
    assert graph["max_difference"] < 1e-4


def test_without_the_extra(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = run("prune", "nowhere", "--heads", "L0H0", "--export", "onnx", "graph")
    refused(found, "pip install 'headscope[export]'")
