"""From a model in memory to one ONNX graph, for any number of texts of any length, and run again.

The model runs its eager attention while it is written down: plain products and a softmax, which
every onnxruntime knows and fuses on its own. The standard's own ``Attention`` node, which SDPA
becomes, needs opset 23 and was no faster on a CPU.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import InputError, UnsupportedModelError, reason
from headscope.models.run.implementation import quiet_transformers, use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Joined, Select

#: What the graph takes, in this order; the last only where texts are pairs.
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: What it gives: the embedding, or logits where the model has a task head; and the last states.
EMBEDDING = "embedding"
LOGITS = "logits"
HIDDEN = "last_hidden_state"
OPSET = 20
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
        size = sum(parameter.numel() * 4 for parameter in loaded.network.parameters())
        program.save(path, external_data=size > _ONE_FILE)


class _Whole(nn.Module):
    """A model with its pooling or its task head, as tensors in and tensors out."""

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
    """Trace a model on two short texts, one of them padded."""
    ids, mask = loaded.pad([[1] * min(7, loaded.max_length), [1] * 2])
    inputs = (ids, mask, torch.zeros_like(ids)) if typed else (ids, mask)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = dict.fromkeys(INPUTS[: len(inputs)], dynamic)
    with use_implementation(loaded.network, "eager"), torch.no_grad():
        return torch.export.export(
            _Whole(loaded).eval(), inputs, dynamic_shapes=shapes, strict=False
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
            if value.name in names:
                value.name = f"{value.name}.inner"
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape(["batch", "length", *value.shape][: len(value.shape)])


@contextmanager
def _untraceable(loaded: LoadedModel) -> Iterator[None]:
    """Turn whatever tracing raises into one sentence."""
    try:
        yield
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
    # Weights are transposed on the way, and would contradict their stated shapes.
    del model.graph.value_info[:]
    # Those of a layer that has lost all its heads are empty.
    empty = {tensor.name for tensor in model.graph.initializer if 0 in tensor.dims}
    with _quiet():  # the quantiser recommends a step that fuses what a session fuses too
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(_QUANTISED),
            nodes_to_exclude=[n.name for n in model.graph.node if empty.intersection(n.input)],
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={"MatMulConstBOnly": True},
        )


# --- run by onnxruntime ---


class RuntimeFile(ABC):
    """A model in a file that a runtime has opened from disk, called as a loaded model is."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: What its arithmetic may leave of a difference of equal states, as a share of the largest.
    rounding: float = 1e-4

    @abstractmethod
    def run(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return every output by name, on the device of the inputs."""

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        select: Select | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the file as :meth:`LoadedModel.run` runs a model: hidden state and logits.

        ``select`` picks from the logits, since the file's task head has read everything.
        """
        outputs = self.run(input_ids, attention_mask, token_type_ids)
        logits = outputs.get(LOGITS)
        if logits is not None and select is not None and logits.dim() == 3:
            logits = select.of_logits(logits) if isinstance(select, Joined) else select(logits)
        return outputs[HIDDEN], logits

    def feed(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the inputs that the file asks for, as arrays."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        named = dict(zip(INPUTS, (input_ids, attention_mask, types), strict=True))
        return {name: named[name].cpu().numpy() for name in self.inputs}


class Graph(RuntimeFile):
    """One ONNX file, opened from disk in onnxruntime, with as many threads as torch has."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; warnings speak of its own choices
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that wait by spinning take the cores from whoever else runs, torch for one.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return every output by name, on the device of the inputs."""
        arrays = self._session.run(None, self.feed(input_ids, attention_mask, token_type_ids))
        tensors = (torch.from_numpy(array).to(input_ids.device) for array in arrays)
        return dict(zip(self.outputs, tensors, strict=True))
