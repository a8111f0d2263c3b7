"""A graph gives what the model gives, and has lost the heads that the model lost."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from families import tiny
from tiny_models import translator

import headscope
from headscope.artefacts.onnx_graph import check_exportable, write_graph
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel

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
