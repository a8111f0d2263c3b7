"""Claim 6, and the third part of claim 0: every way that they can come out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_tokenizer
from transformers import BertConfig, BertModel

import headscope
from headscope.results.estimated import Estimated
from headscope.verdicts.insights import interference
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

T = InsightThresholds()
LINES = ["the cat sat on the mat", "he saw a big dog in the red house", "she ran to the house"] * 2
PREDICTS = "key coherence predicts the error"
WORSE = "the linear sum reads back worse than a softmax"
OUTPUT = "symmetric scores change the output"


def correlation(found: Estimated, number: str = "coherence", given: str = "") -> SimpleNamespace:
    return SimpleNamespace(
        number=number,
        form="linear",
        fit="scaled",
        given=given,
        heads=72,
        p=0.01,
        spearman=found,
        pearson=found,
    )


def linear(spearman: Estimated, difference: Estimated) -> Any:
    """Return what the judge looks at of a result."""
    form = SimpleNamespace(
        mean=SimpleNamespace(scaled=Estimated(1.01)),
        whole_scaled=SimpleNamespace(cosine=Estimated(0.76)),
    )
    other = Estimated(0.1, -0.1, 0.3)
    return SimpleNamespace(
        correlations=(
            correlation(spearman),
            correlation(other, "coherence_centred"),
            correlation(other, "entropy"),
            correlation(other, "coherence", "layer"),
        ),
        stored=SimpleNamespace(
            linear=Estimated(0.3), softmax=Estimated(0.1), difference=difference
        ),
        form=lambda name: form,
        control=None,
    )


def judged(spearman: Estimated, difference: Estimated, t: InsightThresholds = T) -> Finding:
    return interference.judge(Evidence(linear=linear(spearman, difference)), t)


def parts(found: Finding) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


UP, DOWN, BOTH = Estimated(0.4, 0.2, 0.6), Estimated(-0.4, -0.6, -0.2), Estimated(0.1, -0.1, 0.3)


@pytest.mark.parametrize(
    ("spearman", "difference", "verdict"),
    [
        (UP, UP, "holds"),
        (DOWN, DOWN, "does not hold"),
        (DOWN, UP, "mixed"),
        (UP, DOWN, "mixed"),
        (BOTH, UP, "mixed"),
        (BOTH, DOWN, "mixed"),
        (Estimated(0.4), UP, "not measured"),
        (Estimated(None), UP, "not measured"),
        (UP, Estimated(0.2), "not measured"),
    ],
)
def test_both_parts_decide(spearman: Estimated, difference: Estimated, verdict: str) -> None:
    assert judged(spearman, difference).verdict == verdict


def test_a_part_holds_with_its_whole_interval() -> None:
    for low, expected in ((0.001, "holds"), (0.0, "open"), (-0.001, "open")):
        found = judged(Estimated(0.2, low, 0.4), Estimated(0.2, low, 0.4))
        assert parts(found) == {PREDICTS: expected, WORSE: expected}
    for high, expected in ((0.0, "does not hold"), (0.001, "open")):
        assert parts(judged(Estimated(-0.2, -0.4, high), UP))[PREDICTS] == expected
    strict = InsightThresholds(interference=0.25)
    assert parts(judged(UP, UP, strict)) == {PREDICTS: "open", WORSE: "open"}


def test_without_its_section_it_is_not_measured_yet() -> None:
    assert interference.judge(Evidence(), T).verdict == "not measured yet"


def test_the_control_names_what_speaks_against_it() -> None:
    found = judged(UP, UP)
    assert "pattern entropy in place of coherence: 0.10 [-0.10, 0.30]" in found.control
    assert "random weights were not measured" in found.control


@torch.no_grad()
def test_orthogonal_keys_are_read_back_better_without_the_softmax() -> None:
    """A model whose keys are those of its positions, all at right angles."""
    width = 32
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            max_position_embeddings=width - 1,
        )
    ).eval()
    across = torch.randn(width, width)
    across[:, 0] = 1.0  # what is orthogonal to this has a mean of zero: LayerNorm leaves it
    basis = torch.linalg.qr(across)[0][:, 1:].T
    model.embeddings.position_embeddings.weight.copy_(100 * basis)
    attention = model.encoder.layer[0].attention.self
    attention.key.weight.copy_(torch.eye(width))
    attention.key.bias.zero_()
    loaded = headscope.wrap(model, tiny_tokenizer(width - 1))
    result = headscope.linear(loaded, LINES, alone=False, control=False)
    assert result.heads[0].coherence.value < 0.01
    assert result.stored.linear.value < 1e-5 < 1e-4 < result.stored.softmax.value
    found = interference.judge(Evidence(linear=result), T)
    assert parts(found)[WORSE] == "does not hold"
    assert parts(found)[PREDICTS] == "not measured"  # one head
