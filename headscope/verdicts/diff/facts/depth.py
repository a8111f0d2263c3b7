"""The facts of ``headscope depth``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, repeat

from headscope.results.depth import DepthCurves, DepthResult
from headscope.verdicts.diff.facts.fact import Facts, Number, Z


def collect(result: DepthResult, facts: Facts) -> None:
    """Add the curves of the model and of random weights."""
    _curves(result, "", result.sequences, facts)
    if result.control is not None:
        _curves(result.control, "random weights: ", result.sequences, facts)


def settings(result: DepthResult) -> dict[str, object]:
    """Return the windows, and where the model has its LayerNorm."""
    return {"length": result.length, "sequences": result.sequences, "LayerNorm": result.layer_norm}


def _curves(curves: DepthCurves, prefix: str, windows: int, facts: Facts) -> None:
    bare = "attention without layernorm"
    means = {**curves.variants, bare: curves.attention_without_layernorm}
    stds = {**curves.std, bare: curves.attention_without_layernorm_std}
    for variant, mean in means.items():
        halves = chain((_half(std, windows) for std in stds.get(variant, ())), repeat(None))
        ratio = _named(Number.around(*pair) for pair in zip(mean, halves, strict=False))
        facts.curve(prefix + variant, "ratio", ratio)
    for part in curves.protected:
        rows = zip(part.mean, part.low, part.high, strict=False)
        share = _named(Number.within(value, (low, high)) for value, low, high in rows)
        facts.curve(f"{prefix}{part.part} {part.way}", "share protected", share)
    for variant, layers in curves.collapsed_after.items():
        text = "never" if layers is None else f"{layers} layers"
        facts.text(prefix + variant, "collapsed after", text)


def _half(std: float | None, windows: int) -> float | None:
    return None if std is None or windows < 2 else Z * std / math.sqrt(windows)


def _named(points: Iterable[Number]) -> dict[str, Number]:
    """Name each point of a curve: the embeddings, then the layers."""
    return {f"L{i - 1}" if i else "embeddings": point for i, point in enumerate(points)}
