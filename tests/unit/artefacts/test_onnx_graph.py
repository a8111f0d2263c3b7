"""A graph gives what the model gives, and has lost the heads that the model lost."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from families import tiny
from tiny_models import translator

import headscope
from headscope.artefacts.onnx_graph import _varint, check_exportable, write_graph
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel

#: Of a layer that has lost some heads, and of one that has lost all.
REMOVED = [(0, 0), (0, 2), *((1, head) for head in range(4))]


@pytest.fixture(scope="module")
def full() -> LoadedModel:
    return headscope.wrap(tiny("bert", num_hidden_layers=2))


@pytest.fixture(scope="module")
def path(full: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_graph(headscope.remove_heads(full, REMOVED), path)
    return path


def test_a_graph_is_the_model_with_gates_of_zero(full, path):
    """No head is removed on this side: the full model runs, text by text, without padding."""
    gates = torch.ones(2, 4)
    random = np.random.default_rng(0)
    for layer, head in REMOVED:
        gates[layer, head] = 0
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for lengths in ((1,), (40,), (5, 2, 9, 5, 40)):
        rows = [random.integers(5, 61, length).tolist() for length in lengths]
        ids, mask = full.pad(rows)
        embedding, hidden = session.run(
            ["embedding", "last_hidden_state"],
            {"input_ids": ids.numpy(), "attention_mask": mask.numpy()},
        )
        with gated(full, gates) as ours:
            for i, row in enumerate(rows):
                expected = ours(*full.pad([row]))[0][0].numpy()
                np.testing.assert_allclose(hidden[i, : len(row)], expected, atol=2e-5)
                np.testing.assert_allclose(embedding[i], expected.mean(0), atol=2e-5)


def test_heads_are_gone_from_the_file_and_no_path_of_this_machine_is_there(path):
    """W_Q, W_K and W_V of two heads are 16 wide."""
    model = onnx.load(path)
    onnx.checker.check_model(model)
    widths = [list(tensor.dims) for tensor in model.graph.initializer]
    assert widths.count([32, 16]) >= 3, widths
    inputs = [value.type.tensor_type.shape.dim for value in model.graph.input]
    assert [[size.dim_param for size in shape] for shape in inputs] == [["batch", "length"]] * 2
    outputs = [value.type.tensor_type.shape.dim for value in model.graph.output]
    sizes = [[size.dim_param or size.dim_value for size in shape] for shape in outputs]
    assert sizes == [["batch", 32], ["batch", "length", 32]]
    content = path.read_bytes()
    assert b".py" not in content
    assert str(Path(headscope.__file__).parent).encode() not in content


@pytest.mark.parametrize("length", [1, 127, 128, 300, 70_000])
def test_lengths_are_written_as_protobuf_writes_them(length):
    message = onnx.TensorProto(raw_data=b"x" * length).SerializeToString()
    key = message[:1]
    assert message == key + _varint(length) + b"x" * length


def test_a_file_holds_what_it_is_read_as_and_nothing_else(path):
    """A field that a reader skips, or one that is there twice, would change the length."""
    assert len(onnx.load(path).SerializeToString()) == path.stat().st_size


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
