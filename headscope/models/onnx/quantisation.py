"""Graphs with weights of 8 bits: a quarter of the file, and whole-number products."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

__all__ = ["quantize"]

#: Nodes whose weights become 8-bit integers: linear maps, and the tables that are looked up.
_NODES = ("MatMul", "Gemm", "Gather")


def quantize(path: Path, target: Path) -> None:
    """Write a graph again, its weights as int8 and its activations rounded while it runs.

    Every output column of a linear map has a scale of its own; products of two activations, such as
    scores and pattern v, stay in float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # Weights are stored the other way round on the way, and would contradict their stated shapes.
    del model.graph.value_info[:]
    logger = logging.getLogger()
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it recommends a step that fuses what a session fuses too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantize_dynamic(
                model,
                target,
                op_types_to_quantize=list(_NODES),
                nodes_to_exclude=_without_weights(model.graph),
                weight_type=QuantType.QInt8,
                per_channel=True,
                extra_options={"MatMulConstBOnly": True},
            )
    finally:
        logger.setLevel(level)


def _without_weights(graph: Any) -> list[str]:
    """List nodes whose weights are empty, as those of a layer that has lost all its heads."""
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    return [node.name for node in graph.node if empty.intersection(node.input)]
