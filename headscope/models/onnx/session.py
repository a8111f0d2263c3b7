"""Graphs at work: onnxruntime on the CPU, called as a loaded model is, and its profiles."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.models.onnx.graph import ATTENTION, HIDDEN, INPUTS, LOGITS
from headscope.models.task_heads import Joined, Select

__all__ = ["Graph", "runtime_version"]


class Graph:
    """One ONNX file, opened from disk in onnxruntime, with as many threads as torch has."""

    def __init__(self, path: Path, *, profile: bool = False) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; warnings speak of its own choices
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that wait by spinning take the cores from whoever else runs, torch for one.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_profiling = profile
        options.profile_file_prefix = str(path.with_suffix(""))
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = tuple(given.name for given in self._session.get_inputs())
        self.outputs = tuple(found.name for found in self._session.get_outputs())

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        select: Select | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the graph as :meth:`LoadedModel.run` runs a model: hidden state and logits.

        ``select`` picks from the logits, since the graph's task head has read everything.
        """
        found = self.run(input_ids, attention_mask, token_type_ids)
        logits = found.get(LOGITS)
        if logits is not None and select is not None and logits.dim() == 3:
            logits = select.of_logits(logits) if isinstance(select, Joined) else select(logits)
        return found[HIDDEN], logits

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return every output by name, on the device of the inputs."""
        found = self._session.run(None, self.feed(input_ids, attention_mask, token_type_ids))
        tensors = (torch.from_numpy(array).to(input_ids.device) for array in found)
        return dict(zip(self.outputs, tensors, strict=True))

    def feed(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Any]:
        """Return inputs as onnxruntime takes them."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = (input_ids, attention_mask, types)
        named = dict(zip(INPUTS, given, strict=True))
        return {name: named[name].cpu().numpy() for name in self.inputs}

    def attention_seconds(self) -> float:
        """Stop noting times; return the seconds of one pass's attention, all passes but the first.

        Of every node the median is taken, then their sum: a pass that was interrupted by another
        program was so at one node.
        """
        path = Path(self._session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        times: dict[str, list[float]] = {}
        for event in sorted(events, key=lambda event: event["ts"]):
            if event["cat"] == "Node" and event["name"].startswith(ATTENTION):
                times.setdefault(event["name"], []).append(event["dur"] / 1e6)
        return sum(statistics.median(spent[1:]) for spent in times.values())


def runtime_version() -> str:
    """Return the version of onnxruntime."""
    import onnxruntime

    return str(onnxruntime.__version__)
