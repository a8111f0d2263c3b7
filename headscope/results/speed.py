"""How much faster a pruned model runs, beside what its multiplications predict."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GraphTimes", "SpeedResult", "SpeedRow"]


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
