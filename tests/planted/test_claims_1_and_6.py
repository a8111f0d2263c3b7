"""Claims 1 and 6 on models made for them: every part holds for one, and does not for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import claim_models as made
import numpy as np
import pytest
import torch
from transformers import BertModel

import headscope
from headscope.measures.flow.clustered import Clustered
from headscope.pipeline.flow import outcome
from headscope.verdicts.insights import interference, passing_on
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.thresholds import InsightThresholds

YES, NO, OPEN = "holds", "does not hold", "open"
PARTS = ("uses nearly all", "with random weights", "Gaussian W_V", "random directions", "most of")


def narrow() -> BertModel:
    """Every W_V has rank one."""
    generator = torch.Generator().manual_seed(3)
    column = torch.randn(made.D_MODEL, 1, generator=generator)
    return made.read(made.of_topics(), column @ torch.randn(1, made.D_HEAD, generator=generator))


def averaging() -> BertModel:
    """Heads read what differs from word to word, and average it."""
    wide = torch.zeros(made.D_MODEL, made.D_HEAD)
    wide[-made.D_HEAD :] = torch.eye(made.D_HEAD)
    return made.read(made.of_topics(), wide)


@pytest.mark.parametrize(
    ("model", "verdict", "parts"),
    [
        (made.of_topics, YES, (YES, YES, YES, YES, YES)),
        # What broke the rule that asked for width and for more than random weights:
        (lambda: made.read(made.of_topics(), None), "mixed", (YES, YES, NO, NO, YES)),
        (lambda: made.sharpen(made.untrained(), 200), "mixed", (YES, YES, NO, NO, YES)),
        (made.untrained, "mixed", (YES, NO, NO, NO, NO)),
        # One direction of a word's state is easily kept, and is all that so narrow a W_V reads.
        (narrow, "mixed", (NO, None, NO, NO, YES)),
        (averaging, "mixed", (YES, None, NO, NO, NO)),
    ],
    ids=["topics", "W_V Gaussian", "untrained, W_Q x 200", "untrained", "narrow", "averaging"],
)
def test_parts_of_claim_1(
    tmp_path: Path, model: Callable[[], BertModel], verdict: str, parts: tuple[str | None, ...]
) -> None:
    text = made.written(tmp_path, 100)
    found = headscope.flow(made.loaded(model()), text)
    judged = passing_on.judge(Evidence(flow=found), InsightThresholds())
    assert judged.verdict == verdict
    for name, expected in zip(PARTS, parts, strict=True):
        (part,) = (p for p in judged.parts if name in p.name and "beside" not in p.name)
        if expected is not None:
            assert (part.verdict == YES) == (expected == YES), part


def test_a_text_that_is_too_short_is_not_measured(tmp_path: Path) -> None:
    loaded = made.loaded(made.of_topics())
    short = headscope.flow(loaded, made.written(tmp_path, 16))
    assert short.recovery.value.value is None
    assert short.heads[0].recovery.whole.value is None
    assert short.control.gain.value.value is None
    # 8 sentences of 9 words to fit on, and 20 tokens for each of 8 numbers are needed
    assert "72 tokens" in short.not_measured["value"]
    assert "give about 36 sentences" in short.not_measured["value"]
    judged = passing_on.judge(Evidence(flow=short), InsightThresholds())
    assert judged.verdict == "not measured"
    assert "72 tokens" in judged.parts[1].measured


@pytest.mark.parametrize(("level", "measured"), [(-0.2, False), (-0.06, False), (0.0, True)])
def test_a_control_that_collapses_is_not_measured(level: float, measured: bool) -> None:
    """Random weights whose R^2 lies surely below -0.05: maps follow what they were fitted on."""
    error = np.full((40, 1), 1 - level) + np.linspace(-0.01, 0.01, 40)[:, None]
    r2 = Clustered.ratio(error, np.ones((40, 1))).rest()
    found: Any = SimpleNamespace(tokens=10_000)
    other: Any = SimpleNamespace(held=SimpleNamespace(explained=lambda _: r2))
    reasons = outcome.not_measured(found, other, 8)
    assert (not reasons) == measured
    assert not outcome.not_measured(found, None, 8)
    assert all(f"{level:.2f}" in why for why in reasons.values())


def even() -> BertModel:
    """Attention is even, and so is a linear sum over keys that are alike: those heads err less."""
    return made.sharpen(made.of_keys(signs=False), 1e-3)


@pytest.mark.parametrize(
    ("model", "verdict", "parts", "small"),
    [
        (made.of_keys, YES, (YES, YES, YES), False),
        # The softmax of small scores is its own first-order form: nothing is lost without it.
        (lambda: made.sharpen(made.of_keys(), 1e-3), "mixed", (None, NO, YES), True),
        (even, NO, (NO, NO, NO), True),
        (lambda: made.untrained(4), "mixed", (OPEN, NO, OPEN), True),
        (lambda: made.sharpen(made.untrained(4), 200), "mixed", (OPEN, YES, OPEN), False),
    ],
    ids=["keys", "keys, W_Q x 0.001", "even", "untrained", "untrained, W_Q x 200"],
)
def test_parts_of_claim_6(
    model: Callable[[], BertModel], verdict: str, parts: tuple[str | None, ...], small: bool
) -> None:
    found = headscope.linear(
        made.loaded(model()), made.mixed_lines(16), alone=False, validate=False
    )
    judged = interference.judge(Evidence(linear=found), InsightThresholds())
    assert judged.verdict == verdict
    for part, expected in zip(judged.parts, parts, strict=True):
        assert expected in (None, part.verdict), part
    assert (found.form("first-order").mean.error.value < 1e-3) == small
    assert found.form("linear").mean.error.value > 0.5


def test_three_layers_are_too_few() -> None:
    found = headscope.linear(
        made.loaded(made.of_keys(3)), made.mixed_lines(8), alone=False, validate=False
    )
    first = found.correlations[0]
    assert (first.layers, first.spearman.interval, first.p) == (3, None, None)
    assert first.spearman.value > 0.9
    judged = interference.judge(Evidence(linear=found), InsightThresholds())
    assert [part.verdict for part in judged.parts] == ["not measured", YES, YES]
    assert judged.verdict == "not measured"
