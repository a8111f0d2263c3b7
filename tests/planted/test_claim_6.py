"""Claim 6 on models that were made for it: every part holds for one, and does not for another."""

from __future__ import annotations

from collections.abc import Callable

import claim_models as made
import pytest
from transformers import BertModel

import headscope
from headscope.verdicts.insights import interference
from headscope.verdicts.insights.finding import Evidence
from headscope.verdicts.insights.thresholds import InsightThresholds

YES, NO, OPEN = "holds", "does not hold", "open"


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
def test_parts_hold_for_one_model_and_not_for_another(
    model: Callable[[], BertModel], verdict: str, parts: tuple[str | None, ...], small: bool
) -> None:
    found = headscope.linear(made.loaded(model()), made.mixed_lines(16), alone=False)
    judged = interference.judge(Evidence(linear=found), InsightThresholds())
    assert judged.verdict == verdict
    for part, expected in zip(judged.parts, parts, strict=True):
        assert expected in (None, part.verdict), part
    assert (found.form("first-order").mean.error.value < 1e-3) == small
    assert found.form("linear").mean.error.value > 0.5


def test_three_layers_are_too_few() -> None:
    found = headscope.linear(made.loaded(made.of_keys(3)), made.mixed_lines(8), alone=False)
    first = found.correlations[0]
    assert (first.layers, first.spearman.interval, first.p) == (3, None, None)
    assert first.spearman.value > 0.9
    judged = interference.judge(Evidence(linear=found), InsightThresholds())
    assert [part.verdict for part in judged.parts] == ["not measured", YES, YES]
    assert judged.verdict == "not measured"
