"""``spectrum`` on every family and dtype: the same numbers as from the model's own patterns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import COVERED
from tiny_models import VOCABULARY, tiny_tokenizer
from transformers import AutoConfig, AutoModel

import headscope
from headscope.data.packing import pack, pack_pairs
from headscope.data.pairs import as_pairs
from headscope.data.plain import as_plain
from headscope.errors import InputError
from headscope.models.routing import use_implementation

LINES = ["the cat sat on the mat", "he saw a big dog in the red house and ran"] * 6
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
FAMILIES = {
    "bert": {},
    "roberta": {},
    "distilbert": {"hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
}


def tiny(family: str):
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]})
    return AutoModel.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    model, tokenizer = tiny(family), tiny_tokenizer(38)
    loaded = headscope.wrap(model, tokenizer)
    result = headscope.spectrum(loaded, LINES, length=16, sequences=4, efficient=True)
    windows = pack(as_plain(LINES), loaded, 16)
    ids = torch.from_numpy(windows.batch(windows.spread(4)))
    with use_implementation(model, "eager"), torch.no_grad():
        attentions = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True
        ).attentions
    assert len(result.heads) == 12
    for head in result.heads:
        sigma = np.linalg.svd(attentions[head.layer][:, head.head].double(), compute_uv=False)
        curve = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
        np.testing.assert_allclose(head.curve, curve, atol=1e-5)
    assert result.efficient is not None
    assert result.efficient.sequences == min(16, len(windows))
    assert all(np.isfinite(p.error) for p in result.efficient.points)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_every_dtype(dtype: str) -> None:
    tokenizer = tiny_tokenizer(38)
    exact, other = (
        headscope.spectrum(
            headscope.wrap(tiny("bert").to(getattr(torch, d)), tokenizer),
            LINES,
            length=16,
            sequences=4,
            efficient=True,
        )
        for d in ("float32", dtype)
    )
    tolerance = 1e-5 if dtype == "float64" else 0.03
    for one, two in zip(exact.heads, other.heads, strict=True):
        assert one.share_at_k.mean == pytest.approx(two.share_at_k.mean, abs=tolerance)


PAIRS = [("the cat sat on the mat", "he saw a big dog"), ("a red house", "she ran and sat")] * 8


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_every_stack_of_an_encoder_decoder(family: str) -> None:
    """The shares of all stacks are those of the patterns that the model itself returns."""
    known = next(item for item in COVERED if item.name == family)
    model = known.model(vocab_size=len(VOCABULARY))
    loaded = headscope.wrap(model, tiny_tokenizer(38))
    result = headscope.spectrum(loaded, PAIRS, length=12, sequences=3)
    assert [head.stack for head in result.heads] == ["encoder"] * 8 + ["decoder"] * 12 + (
        ["cross"] * 12
    )
    windows = pack_pairs(as_pairs(PAIRS), loaded, 12, loaded.start_id)
    sources, targets = map(torch.from_numpy, windows.inputs(windows.spread(3)))
    with use_implementation(model, "eager"), torch.no_grad():
        found = model(input_ids=sources, decoder_input_ids=targets, output_attentions=True)
    patterns = {
        "encoder": found.encoder_attentions,
        "decoder": found.decoder_attentions,
        "cross": found.cross_attentions,
    }
    for head in result.heads:
        sigma = np.linalg.svd(patterns[head.stack][head.layer][:, head.head].double())[1]
        curve = (np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)).mean(0)
        np.testing.assert_allclose(head.curve, curve, atol=2e-5)
    alone = headscope.spectrum(loaded, PAIRS, stack="cross", length=12, sequences=3)
    assert [h.curve for h in alone.heads] == [h.curve for h in result.heads if h.stack == "cross"]
    of_text = headscope.spectrum(loaded, LINES, length=12, sequences=3)
    assert {head.stack for head in of_text.heads} == {"encoder"}
    with pytest.raises(InputError, match="cross stack of in memory reads pairs"):
        headscope.spectrum(loaded, LINES, stack="cross", length=12)
    with pytest.raises(InputError, match="efficient covers"):
        headscope.spectrum(loaded, PAIRS, stack="cross", length=12, efficient=True)
