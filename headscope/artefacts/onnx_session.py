"""ONNX graphs, run by onnxruntime on the CPU and called as a loaded model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import HIDDEN, INPUTS, LOGITS
from headscope.models.run.task_heads import Joined, Select


class RuntimeFile(ABC):
    """A model in a file that a runtime has opened from disk, called as a loaded model is."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

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
