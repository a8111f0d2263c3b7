"""Claim 7: attention alone collapses; what prevents it."""

from __future__ import annotations

import math

import numpy as np

from headscope.measures.insights.claims import concluded, not_measured
from headscope.measures.insights.thresholds import InsightThresholds
from headscope.measures.statistics import Z95
from headscope.results import DepthCurves, DepthResult, Insight
from headscope.results.depth import Curve

__all__ = ["judge_collapse", "log_linear"]


def judge_collapse(depth: DepthResult | None, thresholds: InsightThresholds) -> Insight:
    """Decide claim 7 by the residual's curves: attention alone, with skip, without LayerNorm."""
    t = thresholds
    rule = (
        f"Holds if attention alone falls below {t.collapsed:.0%} of its start, log-linearly "
        f"(R^2 above {t.log_linear:g}), with its skip connection it stays above, and leaving out "
        f"LayerNorm changes the attention-only curve by less than {t.layernorm_change:g} of its "
        "start everywhere (95% intervals over windows); does not hold if attention alone stays "
        "above."
    )
    if depth is None:
        return not_measured(7, rule, "depth was not part of this run")
    alone, skip = (_last(depth, name) for name in ("attention", "attention+skip"))
    falls = None if alone is None else _below(*alone, t.collapsed)
    keeps = None if skip is None else _above(*skip, t.collapsed)
    fit = log_linear(depth.variants["attention"], depth.floor)
    change = _change(depth)
    straight = None if fit is None else fit > t.log_linear
    indifferent = None if change is None else change < t.layernorm_change
    values: dict[str, object] = {
        "attention": _end(depth, "attention"),
        "attention_with_ffn": _end(depth, "attention+ffn"),
        "attention_with_skip": _end(depth, "attention+skip"),
        "full": _end(depth, "full"),
        "collapsed_after": depth.collapsed_after["attention"],
        "log_linear_r2": fit,
        "layernorm_change": change,
        "control": None if depth.control is None else _end(depth.control, "attention"),
    }
    return concluded(
        7, [falls, straight, keeps, indifferent], _measured(depth, values), _control(depth), rule,
        values, refuted=falls is False,
    )  # fmt: skip


def log_linear(curve: Curve, floor: float) -> float | None:
    """Return R^2 of ln(ratio) against depth, down to rounding; None from fewer than 3 points."""
    points = [(i, math.log(v)) for i, v in enumerate(curve) if v is not None and v > floor]
    if len(points) < 3:
        return None
    depth, logs = np.array(points).T
    if np.ptp(logs) == 0:
        return 0.0
    return float(np.corrcoef(depth, logs)[0, 1] ** 2)


def _last(depth: DepthResult, name: str) -> tuple[float, float] | None:
    """Last ratio as a share of the first, and half of its 95% interval."""
    first, last, spread = depth.variants[name][0], depth.variants[name][-1], depth.std[name][-1]
    if not first or last is None:
        return None
    half = Z95 * (spread or 0.0) / math.sqrt(depth.sequences)
    return last / first, half / first


def _below(value: float, half: float, limit: float) -> bool | None:
    return True if value + half < limit else False if value - half >= limit else None


def _above(value: float, half: float, limit: float) -> bool | None:
    return True if value - half > limit else False if value + half <= limit else None


def _change(depth: DepthResult) -> float | None:
    """Largest difference that LayerNorm makes to attention alone, as a share of the start."""
    alone, bare = depth.variants["attention"], depth.attention_without_layernorm
    gaps = [abs(a - b) for a, b in zip(alone, bare, strict=True) if a is not None and b is not None]
    return max(gaps) / alone[0] if gaps and alone[0] and len(gaps) == len(alone) else None


def _end(curves: DepthCurves, name: str) -> float | None:
    return curves.variants[name][-1]


def _number(value: object) -> str:
    if not isinstance(value, float):
        return "overflow"
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.0e}"


def _measured(depth: DepthResult, v: dict[str, object]) -> str:
    n = len(depth.variants["full"]) - 1
    after = v["collapsed_after"]
    collapse = f"below 1% of its start after {after} layers" if after else "never below 1% for good"
    fit, change = v["log_linear_r2"], v["layernorm_change"]
    return (
        f"Residual after {n} layers: attention alone {_number(v['attention'])} ({collapse}; "
        f"log-linear R^2 {'-' if fit is None else f'{fit:.2f}'}), with feed-forward "
        f"{_number(v['attention_with_ffn'])}, with skip {_number(v['attention_with_skip'])}, full "
        f"{_number(v['full'])}; without LayerNorm attention alone changes by "
        f"{'-' if change is None else f'{change:.3f}'} of its start at most."
    )


def _control(depth: DepthResult) -> str:
    if depth.control is None:
        return "Not run."
    return (
        f"Random weights: attention alone {_number(_end(depth.control, 'attention'))}, with skip "
        f"{_number(_end(depth.control, 'attention+skip'))}, full "
        f"{_number(_end(depth.control, 'full'))}."
    )
