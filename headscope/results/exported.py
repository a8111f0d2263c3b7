"""A pruned model that was written as an ONNX graph, as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExportedModel"]


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
