"""The Gaussian control: the published values of docs/definitions.md, and honest averages."""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from rank_reference import gaussian, random_layer

from headscope.measures.rank.dimensions import Reading, asymmetry, matrix_ranks, subspace_overlap
from headscope.measures.rank.factors import Factors, random_factors
from headscope.measures.rank.gaussian import average, layer_control


def test_control_values_of_bert_base() -> None:
    """768 x 768 (12 x 64), dimensions to 90% of sigma^2: a random product looks low rank."""
    like = Factors(*torch.empty(4, 12, 768, 64))
    found = layer_control([random_factors(like, seed) for seed in range(2)], Reading())
    assert found.n_heads == 12
    for name, heads, layers in (("w_q", 54, 391), ("qk", 52, 287), ("ov", 52, 287)):
        assert found.heads[name].dims["90"] == pytest.approx(heads, abs=1)
        assert found.layers[name].dims["90"] == pytest.approx(layers, abs=1)
    assert found.heads["qk"].numerical_rank == 64
    assert (found.heads["qk"].draws, found.layers["qk"].draws) == (24, 2)
    assert (found.asymmetry, found.layer_asymmetry) == pytest.approx((2**0.5,) * 2, abs=0.005)
    for value in found.overlap.values():
        assert value == pytest.approx(64 / 768, abs=0.001)


def test_averages_and_deviations_by_hand() -> None:
    draws = [random_layer(2, 20, 4, seed) for seed in range(3)]
    found = layer_control(draws, Reading())
    single = [rank for draw in draws for rank in matrix_ranks(draw, Reading())["qk"]]
    ours = found.heads["qk"]
    for name in ("stable_rank", "effective_rank"):
        values = [getattr(rank, name) for rank in single]
        assert getattr(ours, name) == pytest.approx(fmean(values))
        assert ours.std[name] == pytest.approx(stdev(values))
    assert ours.dims["95"] == pytest.approx(fmean(rank.dims["95"] or 0 for rank in single))
    unit = [np.array(r.singular_values) / np.linalg.norm(r.singular_values) for r in single]
    np.testing.assert_allclose(ours.singular_values, np.mean(unit, axis=0), rtol=1e-12)
    assert found.asymmetry == pytest.approx(
        fmean(float(a) for draw in draws for a in asymmetry(draw.W_Q, draw.W_K))
    )
    between = [float(subspace_overlap(draw.W_Q, draw.W_Q)[0, 1]) for draw in draws]
    assert found.overlap["query"] == pytest.approx(fmean(between))


def test_what_a_control_cannot_know() -> None:
    # One head has no overlap with another.
    found = layer_control([random_layer(1, 20, 4, seed) for seed in range(2)], Reading())
    assert (found.overlap["query"], found.overlap["key"]) == (None, None)
    assert found.overlap["query_key"] == pytest.approx(0.2, abs=0.15)
    # What a coarse type cannot decide stays undecided.
    reading = Reading(eps=2.0**-7)
    coarse = layer_control([random_layer(2, 200, 4, seed) for seed in range(2)], reading)
    assert coarse.heads["qk"].numerical_rank is None
    assert "numerical_rank" not in coarse.heads["qk"].std
    assert coarse.heads["qk"].effective_rank is not None
    # One matrix has no deviation.
    (one,) = matrix_ranks(Factors(*gaussian(4, 1, 9, 3)), Reading())["qk"]
    alone = average([one])
    assert (alone.std, alone.draws, alone.effective_rank) == ({}, 1, one.effective_rank)


def test_control_does_not_depend_on_the_scale_or_order_of_heads() -> None:
    draw = random_layer(3, 20, 4)
    scaled = Factors(*(getattr(draw, name)[[2, 0, 1]] * 1e-3 for name in vars(draw)))
    ours, theirs = (layer_control([item, item], Reading()) for item in (draw, scaled))
    for name in ("qk", "ov", "w_q", "w_k"):
        for table in ("heads", "layers"):
            a, b = getattr(ours, table)[name], getattr(theirs, table)[name]
            np.testing.assert_allclose(a.singular_values, b.singular_values, rtol=1e-9)
            assert a.effective_rank == pytest.approx(b.effective_rank, rel=1e-9)
            assert a.dims == b.dims
    assert ours.asymmetry == pytest.approx(theirs.asymmetry, rel=1e-9)
