"""A graph gives what the model gives that it was made of, whatever is fed to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tiny_families import tiny
from tiny_translators import translator

import headscope
from headscope.errors import InputError, UnsupportedModelError
from headscope.models.gating import gated
from headscope.models.loaded import LoadedModel
from headscope.models.onnx.graph import check_exportable, need_packages, write_graph
from headscope.models.onnx.quantisation import quantize
from headscope.models.onnx.session import Graph

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


def test_a_graph_is_the_model_with_gates_of_zero(full: LoadedModel, path: Path) -> None:
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


def test_heads_are_gone_from_the_file_and_no_path_of_this_machine_is_there(path: Path) -> None:
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


def test_quantized_graphs_are_smaller_and_near(path: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    quantize(path, small)
    assert small.stat().st_size < path.stat().st_size
    weights = [tensor.data_type for tensor in onnx.load(small).graph.initializer]
    assert weights.count(onnx.TensorProto.INT8) > 10
    rows = texts((5, 9, 20))
    (near, _), (exact, _) = run(small, rows), run(path, rows)
    assert 0 < abs(near - exact).max() < 0.3
    assert np.corrcoef(near.ravel(), exact.ravel())[0, 1] > 0.99


def test_the_profile_is_of_attention(path: Path) -> None:
    graph = Graph(path, profile=True)
    ids = torch.randint(5, 61, (2, 30))
    for _ in range(5):
        hidden, logits = graph(ids, torch.ones_like(ids))
    assert hidden.shape == (2, 30, 32)
    assert logits is None
    assert 0 < graph.attention_seconds() < 1
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]


def test_what_cannot_be_exported_is_said(
    full: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
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
