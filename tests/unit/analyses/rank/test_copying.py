"""Copying scores: the whole vocabulary x vocabulary product, and planted heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny_bert, tiny_tokenizer, translator
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
)

import headscope
from headscope.analyses.rank.measure import copying_scores
from headscope.analyses.rank.view import VIEW
from headscope.core.errors import InputError
from headscope.models.anatomy.readout import TokenMaps

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(**more: object) -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES, intermediate_size=20, **more)).eval()


def dense_scores(model: BertForMaskedLM) -> dict[str, float]:
    """Eigenvalues of the 40 x 40 product, from the modules' own weights, logits centred."""
    read = model.bert.embeddings.word_embeddings.weight.detach().double().numpy()
    write = model.cls.predictions.decoder.weight.detach().double().numpy()
    centre = np.eye(40) - 1 / 40
    scores = {}
    for number, layer in enumerate(model.bert.encoder.layer):
        value = layer.attention.self.value.weight.detach().double().numpy()  # (out, in)
        out = layer.attention.output.dense.weight.detach().double().numpy()
        for head in range(4):
            rows = slice(4 * head, 4 * head + 4)
            circuit = read @ value[rows].T @ out[:, rows].T @ write.T @ centre
            values = np.linalg.eigvals(circuit)
            scores[f"L{number}H{head}"] = float(values.sum().real / np.abs(values).sum())
    return scores


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_those_of_the_whole_product(tied: bool) -> None:
    model = bert(tie_word_embeddings=tied)
    result = headscope.rank(model, copying=True, fresh=False, control_seeds=2)
    scores = {head.name: head.copying for head in result.heads}
    assert scores == pytest.approx(dense_scores(model), abs=1e-6)
    copying = result.copying
    assert copying is not None
    assert (copying.own_unembedding, copying.heads, copying.stack) == (True, 8, "encoder")
    assert copying.above == sum(value > copying.random_high for value in scores.values())
    assert copying.below == sum(value < copying.random_low for value in scores.values())
    frame = result.to_frame()
    column = frame[(frame.matrix == "ov") & frame["head"].notna()].copying
    assert column.tolist() == pytest.approx(list(scores.values()))
    assert f"{copying.above} of 8 heads write" in str(list(VIEW.blocks(result)))


def test_what_all_logits_share_changes_nothing() -> None:
    """A vector added to every row of W_U moves all logits alike; many tokens are added in parts."""
    torch.manual_seed(1)
    read, write = torch.randn(2, 20_000, 6)
    plain = TokenMaps(read, write, has_unembedding=True).product()
    moved = TokenMaps(read, write + 3 * torch.randn(6), has_unembedding=True).product()
    torch.testing.assert_close(plain, moved, rtol=1e-4, atol=1e-2)
    centred = write.double() - write.double().mean(0)
    torch.testing.assert_close(plain, centred.T @ read.double())


def test_planted_heads_copy_and_suppress_and_turn() -> None:
    """A head that writes what it reads scores 1, its opposite -1, a rotation of tokens less."""
    torch.manual_seed(2)
    basis = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q[:, :4]
    rotation = torch.zeros(4, 4, dtype=torch.float64)
    rotation[[0, 1, 2, 3], [1, 0, 3, 2]] = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    W_V = basis.expand(4, 12, 4)
    W_O_T = torch.stack([basis, -basis, basis @ rotation, 7 * basis])
    scores = copying_scores(W_V, W_O_T, torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(scores.tolist(), [1.0, -1.0, 0.0, 1.0], atol=1e-12, rtol=0)
    nothing = copying_scores(W_V, 0 * W_O_T, torch.eye(12, dtype=torch.float64))
    assert nothing.isnan().all()


def test_where_there_is_an_unembedding(tmp_path) -> None:
    """A base model's embedding stands for it where they are tied; else one sentence says why."""
    options = {"copying": True, "fresh": False, "control_seeds": 2, "validate": False}
    base = headscope.rank(bert().bert, **options)
    assert not base.copying.own_unembedding
    assert base.heads[0].copying == pytest.approx(dense_scores(bert())["L0H0"], abs=1e-6)
    assert "language-model head" in str(list(VIEW.blocks(base)))
    with pytest.raises(InputError, match="has no unembedding"):
        headscope.rank(bert(tie_word_embeddings=False).bert, **options)
    albert = AlbertForMaskedLM(AlbertConfig(**SIZES, embedding_size=8, intermediate_size=20))
    with pytest.raises(InputError, match="another size"):
        headscope.rank(albert.eval(), **options)
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=4)).eval()
    of_decoder = headscope.rank(decoder, **options)  # loaded as its base model; GPT-2 ties the two
    assert of_decoder.copying.heads == 4
    layer = decoder.transformer.h[0].attn
    read = decoder.transformer.wte.weight.detach().double().numpy()
    value = layer.c_attn.weight.detach().double().numpy()[:, 32:36]
    circuit = read @ value @ layer.c_proj.weight.detach().double().numpy()[:4] @ read.T
    values = np.linalg.eigvals(circuit - circuit.mean(1, keepdims=True))
    assert of_decoder.heads[0].copying == pytest.approx(values.sum().real / np.abs(values).sum())
    marian = headscope.wrap(translator("marian"), tiny_tokenizer(), name="marian")
    of_marian = headscope.rank(marian, **options)
    assert of_marian.copying.stack == "decoder"
    scored = {head.stack for head in of_marian.heads if head.copying is not None}
    assert scored == {"decoder"}
    assert headscope.rank(str(tiny_bert(tmp_path / "bert")), fresh=False).copying is None
