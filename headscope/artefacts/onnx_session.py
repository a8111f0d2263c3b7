"""ONNX graphs: run by onnxruntime on the CPU, called as a loaded model is, timed, described."""

from __future__ import annotations

import json
import statistics
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import ATTENTION, HIDDEN, INPUTS, LOGITS, OPSET
from headscope.artefacts.saving import kept_and_removed, what_is_left, write_manifest
from headscope.models.load.vocabulary_record import VOCABULARY, vocabulary_record
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import quiet_transformers
from headscope.models.run.task_heads import Joined, Select
from headscope.models.run.wrap import origin_of

#: The graphs of a folder, by what their weights are.
FLOAT32, INT8 = "model.onnx", "model.int8.onnx"


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
    """One ONNX file, opened from disk in onnxruntime, with as many threads as torch has.

    ``profile`` notes the time of every node for :meth:`attention_seconds`; such passes are slower.
    """

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
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())

    def run(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return every output by name, on the device of the inputs."""
        arrays = self._session.run(None, self.feed(input_ids, attention_mask, token_type_ids))
        tensors = (torch.from_numpy(array).to(input_ids.device) for array in arrays)
        return dict(zip(self.outputs, tensors, strict=True))

    def attention_seconds(self) -> float:
        """Stop noting times; return the seconds that attention takes in one pass.

        The sum of every node's median over all passes but the first: a pass that was interrupted by
        another program was so at one node.
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


def describe_folder(loaded: LoadedModel, folder: Path, graph: Graph, **record: Any) -> None:
    """Write beside a graph what a program needs to feed it, and where it comes from."""
    with quiet_transformers():
        loaded.network.config.save_pretrained(folder)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(folder)
    attention = [
        {"stack": site.stack, "layer": site.layer, **kept_and_removed(site)}
        for site in (loaded.whole or loaded).sites
    ]
    about = {
        "opset": OPSET,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "pooling": str(loaded.pooling),
        "attention": attention,
        **what_is_left(loaded.whole or loaded),
        VOCABULARY: vocabulary_record(loaded.model),
        "source": origin_of(loaded),
    }
    write_manifest(folder, "onnx", {**about, **record})
