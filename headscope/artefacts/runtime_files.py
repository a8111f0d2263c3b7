"""A model in a file that another runtime opens from disk: onnxruntime or openvino.

A :class:`RuntimeFile` is called with the arguments of :meth:`LoadedModel.run` and returns the same
things, the last hidden state and the logits, so that both are measured by the same code.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import HIDDEN, INPUTS, LOGITS
from headscope.core.errors import UnsupportedModelError
from headscope.models.run.task_heads import InSlices, Joined, Select

BFLOAT16 = 2.0**-8  # Largest relative error of rounding to bfloat16


class RuntimeFile(ABC):
    """A model in a file that a runtime has opened from disk, called as a loaded model is run."""

    inputs: tuple[str, ...]  # Names of the inputs that the file takes
    outputs: tuple[str, ...]  # Names of its outputs
    #: Up to this share of the largest state, two states count as equal but for rounding.
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
        select: Select | InSlices | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the file as :meth:`LoadedModel.run` runs a model: last hidden state and logits.

        There ``select`` picks the tokens whose states the task head reads. The head in a file has
        read all of them, so here it picks from the logits of every token.
        """
        outputs = self.run(input_ids, attention_mask, token_type_ids)
        hidden = outputs[HIDDEN]
        logits = outputs.get(LOGITS)  # None without a task head
        if logits is None or select is None:
            return hidden, logits
        of_tokens = logits.dim() == 3  # [texts, pos, classes]
        if not of_tokens:
            return hidden, logits
        # One reads the logits, the other adds those of another model.
        if isinstance(select, InSlices | Joined):
            return hidden, select.of_logits(logits)
        return hidden, select(logits)

    def feed(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the inputs that the file takes, as arrays by name."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        named = dict(zip(INPUTS, (input_ids, attention_mask, types), strict=True))
        return {name: named[name].cpu().numpy() for name in self.inputs}


class OnnxFile(RuntimeFile):
    """One ONNX file, opened from disk in onnxruntime, with as many threads as torch has."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that wait by spinning would take the cores from torch, which runs in turns.
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


class OpenVinoFile(RuntimeFile):
    """One OpenVINO file, with as many threads as torch has.

    By default openvino computes in bfloat16 on processors that multiply it, whatever the file
    holds. ``precision`` float32 tells it not to; bfloat16 is refused where it would not.
    """

    def __init__(self, path: Path, precision: str) -> None:
        openvino = without_telemetry("openvino")
        config = {"INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
        if precision == "float32":
            config["INFERENCE_PRECISION_HINT"] = "f32"
        self._compiled = openvino.Core().compile_model(str(path), "CPU", config)
        self.inputs = tuple(port.get_any_name() for port in self._compiled.inputs)
        self.outputs = tuple(port.get_any_name() for port in self._compiled.outputs)
        used = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if used == "bf16":
            self.rounding = 4 * BFLOAT16
        if precision == "bfloat16" and used != "bf16":
            raise UnsupportedModelError(
                "openvino computes in float32 on this processor, which does not multiply bfloat16."
            )

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return every output by name."""
        outputs = self._compiled(self.feed(input_ids, attention_mask, token_type_ids))
        return {name: torch.from_numpy(np.array(outputs[name])) for name in self.outputs}


def without_telemetry(name: str) -> Any:
    """Import openvino or nncf without their reports of each use to a server.

    They report from processes that they fork while other threads run, and such a process may wait
    for ever. Both work without the package that reports.
    """
    # None in place of a module makes its import fail
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module(name)
