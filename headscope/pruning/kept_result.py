"""The pruned model that ``headscope prune`` keeps, and the folders it is written to, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "Candidate",
    "FailedArtefact",
    "KeptModel",
    "SavedModel",
    "GraphTimes",
    "SpeedResult",
    "SpeedRow",
    "ExportedModel",
]


@dataclass(frozen=True)
class Candidate:
    """A model that may be kept."""

    method: str  # How it was made.
    repair: str
    value: float  # The metric that it earns on the *calibration* data


@dataclass(frozen=True)
class KeptModel:
    """The one pruned model that is saved and timed."""

    method: str  # Never a control such as random heads.
    repair: str
    fraction: float  # Share of the model's heads that it lost
    #: The task's metric: a point of the curve of that method and repair, so with ``max_drop`` on
    #: the confirming half of the evaluation data, else on all of them.
    value: float
    #: All that might have been kept; the first of the best on the calibration data is. Empty where
    #: there was one only, which nothing had to be measured for.
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class SavedModel:
    """A model that was written: where, which heads it lost, and what it is worth."""

    folder: str  # Where it was written
    form: str  # ``compact``: heads removed for real; ``dense``: zeros where they were
    method: str  # How it was made.
    repair: str
    heads_removed: tuple[tuple[Any, ...], ...]  # (layer, head): Sorted, zero-based
    fraction: float | None = None  # None in results of earlier versions, as the next three
    value: float | None = None  # What the curve says that the model is worth
    #: What the folder is worth, loaded again from disk, on the same data. A rank correlation or a
    #: rate may differ a little from ``value``: outputs that differ by rounding can swap a tie.
    measured: float | None = None
    #: What opens it besides headscope: ``import headscope`` before transformers,
    #: ``trust_remote_code`` or ``transformers`` alone.
    opens: str | None = None
    #: Largest difference of any output to the measured model's, on all evaluation data.
    max_difference: float | None = None


@dataclass(frozen=True)
class FailedArtefact:
    """Something that was asked for beside the numbers and could not be made."""

    #: What asked for it: ``save``, ``save_dense``, ``export`` or ``benchmark``; ``card`` for the
    #: speed that cards of a run without a benchmark name.
    option: str
    folder: str | None  # Where it should have been written; nothing of it is there
    reason: str  # One sentence


@dataclass(frozen=True)
class GraphTimes:
    """The same input through the models as ONNX graphs, in turns with the models themselves."""

    full_ms: float  # Median time of a whole pass in onnxruntime, milliseconds.
    pruned_ms: float
    int8_ms: float | None  # Of the pruned graph with weights of 8 bits, if there is one
    ratio: float  # pruned / full
    #: Of the graphs' nodes that belong to attention, by onnxruntime's own profile.
    attention_full_ms: float
    attention_pruned_ms: float
    attention_ratio: float


@dataclass(frozen=True)
class SpeedRow:
    """One shape of input: median times of both models, side by side in one run."""

    length: int  # Tokens of each sequence, nothing padded; sequences.
    batch_size: int
    repeats: int  # Passes of each model
    full_ms: float  # Median time of a whole forward pass, milliseconds.
    pruned_ms: float
    ratio: float  # pruned / full: of the times, and of the multiplications.
    predicted_ratio: float
    #: Time spent in attention: W_Q, W_K, W_V, softmax(...) V and W_O, the median of each layer
    #: added up.
    attention_full_ms: float
    attention_pruned_ms: float
    attention_ratio: float  # pruned / full of those times, and of the multiplications in attention.
    attention_predicted_ratio: float
    onnx: GraphTimes | None = None  # The same in onnxruntime, where a graph was exported

    @property
    def attention_saving_reached(self) -> float | None:
        """Share of the attention part's predicted saving that was measured; None if none is."""
        return self._reached(self.attention_ratio)

    @property
    def onnx_saving_reached(self) -> float | None:
        """The same in onnxruntime; None too where no graph was exported."""
        return None if self.onnx is None else self._reached(self.onnx.attention_ratio)

    def _reached(self, ratio: float) -> float | None:
        predicted = self.attention_predicted_ratio
        return (1 - ratio) / (1 - predicted) if predicted < 1 else None


@dataclass(frozen=True)
class SpeedResult:
    """Times of a full and a pruned model, interleaved."""

    device: str  # Where and in what both ran.
    dtype: str
    threads: int  # What torch, and onnxruntime, computed with
    #: The attention of transformers that both ran: what a user of the model runs.
    implementation: str
    heads_full: int  # Of the two models.
    heads_pruned: int
    parameters_full: int
    parameters_pruned: int
    rows: tuple[SpeedRow, ...]  # One for each shape of input
    #: Version of the program that ran the graphs; None where there are none.
    onnxruntime: str | None = None


@dataclass(frozen=True)
class ExportedModel:
    """A graph that was written, opened in onnxruntime and measured there."""

    folder: str  # Where it was written, and the name of the graph in there.
    file: str
    weights: str  # ``float32`` or ``int8``
    method: str  # How the model was made.
    repair: str
    size: int  # Bytes of the graph, with any weights that lie beside it
    inputs: tuple[str, ...]  # What the graph takes and gives, by name.
    outputs: tuple[str, ...]
    opset: int  # Version of the ONNX standard
    onnxruntime: str  # Version of the program that ran it
    texts: int  # How many texts it was compared with the pruned torch model on
    #: Largest absolute difference of any output to that model's, at real tokens.
    max_difference: float
    value: float  # The task's metric of the pruned torch model, as its curve has it
    measured: float  # The same of the graph, run by onnxruntime on the same data
    #: For int8: the metric minus that of the graph in float32, with its paired 95% interval.
    difference: float | None = None
    difference_ci: tuple[float, ...] | None = None
