"""How much faster a pruned model runs, beside what its multiplications predict."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SpeedResult", "SpeedRow"]


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
        Median time spent in attention: W_Q, W_K, W_V, softmax(...) V and W_O of all layers.
    attention_ratio, attention_predicted_ratio : float
        pruned / full of those times, and of the multiplications in attention.
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

    @property
    def attention_saving_reached(self) -> float | None:
        """Share of the attention part's predicted saving that was measured; None if none is."""
        predicted = self.attention_predicted_ratio
        return (1 - self.attention_ratio) / (1 - predicted) if predicted < 1 else None


@dataclass(frozen=True)
class SpeedResult:
    """Times of a full and a pruned model, interleaved.

    Attributes
    ----------
    device, dtype : str
        Where and in what both ran.
    threads : int
        What torch computed with.
    implementation : str
        The attention of transformers that both ran: what a user of the model runs.
    heads_full, heads_pruned, parameters_full, parameters_pruned : int
        Of the two models.
    rows : tuple of SpeedRow
        One for each shape of input.
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
