"""Claim 7 from planted curves: each part comes out every way."""

import math
from typing import Any

import numpy as np
import pytest

from headscope.analyses.depth.measure import VARIANTS, collapsed_after, curves_of
from headscope.analyses.depth.result import Decomposition, DepthResult
from headscope.models.certificate.validation import ValidationSummary
from headscope.reports.claims.rule import Evidence
from headscope.reports.claims.run import decide
from headscope.reports.result import Insight

FALLING = [1, 0.1, 0.01, 0.001]
STEPS, SKIP = "at least as fast as exponentially", "the skip connection prevents it"
FFN, LAYERNORM = "the feed-forward network slows it", "LayerNorm plays no role"
ALONE = "attention alone collapses"


def depth_result(
    alone: list[float],
    skip: float | list[float] = 0.8,
    bare: list[float] | None = None,
    ffn: list[float] | None = None,
    *,
    windows: int = 16,
    spread: float = 0.01,
) -> DepthResult:
    """Curves of windows that scatter about given ones, summed as depth sums them."""
    n, floor = len(alone), 1e-15
    curves: dict[str, list[float]] = {
        "attention": alone,
        "attention+ffn": ffn or [min(1.0, 2 * value) for value in alone],
        "attention+skip": skip if isinstance(skip, list) else [1.0, *[skip] * (n - 1)],
        "attention-without-layernorm": bare or alone,
    }
    noise = 1 + spread * np.random.default_rng(0).standard_normal((len(VARIANTS), n, windows))
    noise[:, 0] = 1.0
    means = np.array([curves.get(v.name, [1.0, *[0.9] * (n - 1)]) for v in VARIANTS])
    variants = {v.name: tuple(row.tolist()) for v, row in zip(VARIANTS, means, strict=True)}
    without = variants.pop("attention-without-layernorm")
    return DepthResult(
        variants=variants,
        std=dict.fromkeys(variants, (0.0,) * n),
        trends=curves_of(means[..., None] * noise, floor).trends,
        attention_without_layernorm=without,
        attention_without_layernorm_std=(0.0,) * n,
        protected=(),
        collapsed_after={"attention": collapsed_after(np.array(alone))},
        schema=1,
        provenance={},
        validation=ValidationSummary(passed=True),
        decomposition=Decomposition(0.0, 1e-4),
        layer_norm="post",
        length=128,
        sequences=windows,
        available=windows,
        floor=floor,
    )


def judged(*curves: Any, **more: Any) -> Insight:
    return decide("collapse", Evidence(depth=depth_result(*curves, **more)))


@pytest.mark.parametrize(
    ("curves", "verdict", "parts"),
    [
        # The theory's own curve is far from log-linear.
        ({"alone": [1, 0.3, 0.02, 1e-4, 1e-9]}, "holds", {STEPS: "holds"}),
        # Rounding is no step.
        ({"alone": [1, 0.1, 1e-3, 1e-16, 1e-16, 1e-16]}, "holds", {STEPS: "holds"}),
        ({"alone": [1, 1e-3, 1e-16, 1e-16]}, "not measured", {STEPS: "not measured"}),
        ({"alone": [1, 0.2, 0.05, 0.01], "spread": 0.3}, "mixed", {ALONE: "open"}),
        # A skip that collapses too, at one layer only.
        ({"skip": [1, 0.8, 0.001, 0.8]}, "mixed", {SKIP: "does not hold"}),
        # States that overflow without LayerNorm.
        ({"bare": [1, 0.1, math.nan, math.nan]}, "not measured", {LAYERNORM: "not measured"}),
        ({"ffn": [1, 0.2, 0.005, 0.002]}, "mixed", {FFN: "mixed"}),
        ({"ffn": [1, 0.2, 0.0101, 0.002]}, "mixed", {FFN: "open"}),
        # One layer or one window decides nothing.
        ({"alone": [1, 0.001]}, "not measured", {}),
        ({"windows": 1}, "not measured", {}),
    ],
)
def test_every_part_of_the_collapse(curves, verdict, parts):
    found = judged(**{"alone": FALLING, **curves})
    assert found.verdict == verdict
    assert {part.name: part.verdict for part in found.parts}.items() >= parts.items()
