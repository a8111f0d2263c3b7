"""How much faster a pruned model runs, beside what its multiplications predict."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GraphTimes", "SpeedResult", "SpeedRow"]


@dataclass(frozen=True)
class GraphTimes:
    """The same input through the models as ONNX graphs, in turns with the models themselves.

    Attributes
    ----------
    full_ms, pruned_ms : float
        Median time of a whole pass in onnxruntime, milliseconds.
    int8_ms : float or None
        Of the pruned graph with weights of 8 bits, if there is one.
    ratio : float
        pruned / full.
    attention_full_ms, attention_pruned_ms, attention_ratio : float
        Of the graphs' nodes that belong to attention, by onnxruntime's own profile.
    """

    full_ms: float
    pruned_ms: float
    int8_ms: float | None
    ratio: float
    attention_full_ms: float
    attention_pruned_ms: float
    attention_ratio: float


@dataclass(frozen=True)
class SpeedRow:
    """One shape of input: median times of both models, side by side in one run.

    Attributes
    ----------
    length, batch_size : int
        Tokens of each sequence, nothing padded; sequences.
    repeats : int
        Passes of each model.
    full_ms, pruned_ms : float
        Median time of a whole forward pass, milliseconds.
    ratio, predicted_ratio : float
        pruned / full: of the times, and of the multiplications.
    attention_full_ms, attention_pruned_ms : float
        Time spent in attention: W_Q, W_K, W_V, softmax(...) V and W_O, the median of each layer
        added up.
    attention_ratio, attention_predicted_ratio : float
        pruned / full of those times, and of the multiplications in attention.
    onnx : GraphTimes or None
        The same in onnxruntime, where a graph was exported.
    """

    length: int
    batch_size: int
    repeats: int
    full_ms: float
    pruned_ms: float
    ratio: float
    predicted_ratio: float
    attention_full_ms: float
    attention_pruned_ms: float
    attention_ratio: float
    attention_predicted_ratio: float
    onnx: GraphTimes | None = None

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
    """Times of a full and a pruned model, interleaved.

    Attributes
    ----------
    device, dtype : str
        Where and in what both ran.
    threads : int
        What torch, and onnxruntime, computed with.
    implementation : str
        The attention of transformers that both ran: what a user of the model runs.
    heads_full, heads_pruned, parameters_full, parameters_pruned : int
        Of the two models.
    rows : tuple of SpeedRow
        One for each shape of input.
    onnxruntime : str or None
        Version of the program that ran the graphs; None where there are none.
    """

    device: str
    dtype: str
    threads: int
    implementation: str
    heads_full: int
    heads_pruned: int
    parameters_full: int
    parameters_pruned: int
    rows: tuple[SpeedRow, ...]
    onnxruntime: str | None = None
