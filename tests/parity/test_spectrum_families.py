"""``spectrum`` by dtype and stack: the same numbers as from the model's own patterns."""

from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_tokenizer

import headscope
from headscope.data.packing import pack, pack_pairs
from headscope.data.pairs import as_pairs
from headscope.data.plain import as_plain
from headscope.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.models.routing import use_implementation

LINES = ["the cat sat on the mat", "he saw a big dog in the red house and ran"] * 6


def wrapped(family: str, dtype: str = "float32") -> LoadedModel:
    return headscope.wrap(tiny(family, dtype, vocab_size=len(VOCABULARY)), tiny_tokenizer(38))


def svd_curve(pattern: Any) -> np.ndarray:
    """Shares of the singular values of (batch, query_pos, key_pos), mean over sequences."""
    sigma = np.linalg.svd(pattern.double(), compute_uv=False)
    curve: np.ndarray = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
    return curve


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_shares_are_those_of_the_models_own_patterns(family):
    loaded = wrapped(family)
    result = headscope.spectrum(loaded, LINES, length=16, sequences=4, efficient=True)
    windows = pack(as_plain(LINES), loaded, 16)
    ids = torch.from_numpy(windows.batch(windows.spread(4)))
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        attentions = loaded.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True
        ).attentions
    assert len(result.heads) == 12
    for head in result.heads:
        curve = svd_curve(attentions[head.layer][:, head.head])
        np.testing.assert_allclose(head.curve, curve, atol=1e-5)
    assert result.efficient.sequences == min(16, len(windows))
    assert all(np.isfinite(p.error) for p in result.efficient.points)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_every_dtype(dtype):
    exact, other = (
        headscope.spectrum(wrapped("bert", d), LINES, length=16, sequences=4)
        for d in ("float32", dtype)
    )
    tolerance = 1e-5 if dtype == "float64" else 0.03
    for one, two in zip(exact.heads, other.heads, strict=True):
        assert one.share_at_k.mean == pytest.approx(two.share_at_k.mean, abs=tolerance)


PAIRS = [("the cat sat on the mat", "he saw a big dog"), ("a red house", "she ran and sat")] * 8


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_every_stack_of_an_encoder_decoder(family):
    """The shares of all stacks are those of the patterns that the model itself returns."""
    loaded = wrapped(family)
    result = headscope.spectrum(loaded, PAIRS, length=12, sequences=3)
    assert [head.stack for head in result.heads] == ["encoder"] * 8 + ["decoder"] * 12 + (
        ["cross"] * 12
    )
    windows = pack_pairs(as_pairs(PAIRS), loaded, 12, loaded.start_id)
    sources, targets = map(torch.from_numpy, windows.inputs(windows.spread(3)))
    with use_implementation(loaded.network, "eager"), torch.no_grad():
        found = loaded.network(input_ids=sources, decoder_input_ids=targets, output_attentions=True)
    patterns = {
        "encoder": found.encoder_attentions,
        "decoder": found.decoder_attentions,
        "cross": found.cross_attentions,
    }
    for head in result.heads:
        curve = svd_curve(patterns[head.stack][head.layer][:, head.head])
        np.testing.assert_allclose(head.curve, curve, atol=2e-5)
    alone = headscope.spectrum(loaded, PAIRS, stack="cross", length=12, sequences=3)
    assert [h.curve for h in alone.heads] == [h.curve for h in result.heads if h.stack == "cross"]
    of_text = headscope.spectrum(loaded, LINES, length=12, sequences=3)
    assert {head.stack for head in of_text.heads} == {"encoder"}
    with pytest.raises(InputError, match="cross stack of in memory reads pairs"):
        headscope.spectrum(loaded, LINES, stack="cross", length=12)
    with pytest.raises(InputError, match="efficient covers"):
        headscope.spectrum(loaded, PAIRS, stack="cross", length=12, efficient=True)
