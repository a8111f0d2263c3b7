"""Graphs with weights of 8 bits: a quarter of the file, and whole-number products."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

__all__ = ["quantize"]

#: Nodes whose weights become 8-bit integers: linear maps, and the tables that are looked up.
_NODES = ("MatMul", "Gemm", "Gather")


def quantize(path: Path, target: Path) -> None:
    """Write a graph again, its weights as int8 and its activations rounded while it runs.

    Every output column of a linear map has a scale of its own; products of two activations, such as
    scores and pattern v, stay in float32.

    Parameters
    ----------
    path : Path
        The graph in float32.
    target : Path
        The file to write.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it recommends a step that fuses what a session fuses too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantize_dynamic(
                path,
                target,
                op_types_to_quantize=list(_NODES),
                weight_type=QuantType.QInt8,
                per_channel=True,
                extra_options={"MatMulConstBOnly": True},
            )
    finally:
        logger.setLevel(level)
