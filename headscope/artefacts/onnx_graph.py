"""From a model in memory to one ONNX graph, for any number of texts of any length.

:func:`write_graph` writes one, :func:`quantize` writes it again in 8 bits.

The model runs its eager attention while it is written down: plain products and a softmax, which
every onnxruntime knows and fuses on its own. The standard's own ``Attention`` node, which SDPA
becomes, needs opset 23 and was no faster on a CPU. :mod:`~headscope.artefacts.runtime_files` opens
such a file again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.disk import writing
from headscope.core.errors import InputError, UnsupportedModelError, UnwrittenError, reason
from headscope.models.run.implementation import quiet_transformers, use_implementation
from headscope.models.run.loaded import LoadedModel

#: The graph's inputs, in this order; the last only where texts are pairs.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: Its outputs: the embedding, or the logits where the model has a task head; then the last states.
EMBEDDING = "embedding"
LOGITS = "logits"
HIDDEN = "last_hidden_state"
OPSET = 20  # Version of ONNX's operators
#: Nodes whose weights become 8-bit integers: linear maps, and the tables that are looked up.
_QUANTISED = ("MatMul", "Gemm", "Gather")
#: Largest file that the format holds in one piece, with room for the graph itself.
_ONE_FILE = (2 << 30) - (64 << 20)


def check_exportable(loaded: LoadedModel) -> None:
    """Refuse a model that no graph can be made of; to be asked before a long run."""
    if loaded.encoder_decoder:
        raise UnsupportedModelError(
            f"{loaded.name} is an encoder-decoder model; export writes models that read a text in "
            "one pass, and decoding takes many."
        )
    if loaded.dtype != "float32":
        raise InputError(
            f"export compares with a model in float32, and {loaded.name} runs in {loaded.dtype}; "
            "give dtype float32."
        )
    with _untraceable(loaded), _quiet():
        _traced(loaded, typed=False)


def write_graph(loaded: LoadedModel, path: Path, *, typed: bool = False) -> None:
    """Write a model as one ONNX file; weights lie beside it only where 2 GB are too few.

    ``typed`` lets the graph take ``token_type_ids`` too, for pairs of texts.
    """
    with _untraceable(loaded), _quiet():
        program = torch.onnx.export(
            _traced(loaded, typed), dynamo=True, opset_version=OPSET, verbose=False
        )
        assert program is not None
        _name_outputs(program.model, loaded)
        n_bytes = sum(4 * parameter.numel() for parameter in loaded.network.parameters())
        with writing(path):
            if n_bytes > _ONE_FILE:
                program.save(path, external_data=True)
            else:
                _save_in_one_file(program.model, path)


def _save_in_one_file(model: Any, path: Path) -> None:
    """Write a graph and its weights into one file, with one weight in memory at a time.

    ``onnx_ir.save`` would hold all weights twice more: as one message, and as the bytes of it. A
    message is its fields, one after the other and in any order. So here the graph without weights
    comes first, and each weight follows as one more field of the graph.
    """
    import onnx
    from onnx_ir import serde

    def field(weight: Any) -> onnx.GraphProto:
        weight.const_value.name = weight.name
        graph = onnx.GraphProto()
        serde.serialize_tensor_into(graph.initializer.add(), weight.const_value)
        return graph

    weights = list(model.graph.initializers.values())
    model.graph.initializers.clear()
    message = serde.serialize_model(model)
    graph = message.graph.SerializeToString()
    message.ClearField("graph")
    n_bytes = len(graph) + sum(field(weight).ByteSize() for weight in weights)
    with path.open("wb") as file:
        file.write(message.SerializeToString())
        # The field's number and its kind, a message that begins with its length.
        file.write(_varint(onnx.ModelProto.GRAPH_FIELD_NUMBER << 3 | 2) + _varint(n_bytes))
        file.write(graph)
        for weight in weights:
            file.write(field(weight).SerializeToString())


def _varint(number: int) -> bytes:
    """Write a number as protobuf does: 7 bits a byte, the lowest first, a bit says more follow."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


class _WithOutputs(nn.Module):
    """A model with its pooling or its task head as one module, from token ids to two tensors."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.network = loaded.network
        self._loaded = loaded

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        hidden, logits = self._loaded.run(input_ids, attention_mask, token_type_ids)
        if logits is not None:
            return logits, hidden
        return self._loaded.pooling.embed(hidden, attention_mask), hidden


def _traced(loaded: LoadedModel, typed: bool) -> torch.export.ExportedProgram:
    """Trace a model on two short texts, one of them padded; batch and length may then vary."""
    ids, mask = loaded.pad([[1] * min(7, loaded.max_length), [1] * 2])
    inputs = (ids, mask, torch.zeros_like(ids)) if typed else (ids, mask)
    any_batch_and_length = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = dict.fromkeys(INPUTS[: len(inputs)], any_batch_and_length)
    with use_implementation(loaded.network, "eager"), torch.no_grad():
        return torch.export.export(
            _WithOutputs(loaded).eval(), inputs, dynamic_shapes=shapes, strict=False
        )


def _name_outputs(model: Any, loaded: LoadedModel) -> None:
    """Name outputs and dynamic sizes.

    The exporter's other notes of each node, such as lines of source code with the paths of the
    machine, are left out of the file.
    """
    import onnx_ir

    first_output = EMBEDDING if loaded.task_head is None else LOGITS
    names = (first_output, HIDDEN)
    for node in model.graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            if value.name in names:  # which the outputs are to have
                value.name = f"{value.name}.inner"
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
    for value in model.graph.inputs:
        value.shape = onnx_ir.Shape(["batch", "length"])
    for value in model.graph.outputs:
        width = value.shape[-1]
        per_text = len(value.shape) == 2  # an embedding, or the logits of a text
        dynamic = ["batch"] if per_text else ["batch", "length"]
        value.shape = onnx_ir.Shape([*dynamic, width])


@contextmanager
def _untraceable(loaded: LoadedModel) -> Iterator[None]:
    """Turn whatever tracing raises into an UnsupportedModelError of one sentence."""
    try:
        yield
    except UnwrittenError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) cannot be written as an ONNX graph; torch says: "
            f"{reason(error.__cause__ or error)}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the remarks of exporter and quantiser off the user's terminal."""
    names = ("torch.onnx", "torch.export", "torch.__trace", "onnxscript", None)
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), quiet_transformers():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def quantize(path: Path, target: Path) -> None:
    """Write a graph again, its weights as int8 and its activations rounded while it runs.

    Every output column of a linear map has a scale of its own; products of two activations, such as
    scores and pattern v, stay in float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # The quantiser transposes weights, and would contradict the shapes that are stated here.
    del model.graph.value_info[:]
    # The maps of a layer that has lost all its heads have empty weights, which it cannot take.
    empty_weights = {tensor.name for tensor in model.graph.initializer if 0 in tensor.dims}
    with_empty_weights = [
        node.name for node in model.graph.node if empty_weights.intersection(node.input)
    ]
    with _quiet():  # the quantiser recommends a step that fuses what a session fuses too
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(_QUANTISED),
            nodes_to_exclude=with_empty_weights,
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={"MatMulConstBOnly": True},  # no products of two activations
        )
