"""Claim 6, and the third part of claim 0: every way that they can come out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_tokenizer
from transformers import BertConfig, BertModel

import headscope
from headscope.reports.claims.finding import Evidence, Finding
from headscope.reports.claims.routing_claims import judge_interference
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.stats.estimate import Estimate

T = InsightThresholds()
LINES = ["the cat sat on the mat", "he saw a big dog in the red house", "she ran to the house"] * 2
PREDICTS = "key coherence predicts the error within layers"
WORSE = "the linear sum reads back worse than the head's own softmax"
MORE = "by more than with random weights"


UP, DOWN, BOTH = Estimate(0.4, 0.2, 0.6), Estimate(-0.4, -0.6, -0.2), Estimate(0.1, -0.1, 0.3)


def correlation(found: Estimate, number: str = "coherence") -> SimpleNamespace:
    known = {"number": number, "form": "linear", "fit": "scaled", "given": "", "p": 0.01}
    return SimpleNamespace(**known, heads=72, layers=6, spearman=found, pearson=found)


def linear(spearman: Estimate, own: Estimate, more: Estimate | None) -> Any:
    """Return what the judge looks at of a result."""
    form = SimpleNamespace(
        mean=SimpleNamespace(form="linear", scaled=Estimate(1.01)),
        whole_scaled=SimpleNamespace(cosine=Estimate(0.76)),
    )
    stored = {"linear": 0.3, "softmax": 0.1, "softmax_own": 0.1, "difference": 0.2}
    control = None
    if more is not None:
        random = SimpleNamespace(difference=Estimate(0.25))
        control = SimpleNamespace(
            over_random=more, stored=random, correlations=(correlation(BOTH),)
        )
    return SimpleNamespace(
        correlations=(
            correlation(spearman),
            correlation(BOTH, "coherence_centred"),
            correlation(BOTH, "entropy"),
        ),
        stored=SimpleNamespace(
            **{name: Estimate(value) for name, value in stored.items()}, difference_own=own
        ),
        form=lambda name: form,
        forms=(form,),
        control=control,
    )


def judged(
    spearman: Estimate, own: Estimate, more: Estimate | None, t: InsightThresholds = T
) -> Finding:
    return judge_interference(Evidence(linear=linear(spearman, own, more)), t)


def parts(found: Finding) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


@pytest.mark.parametrize(
    ("spearman", "own", "more", "verdict"),
    [
        (UP, UP, UP, "holds"),
        (DOWN, DOWN, DOWN, "does not hold"),
        (DOWN, UP, UP, "mixed"),
        (UP, DOWN, UP, "mixed"),
        (UP, UP, DOWN, "mixed"),
        (BOTH, UP, UP, "mixed"),
        (Estimate(None), UP, UP, "not measured"),
        (UP, UP, None, "not measured"),  # no random weights
        (UP, Estimate(None), UP, "not measured"),  # a result of an older version
    ],
)
def test_all_three_parts_decide(spearman, own, more, verdict):
    assert judged(spearman, own, more).verdict == verdict


def test_a_part_holds_with_its_whole_interval():
    for low, expected in ((0.001, "holds"), (0.0, "open"), (-0.001, "open")):
        found = judged(*[Estimate(0.2, low, 0.4)] * 3)
        assert parts(found) == dict.fromkeys((PREDICTS, WORSE, MORE), expected)
    for high, expected in ((0.0, "does not hold"), (0.001, "open")):
        assert parts(judged(Estimate(-0.2, -0.4, high), UP, UP))[PREDICTS] == expected
    strict = InsightThresholds(interference=0.25)
    assert set(parts(judged(UP, UP, UP, strict)).values()) == {"open"}


def test_old_results_and_what_speaks_against_the_claim():
    old = linear(UP, UP, UP)  # with a correlation over all heads, and a bootstrap over them
    old.correlations[0].layers = 0
    assert parts(judge_interference(Evidence(linear=old), T))[PREDICTS] == "not measured"
    found = judged(UP, UP, None)
    assert "pattern entropy in place of coherence: 0.10 [-0.10, 0.30]" in found.control
    assert "random weights were not measured" in found.control


@torch.no_grad()
def test_orthogonal_keys_are_read_back_better_without_the_softmax():
    """A model whose keys are those of its positions, all at right angles."""
    width = 32
    torch.manual_seed(0)
    one = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": width}
    sizes = {"intermediate_size": 8, "max_position_embeddings": width - 1, **one}
    model = BertModel(BertConfig(vocab_size=len(VOCABULARY), **sizes)).eval()
    across = torch.randn(width, width)
    across[:, 0] = 1.0  # what is orthogonal to this has a mean of zero: LayerNorm leaves it
    basis = torch.linalg.qr(across)[0][:, 1:].T
    model.embeddings.position_embeddings.weight.copy_(100 * basis)
    attention = model.encoder.layer[0].attention.self
    attention.key.weight.copy_(torch.eye(width))
    attention.key.bias.zero_()
    loaded = headscope.wrap(model, tiny_tokenizer(width - 1))
    result = headscope.linear(loaded, LINES, control=False)
    assert result.heads[0].coherence.value < 0.01
    assert result.stored.linear.value < 1e-5 < 1e-4 < result.stored.softmax.value
    found = judge_interference(Evidence(linear=result), T)
    assert parts(found)[WORSE] == "does not hold"
    assert parts(found)[PREDICTS] == "not measured"  # one head
