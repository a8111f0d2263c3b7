"""Checkpoints whose ranks, spectra and symmetries are known by construction, from their folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_reference import check, dense, dense_asymmetry, gaussian, orthonormal, planted_spectrum
from tiny_models import tiny_bert
from torch import Tensor
from transformers import BertModel

import headscope
from headscope.errors import InputError
from headscope.pipeline.rank.run import rank
from headscope.results import HeadRank, RankResult, from_dict, to_dict, to_json

H, R, D = 4, 8, 32
EPS32 = float(np.finfo(np.float32).eps)

#: Singular values of W_Q W_K^T, head after head of layer 0.
SPECTRA = [[2.0] * 8, [1.0, 1.0, 1.0], [4.0, 2.0, 1.0, 0.5, 0.25], [3.0]]


def plant(folder: Path, layer: int, *, dtype: torch.dtype = torch.float32, **parts: Any) -> Path:
    """Overwrite q, k, v or out of one layer: a list of factors (d_model, d_head), one a head."""
    model = BertModel.from_pretrained(folder)
    attention = model.encoder.layer[layer].attention
    linears = {"q": attention.self.query, "k": attention.self.key, "v": attention.self.value}
    with torch.no_grad():
        for name, factors in parts.items():
            stacked = torch.cat([factor.T for factor in factors])  # (n_heads * d_head, d_model)
            if name == "out":
                attention.output.dense.weight.copy_(stacked.T)
            else:
                linears[name].weight.copy_(stacked)
    model.to(dtype).save_pretrained(folder)
    return folder


def stored(folder: Path, layer: int) -> dict[str, np.ndarray]:
    """Weights of one layer as (n_heads, d_model, d_head), straight from the file."""
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    prefix = f"encoder.layer.{layer}.attention."
    parts = {"q": "self.query", "k": "self.key", "v": "self.value"}
    found = {
        name: state[f"{prefix}{key}.weight"].double().view(H, R, D).transpose(1, 2).numpy()
        for name, key in parts.items()
    }
    out = state[f"{prefix}output.dense.weight"].double()  # (d_model, n_heads * d_head)
    found["out"] = out.view(D, H, R).transpose(0, 1).numpy()
    for name, key in parts.items():
        found[f"b_{name}"] = state[f"{prefix}{key}.bias"].double().view(H, R).numpy()
    return found


def heads_of(result: RankResult, layer: int) -> list[HeadRank]:
    return [head for head in result.heads if head.layer == layer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_bert(tmp_path_factory.mktemp("planted-rank"))
    planted = [planted_spectrum(D, R, sigma, seed=10 * h) for h, sigma in enumerate(SPECTRA)]
    plant(folder, 0, q=[p[0] for p in planted], k=[p[1] for p in planted])
    A, B = 0.2 * gaussian(D, R), 0.2 * gaussian(D, R, seed=1)
    signs = torch.tensor([1.0, -1] * 4).double()
    half = R // 2
    anti_q, anti_k = (
        torch.cat(x, 1) for x in ((A[:, :half], -B[:, :half]), (B[:, :half], A[:, :half]))
    )
    plant(folder, 1, q=[A, A * signs, anti_q, A], k=[A, A, anti_k, B])
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> RankResult:
    return rank(folder)


# --- planted ----------------------------------------------------------------------------------


def test_planted_spectra_are_found(result: RankResult) -> None:
    for head, sigma in zip(heads_of(result, 0), SPECTRA, strict=True):
        padded = [*sigma, *[0.0] * (R - len(sigma))]
        np.testing.assert_allclose(head.qk.singular_values, padded, atol=2e-6 * sigma[0])
        assert head.qk.numerical_rank.value == len(sigma)
        assert head.qk.numerical_rank.rtol == D * EPS32
        squares = sum(value**2 for value in sigma)
        assert head.qk.stable_rank == pytest.approx(squares / sigma[0] ** 2, rel=1e-5)
        p = np.array(sigma) / sum(sigma)
        assert head.qk.effective_rank == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-4)
    dims = [tuple(head.qk.dims.values()) for head in heads_of(result, 0)]
    # 8 equal; 3 equal; squares 16 4 1 1/4 1/16 of 21.3 (75, 94, 98.5, 99.7%); 1
    assert dims == [(8, 8, 8), (3, 3, 3), (2, 3, 4), (1, 1, 1)]


def test_planted_symmetries_are_found(result: RankResult) -> None:
    values = [head.asymmetry for head in heads_of(result, 1)]
    assert values[:3] == [pytest.approx(v, abs=1e-6) for v in (0, 0, 2)]
    assert values[0] is not None
    assert values[0] < 1e-12  # W_Q = W_K in every bit
    assert values[3] == pytest.approx(math.sqrt(2), abs=0.15)


def test_planted_subspaces_overlap(result: RankResult) -> None:
    overlap = result.layers[1].overlap
    same = np.array(overlap.query)[np.ix_([0, 1, 3], [0, 1, 3])]
    np.testing.assert_allclose(same, np.ones((3, 3)), atol=1e-5)
    assert 0.5 < overlap.query[0][2] < 0.85  # half of one space is half of the other
    assert overlap.query_key[0][0] == pytest.approx(1, abs=1e-5)
    assert overlap.query_key[3][3] == pytest.approx(R / D, abs=0.15)
    for table in (overlap.query, overlap.key):
        np.testing.assert_allclose(np.diagonal(table), 1, atol=1e-12)


def test_every_number_is_the_dense_products_of_the_file(folder: Path, result: RankResult) -> None:
    for layer in range(2):
        w = stored(folder, layer)
        rtol = D * EPS32
        for head in heads_of(result, layer):
            h = head.head
            if layer == 1:  # layer 0 is rank deficient; its noise is below any dense SVD's
                check(head.qk, dense(w["q"][h], w["k"][h]), R, rtol=rtol)
            check(head.ov, dense(w["v"][h], w["out"][h]), R, rtol=rtol)
            expected = dense_asymmetry(dense(w["q"][h], w["k"][h]))
            assert head.asymmetry == pytest.approx(expected, rel=1e-9, abs=1e-12)
        whole = result.layers[layer]
        side = {name: np.concatenate(list(w[name]), axis=1) for name in ("q", "k", "v", "out")}
        check(whole.ov, dense(side["v"], side["out"]), D, rtol=rtol)
        if layer == 1:
            np.testing.assert_allclose(
                whole.qk.singular_values,
                np.linalg.svd(dense(side["q"], side["k"]))[1],
                rtol=1e-9,
                atol=1e-11,
            )


def test_settings_are_told(folder: Path, result: RankResult) -> None:
    assert result.settings == {
        "share": "sigma2",
        "biases": "exclude",
        "fold_layernorm": False,
        "stored_dtype": "float32",
    }
    assert result.validation.passed
    assert result.not_covered == ()
    gaussian_control, fresh = result.controls["gaussian"], result.controls["fresh"]
    assert gaussian_control is not None
    assert fresh is not None
    assert gaussian_control.seeds == (0, 1, 2, 3, 4)
    found = gaussian_control.of(H)
    assert found is not None
    assert found.heads["qk"].draws == 5 * H
    assert rank(folder, fresh=False, control_seeds=2).controls["fresh"] is None


def test_share_of_sigma(folder: Path) -> None:
    dims = [
        tuple(h.qk.dims.values()) for h in heads_of(rank(folder, share="sigma", fresh=False), 0)
    ]
    # 4 2 1 1/2 1/4 of 7.75: 52, 77, 90.3, 96.8%
    assert dims == [(8, 8, 8), (3, 3, 3), (3, 4, 5), (1, 1, 1)]


# --- biases and LayerNorms --------------------------------------------------------------------


def with_biases(folder: Path) -> Path:
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


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_biases(tiny_bert(tmp_path_factory.mktemp("biased")))


def test_included_biases_are_a_row_more(biased: Path) -> None:
    result = rank(biased, biases=True, fresh=False)
    w = stored(biased, 1)
    for head in heads_of(result, 1):
        h = head.head
        query = np.vstack([w["q"][h], w["b_q"][h]])
        key = np.vstack([w["k"][h], np.zeros(R)])
        value = np.vstack([w["v"][h], w["b_v"][h]])
        check(head.qk, dense(query, key), R, rtol=(D + 1) * EPS32)
        check(head.ov, dense(value, w["out"][h]), R, rtol=(D + 1) * EPS32)
    assert result.settings["biases"] == "include"


def test_folding_equals_a_model_folded_by_hand(biased: Path, tmp_path: Path) -> None:
    model = BertModel.from_pretrained(biased)
    norms = [model.embeddings.LayerNorm, model.encoder.layer[0].output.LayerNorm]
    with torch.no_grad():
        for layer, norm in zip(model.encoder.layer, norms, strict=True):
            own = layer.attention.self
            for linear in (own.query, own.key, own.value):
                linear.bias += linear.weight @ norm.bias
                linear.weight *= norm.weight
    model.save_pretrained(tmp_path)
    for biases in (False, True):
        ours = rank(biased, fold_layernorm=True, biases=biases, fresh=False)
        theirs = rank(tmp_path, biases=biases, fresh=False)
        assert [layer.folded for layer in ours.layers] == [True, True]
        assert [layer.folded for layer in theirs.layers] == [None, None]
        for a, b in zip(ours.heads, theirs.heads, strict=True):
            np.testing.assert_allclose(a.qk.singular_values, b.qk.singular_values, rtol=1e-5)
            np.testing.assert_allclose(a.ov.singular_values, b.ov.singular_values, rtol=1e-5)
            assert a.asymmetry == pytest.approx(b.asymmetry, rel=1e-5)
    plain = rank(biased, fresh=False)
    assert plain.heads[0].qk.effective_rank != pytest.approx(
        ours.heads[0].qk.effective_rank, rel=1e-4
    )


# --- invariances ------------------------------------------------------------------------------


def test_another_basis_inside_each_head_changes_nothing(biased: Path, tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    w = {name: torch.from_numpy(value) for name, value in stored(biased, 0).items()}
    turn = [orthonormal(R, R, seed=h) for h in range(H)]
    mix = [gaussian(R, R, seed=20 + h) for h in range(H)]
    before, turned, mixed = (tmp_path / name for name in ("before", "turned", "mixed"))
    for path, q, k in (
        (before, list(w["q"]), list(w["k"])),
        (turned, [w["q"][h] @ turn[h] for h in range(H)], [w["k"][h] @ turn[h] for h in range(H)]),
        (
            mixed,
            [w["q"][h] @ mix[h] for h in range(H)],
            [w["k"][h] @ torch.linalg.inv(mix[h]).T for h in range(H)],
        ),
    ):
        plant(tiny_bert(path), 0, q=q, k=k)
    results = [rank(path, fresh=False, control_seeds=2) for path in (before, turned, mixed)]
    for other, rtol in ((results[1], 1e-5), (results[2], 1e-4)):
        for a, b in zip(heads_of(results[0], 0), heads_of(other, 0), strict=True):
            np.testing.assert_allclose(a.qk.singular_values, b.qk.singular_values, rtol=rtol)
            assert (a.qk.dims, a.qk.numerical_rank) == (b.qk.dims, b.qk.numerical_rank)
            assert a.asymmetry == pytest.approx(b.asymmetry, rel=rtol)
        assert other.controls == results[0].controls
    np.testing.assert_allclose(
        results[0].layers[0].overlap.query, results[1].layers[0].overlap.query, atol=1e-5
    )


def test_permuted_heads_permute_the_results(biased: Path, tmp_path: Path) -> None:
    order = [2, 0, 3, 1]
    parts = {
        n: [torch.from_numpy(v[h]) for h in order]
        for n, v in stored(biased, 0).items()
        if v.ndim == 3
    }
    plant(tiny_bert(tmp_path), 0, **parts)
    before, after = (rank(path, fresh=False, control_seeds=2) for path in (biased, tmp_path))
    for new, old in enumerate(order):
        a, b = heads_of(before, 0)[old], heads_of(after, 0)[new]
        assert a.qk.singular_values == pytest.approx(b.qk.singular_values, rel=1e-12)
        assert a.ov.dims == b.ov.dims
        assert a.asymmetry == pytest.approx(b.asymmetry, rel=1e-12)
    np.testing.assert_allclose(
        before.layers[0].qk.singular_values, after.layers[0].qk.singular_values, rtol=1e-9
    )
    assert before.controls == after.controls


# --- stored types -----------------------------------------------------------------------------


def in_dtype(source: Path, folder: Path, dtype: torch.dtype) -> Path:
    tiny_bert(folder)
    BertModel.from_pretrained(source, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_numbers_of_another_stored_type_are_those_of_its_upcast(
    biased: Path, tmp_path: Path, name: str
) -> None:
    dtype = getattr(torch, name)
    small = in_dtype(biased, tmp_path / "small", dtype)
    loaded_as = "float64" if name == "float64" else "float32"
    result = rank(small, fresh=False, control_seeds=2, dtype=loaded_as)
    assert result.settings["stored_dtype"] == name
    eps = torch.finfo(dtype).eps
    assert {h.qk.numerical_rank.rtol for h in result.heads} == {D * eps}
    upcast = in_dtype(small, tmp_path / "upcast", torch.float64)
    theirs = rank(upcast, fresh=False, control_seeds=2, dtype="float64")
    for a, b in zip([*result.heads, *result.layers], [*theirs.heads, *theirs.layers], strict=True):
        for matrix in ("qk", "ov", "w_q", "w_k"):
            ours, exact = getattr(a, matrix), getattr(b, matrix)
            assert ours.singular_values == exact.singular_values
            assert (ours.effective_rank, ours.dims) == (exact.effective_rank, exact.dims)
        assert a.asymmetry == b.asymmetry
    for layer in range(2):
        w = stored(small, layer)
        for head in heads_of(result, layer):
            check(head.qk, dense(w["q"][head.head], w["k"][head.head]), R, rtol=D * eps)


def test_loading_in_a_coarser_type_than_stored_counts_that_one(biased: Path) -> None:
    result = rank(biased, dtype="bfloat16", fresh=False, control_seeds=2)
    assert result.heads[0].qk.numerical_rank.rtol == D * 2.0**-7


def test_bfloat16_of_a_wide_model_cannot_decide_a_numerical_rank(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "wide", heads=16, layers=1)  # d_model 128 = 1 / eps
    wide = in_dtype(folder, tmp_path / "small", torch.bfloat16)
    result = rank(wide, fresh=False, control_seeds=2)
    for item in (*result.heads, *result.layers):
        assert (item.qk.numerical_rank.value, item.qk.numerical_rank.rtol) == (None, 1.0)
        assert item.qk.effective_rank is not None
    assert json.loads(to_json(result))["heads"][0]["qk"]["numerical_rank"]["value"] is None
    chosen = rank(wide, fresh=False, control_seeds=2, rtol=0.01)
    assert chosen.heads[0].qk.numerical_rank.value is not None
    assert chosen.heads[0].qk.numerical_rank.rtol == 0.01


# --- zero heads and zero layers ---------------------------------------------------------------


def test_zero_weights_are_null_and_never_nan(tmp_path: Path) -> None:
    zero = [torch.zeros(D, R)] * H
    one_zero = [0.2 * gaussian(D, R, seed=h) * (h != 2) for h in range(H)]
    folder = plant(tiny_bert(tmp_path), 0, q=zero, k=zero)
    plant(folder, 1, q=one_zero)
    result = rank(folder)
    for head in heads_of(result, 0):
        assert (head.qk.numerical_rank.value, head.qk.effective_rank) == (0, None)
        assert head.asymmetry is None
        assert head.ov.effective_rank is not None
    assert heads_of(result, 1)[2].qk.dims == {"90": None, "95": None, "99": None}
    assert "NaN" not in to_json(result)
    swept = rank(folder, share_projections=[4, 8], fresh=False, control_seeds=2).shared
    assert swept is not None
    assert swept.widths[0].layer_score_errors[0] == 0


# --- JSON -------------------------------------------------------------------------------------


def test_json_round_trip_and_shape(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("the cat sat on the mat\nhe saw a big red dog\nshe ran\n")
    result = rank(folder, text=text, share_projections=[4, 8, 16], fold_layernorm=True)
    data = json.loads(to_json(result))
    assert from_dict(RankResult, data) == result
    assert to_dict(from_dict(RankResult, data)) == data
    assert {"schema", "heads", "layers", "controls", "provenance", "validation"} <= set(data)
    for head in data["heads"]:
        assert {"layer", "head", "qk", "ov", "asymmetry", "pattern_asymmetry"} <= set(head)
    for item in (*data["heads"], *data["layers"]):
        for matrix in ("qk", "ov", "w_q", "w_k", "qk_data"):
            found = item[matrix]
            assert {
                "singular_values",
                "numerical_rank",
                "stable_rank",
                "effective_rank",
                "dims",
            } == set(found)
            assert set(found["numerical_rank"]) == {"value", "rtol"}
            assert list(found["dims"]) == ["90", "95", "99"]
    assert set(data["controls"]) == {"gaussian", "fresh"}
    assert [width["width"] for width in data["shared"]["widths"]] == [4, 8, 16]


def test_same_bytes_twice_but_for_the_time(folder: Path) -> None:
    runs = []
    for _ in range(2):
        data = to_dict(rank(folder, share_projections=[4, 16], limit=5))
        data["provenance"].pop("created")
        runs.append(to_json(data))
    assert runs[0] == runs[1]
    other = to_dict(rank(folder, seed=9))
    assert other["controls"]["gaussian"]["seeds"] == [9, 10, 11, 12, 13]
    assert json.loads(runs[0])["heads"] == json.loads(to_json(other["heads"]))


def test_frame_has_every_matrix_beside_its_controls(result: RankResult) -> None:
    frame = result.to_frame()
    assert len(frame) == (2 * H + 2) * 4
    row = frame[(frame.layer == 0) & (frame["head"] == 1) & (frame.matrix == "qk")].iloc[0]
    assert row.dims90 == 3
    assert row.gaussian_dims90 > 5
    assert row.fresh_effective_rank > 5


# --- shared projections -----------------------------------------------------------------------


def test_planted_shared_projections_lose_nothing_and_cutting_does(tmp_path: Path) -> None:
    """Every head of every layer uses the same eight projections, in its own mixture."""
    folder = tiny_bert(tmp_path / "shared")
    for layer in range(2):
        P, Q, M = (gaussian(n, R, seed=10 * layer + i) for i, n in enumerate((D, D, H)))
        q = [0.3 * (P * M[h]) @ orthonormal(R, R, seed=h) for h in range(H)]
        k = [0.3 * Q @ orthonormal(R, R, seed=h) for h in range(H)]
        plant(folder, layer, q=q, k=k)
    shared = rank(folder, share_projections=[2, 4, 8, 16, 24, 32], fresh=False).shared
    assert shared is not None
    at = {width.width: width for width in shared.widths}
    assert shared.knee == 8
    assert at[8].score_error < 1e-4
    assert at[8].fidelity == pytest.approx(1, abs=1e-6)
    assert at[8].truncated_rank < R
    assert at[8].truncated_score_error > 0.2
    assert at[8].truncated_fidelity is not None
    assert at[8].truncated_fidelity < 1 - 1e-4
    assert at[8].control_score_error is not None
    assert at[8].control_score_error > 0.3
    # 2 layers of W_Q, W_K (32 x 32), b_Q (32); of two 32 x 8, 4 mixing vectors, 4 b_Q W_K^T of 32
    before, after = 2 * (2 * 32 * 32 + 32), 2 * (2 * 32 * 8 + 4 * 8 + 4 * 32)
    assert (at[8].parameters, at[8].parameters_saved) == (after, before - after)
    assert at[8].share_saved == pytest.approx(1 - after / before)
    errors = [width.score_error for width in shared.widths]
    assert errors == sorted(errors, reverse=True) or max(errors[2:]) < 1e-4
    full = at[32]
    assert full.fidelity == pytest.approx(1, abs=1e-6)
    assert full.truncated_rank == R
    assert full.truncated_score_error < 1e-6


def test_fidelity_lies_between_the_nothing_and_everything(folder: Path) -> None:
    shared = rank(folder, share_projections=[1, 32], limit=40, fresh=False).shared
    assert shared is not None
    one, full = shared.widths
    assert one.fidelity is not None
    assert full.fidelity is not None
    assert one.fidelity < full.fidelity <= 1
    assert one.fidelity_interval is not None
    assert one.fidelity_interval[0] <= one.fidelity <= one.fidelity_interval[1]
    assert (shared.text["lines"], shared.text["skipped"]) != (0, 0)
    assert shared.text["lines"] + shared.text["skipped"] == 40


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"share": "sigma3"}, "sigma2 or sigma"),
        ({"rtol": 0.0}, "between 0 and 1"),
        ({"control_seeds": 1}, "2 or more"),
        ({"share_projections": [0]}, "between 1 and"),
        ({"share_projections": [33]}, "= 32"),
        ({"share_projections": [4], "limit": 0}, "1 line or more"),
    ],
)
def test_options_that_make_no_sense(folder: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rank(folder, **arguments)


def test_a_model_in_memory_needs_no_tokenizer_until_it_needs_text(folder: Path) -> None:
    network: Tensor = BertModel.from_pretrained(folder)
    ours = rank(network, fresh=False, control_seeds=2)
    theirs = rank(folder, fresh=False, control_seeds=2)
    assert ours.heads == theirs.heads
    for extra in ({"text": __file__}, {"share_projections": [4]}):
        with pytest.raises(InputError, match="tokenizer"):
            rank(headscope.wrap(network), **extra)
