"""Checkpoints whose ranks, spectra and symmetries are known by construction, from their folders."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_reference import check, dense, gaussian, orthonormal, planted_spectrum
from safetensors.torch import load_file
from tiny_models import tiny_bert
from transformers import BertModel

from headscope import rank
from headscope.analyses.rank.result import HeadRank, RankResult
from headscope.core.serialise import to_json

H = 4
R = 8
D = 32
LINEARS = {"q": "self.query", "k": "self.key", "v": "self.value", "out": "output.dense"}
#: What makes a run short.
BRIEF: dict[str, Any] = {"fresh": False, "control_seeds": 2}
#: Singular values of W_Q W_K^T, head after head of layer 0.
SPECTRA = [[2.0] * 8, [1.0, 1.0, 1.0], [4.0, 2.0, 1.0, 0.5, 0.25], [3.0]]


def plant(folder: Path, layer: int, **maps: list[torch.Tensor]) -> Path:
    """Overwrite q, k, v or out of one layer: a list of factors (d_model, d_head), one a head."""
    model = BertModel.from_pretrained(folder)
    attention = model.encoder.layer[layer].attention
    for name, factors in maps.items():
        stacked = torch.cat([factor.T for factor in factors])  # (n_heads * d_head, d_model)
        linear = attention.get_submodule(LINEARS[name])
        linear.weight.data.copy_(stacked.T if name == "out" else stacked)
    model.save_pretrained(folder)
    return folder


def stored(folder: Path, layer: int) -> dict[str, np.ndarray]:
    """Weights of one layer as (n_heads, d_model, d_head), straight from the file."""
    state = load_file(folder / "model.safetensors")
    weights = {}
    for name, key in LINEARS.items():
        weight = state[f"encoder.layer.{layer}.attention.{key}.weight"].double()
        weight = weight.T if name == "out" else weight  # (n_heads * d_head, d_model)
        weights[name] = weight.view(H, R, D).transpose(1, 2).numpy()
    return weights


def heads_of(result: RankResult, layer: int) -> list[HeadRank]:
    return [head for head in result.heads if head.layer == layer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tiny_bert(tmp_path_factory.mktemp("planted-rank"))
    planted = [planted_spectrum(D, R, sigma, seed=10 * h)[:2] for h, sigma in enumerate(SPECTRA)]
    plant(folder, 0, q=[queries for queries, _ in planted], k=[keys for _, keys in planted])
    A = 0.2 * gaussian(D, R)
    B = 0.2 * gaussian(D, R, seed=1)
    signs = torch.tensor([1.0, -1] * 4).double()
    half = R // 2
    anti_q = torch.cat([A[:, :half], -B[:, :half]], 1)
    anti_k = torch.cat([B[:, :half], A[:, :half]], 1)
    plant(folder, 1, q=[A, A * signs, anti_q, A], k=[A, A, anti_k, B])
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> RankResult:
    return rank(folder)


def test_what_was_planted_is_found(folder, result):
    for head, sigma in zip(heads_of(result, 0), SPECTRA, strict=True):
        padded = [*sigma, *[0.0] * (R - len(sigma))]
        np.testing.assert_allclose(head.qk.singular_values, padded, atol=2e-6 * sigma[0])
        assert head.qk.numerical_rank.value == len(sigma)
        assert head.qk.numerical_rank.rtol == D * 2.0**-23
        squares = sum(value**2 for value in sigma)
        assert head.qk.stable_rank == pytest.approx(squares / sigma[0] ** 2, rel=1e-5)
        p = np.array(sigma) / sum(sigma)
        assert head.qk.effective_rank == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-4)
    dims = [tuple(head.qk.dims.values()) for head in heads_of(result, 0)]
    # 8 equal; 3 equal; squares 16 4 1 1/4 1/16 of 21.3 (75, 94, 98.5, 99.7%); 1
    assert dims == [(8, 8, 8), (3, 3, 3), (2, 3, 4), (1, 1, 1)]
    by_sigma = heads_of(rank(folder, share="sigma", **BRIEF), 0)
    dims = [tuple(head.qk.dims.values()) for head in by_sigma]
    # 4 2 1 1/2 1/4 of 7.75: 52, 77, 90.3, 96.8%
    assert dims == [(8, 8, 8), (3, 3, 3), (3, 4, 5), (1, 1, 1)]
    values = [head.asymmetry for head in heads_of(result, 1)]
    assert values[:3] == [pytest.approx(v, abs=e) for v, e in ((0, 1e-12), (0, 1e-6), (2, 1e-6))]
    assert values[3] == pytest.approx(math.sqrt(2), abs=0.15)
    overlap = result.layers[1].overlap
    same = np.array(overlap.query)[np.ix_([0, 1, 3], [0, 1, 3])]
    np.testing.assert_allclose(same, np.ones((3, 3)), atol=1e-5)
    assert 0.5 < overlap.query[0][2] < 0.85  # half of one space is half of the other
    assert overlap.query_key[0][0] == pytest.approx(1, abs=1e-5)
    assert overlap.query_key[3][3] == pytest.approx(R / D, abs=0.15)
    for table in (overlap.query, overlap.key):
        np.testing.assert_allclose(np.diagonal(table), 1, atol=1e-12)


@pytest.fixture(scope="module")
def biased(tmp_path_factory) -> Path:
    """Biases and LayerNorms of random numbers."""
    folder = tiny_bert(tmp_path_factory.mktemp("biased"))
    model = BertModel.from_pretrained(folder)
    torch.manual_seed(3)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.bias)
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, 1, 0.3)
            torch.nn.init.normal_(module.bias, 0, 0.3)
    model.save_pretrained(folder)
    return folder


def test_folding_equals_a_model_folded_by_hand(biased, tmp_path):
    model = BertModel.from_pretrained(biased)
    norms = [model.embeddings.LayerNorm, model.encoder.layer[0].output.LayerNorm]
    with torch.no_grad():
        for layer, norm in zip(model.encoder.layer, norms, strict=True):
            attention = layer.attention.self
            for linear in (attention.query, attention.key, attention.value):
                linear.bias += linear.weight @ norm.bias
                linear.weight *= norm.weight
    model.save_pretrained(tmp_path)
    for biases in (False, True):
        folded = rank(biased, fold_layernorm=True, biases=biases, **BRIEF)
        by_hand = rank(tmp_path, biases=biases, **BRIEF)
        assert folded.controls == by_hand.controls  # they follow from the shapes
        assert [layer.folded for layer in folded.layers] == [True, True]
        assert [layer.folded for layer in by_hand.layers] == [None, None]
        for a, b in zip(folded.heads, by_hand.heads, strict=True):
            np.testing.assert_allclose(a.qk.singular_values, b.qk.singular_values, rtol=1e-5)
            np.testing.assert_allclose(a.ov.singular_values, b.ov.singular_values, rtol=1e-5)
            assert a.asymmetry == pytest.approx(b.asymmetry, rel=1e-5)
    plain = rank(biased, **BRIEF).heads[0].qk.effective_rank
    assert plain != pytest.approx(folded.heads[0].qk.effective_rank, rel=1e-4)


def in_dtype(source: Path, folder: Path, dtype: torch.dtype) -> Path:
    tiny_bert(folder)
    BertModel.from_pretrained(source, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["float16", "float64"])
def test_numbers_of_another_stored_type_are_those_of_its_upcast(biased, tmp_path, name):
    dtype = getattr(torch, name)
    small = in_dtype(biased, tmp_path / "small", dtype)
    loaded_as = "float64" if name == "float64" else "float32"
    result = rank(small, **BRIEF, dtype=loaded_as)
    assert result.settings["stored_dtype"] == name
    eps = torch.finfo(dtype).eps
    assert {h.qk.numerical_rank.rtol for h in result.heads} == {D * eps}
    upcast = in_dtype(small, tmp_path / "upcast", torch.float64)
    upcast_result = rank(upcast, **BRIEF, dtype="float64")
    for a, b in zip(
        [*result.heads, *result.layers], [*upcast_result.heads, *upcast_result.layers], strict=True
    ):
        for matrix in ("qk", "ov", "w_q", "w_k"):
            ours = getattr(a, matrix)
            exact = getattr(b, matrix)
            assert ours.singular_values == exact.singular_values
            assert (ours.effective_rank, ours.dims) == (exact.effective_rank, exact.dims)
        assert a.asymmetry == b.asymmetry
    for layer in range(2):
        w = stored(small, layer)
        for head in heads_of(result, layer):
            check(head.qk, dense(w["q"][head.head], w["k"][head.head]), R, rtol=D * eps)
    # Loaded in a coarser type than stored, that one counts.
    coarse = rank(small, dtype="bfloat16", **BRIEF).heads[0]
    assert coarse.qk.numerical_rank.rtol == D * 2.0**-7


def test_zero_weights_are_null_and_never_nan(tmp_path):
    zero = [torch.zeros(D, R)] * H
    folder = plant(tiny_bert(tmp_path), 0, q=zero, k=zero)
    queries = [0.2 * gaussian(D, R, seed=h) for h in range(H)]
    queries[2] = torch.zeros(D, R)
    plant(folder, 1, q=queries)
    result = rank(folder, share_projections=[4, 8], **BRIEF)
    for head in heads_of(result, 0):
        assert (head.qk.numerical_rank.value, head.qk.effective_rank) == (0, None)
        assert head.asymmetry is None
        assert head.ov.effective_rank is not None
    assert heads_of(result, 1)[2].qk.dims == {"90": None, "95": None, "99": None}
    assert "NaN" not in to_json(result)
    assert result.shared.widths[0].layer_score_errors[0] == 0


def test_planted_shared_projections_lose_nothing_and_cutting_does(tmp_path):
    """Every head of every layer uses the same eight projections, in its own mixture."""
    folder = tiny_bert(tmp_path / "shared")
    for layer in range(2):
        P = gaussian(D, R, seed=10 * layer)
        Q = gaussian(D, R, seed=10 * layer + 1)
        M = gaussian(H, R, seed=10 * layer + 2)
        q = [0.3 * (P * M[h]) @ orthonormal(R, R, seed=h) for h in range(H)]
        k = [0.3 * Q @ orthonormal(R, R, seed=h) for h in range(H)]
        plant(folder, layer, q=q, k=k)
    shared = rank(folder, share_projections=[2, 4, 8, 16, 32], **BRIEF).shared
    by_width = {width.width: width for width in shared.widths}
    assert shared.knee == 8
    assert by_width[8].score_error < 1e-4
    assert by_width[8].fidelity.value == pytest.approx(1, abs=1e-6)
    assert by_width[8].truncated_rank < R
    assert by_width[8].truncated_score_error > 0.2
    assert by_width[8].truncated_fidelity.value < 1 - 1e-4
    assert by_width[8].control_score_error > 0.3
    # 2 layers of W_Q, W_K (32 x 32), b_Q (32); of two 32 x 8, 4 mixing vectors, 4 b_Q W_K^T of 32
    before = 2 * (2 * 32 * 32 + 32)
    after = 2 * (2 * 32 * 8 + 4 * 8 + 4 * 32)
    assert (by_width[8].parameters, by_width[8].parameters_saved) == (after, before - after)
    assert by_width[8].share_saved == pytest.approx(1 - after / before)
    assert by_width[32].fidelity.value == pytest.approx(1, abs=1e-6)
    assert by_width[32].truncated_rank == R
    assert by_width[32].truncated_score_error < 1e-6
    assert by_width[2].fidelity.low <= by_width[2].fidelity.value <= by_width[2].fidelity.high
    assert by_width[2].fidelity.value < by_width[8].fidelity.value
