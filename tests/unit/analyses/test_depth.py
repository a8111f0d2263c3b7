"""The residual against its definition, and its sums against plain means over windows."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from families import BY_NAME
from scipy import stats
from tiny_models import VOCABULARY, WORDS, tiny_bert, tiny_tokenizer
from torch import Tensor

import headscope
from headscope.analyses.depth.curves import COMPARISONS, collapsed_after, curves_of
from headscope.analyses.depth.measure import VARIANTS, residual_ratio
from headscope.analyses.depth.result import DepthCurves
from headscope.analyses.depth.view import blocks
from headscope.data.corpus import as_plain

NAMES = [variant.name for variant in VARIANTS]


def random_states(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def composite_norm(matrix: np.ndarray) -> float:
    return math.sqrt(np.linalg.norm(matrix, 1) * np.linalg.norm(matrix, np.inf))


def test_ratio_is_its_definition():
    hidden = random_states(3, 6, 4) + 1.0
    for states, ratio in zip(hidden.numpy(), residual_ratio(hidden), strict=True):
        residual = states - states.mean(axis=0)
        expected = composite_norm(residual) / composite_norm(states)
        assert float(ratio) == pytest.approx(expected, rel=1e-12)


def test_equal_rows_have_no_residual_and_opposite_rows_are_all_residual():
    row = random_states(1, 1, 8)
    assert float(residual_ratio(row.expand(1, 5, 8))) < 1e-15
    assert float(residual_ratio(torch.cat([row, -row], dim=1))) == pytest.approx(1.0)


def test_half_precision_is_taken_in_float64():
    """Column sums overflow float16."""
    ratio = residual_ratio((random_states(1, 200, 64) * 100).half())
    assert ratio.dtype == torch.float64
    assert 0 < float(ratio) < 2


def ratios(windows: int, seed: int = 0) -> np.ndarray:
    """Ratios (variants, points, windows) of every size down to rounding."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-16, 1, size=(len(VARIANTS), 5, 1))
    return sizes * rng.uniform(0.5, 1.5, size=(len(VARIANTS), 5, windows))


def array(curve: tuple[float | None, ...]) -> np.ndarray:
    return np.array(curve, dtype=float)


def test_curves_are_those_of_all_windows():
    values = ratios(23)
    curves = curves_of(values, 0.0)
    bare = "attention-without-layernorm"
    means = {**curves.variants, bare: curves.attention_without_layernorm}
    stds = {**curves.std, bare: curves.attention_without_layernorm_std}
    by_name = dict(zip(NAMES, values, strict=True))
    assert set(means) == set(stds) == set(by_name)
    for name, expected in by_name.items():
        np.testing.assert_allclose(array(means[name]), expected.mean(axis=-1), rtol=1e-12)
        np.testing.assert_allclose(array(stds[name]), expected.std(axis=-1, ddof=1), rtol=1e-9)
    for protection, comparison in zip(curves.protected, COMPARISONS, strict=True):
        # Window by window
        shares = (by_name[comparison.having] - by_name[comparison.lacking]) / by_name["full"]
        np.testing.assert_allclose(array(protection.mean), shares.mean(axis=-1), rtol=1e-12)
        # A spread of 1e-13 around a share of 1 keeps as many digits as the share itself has left.
        spread = shares.std(axis=-1, ddof=1)
        np.testing.assert_allclose(array(protection.std), spread, rtol=1e-6, atol=1e-15)
        low, high = stats.t.interval(0.95, 22, shares.mean(axis=-1), stats.sem(shares, axis=-1))
        np.testing.assert_allclose(array(protection.low), low, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(array(protection.high), high, rtol=1e-6, atol=1e-12)


def test_one_window_has_no_spread():
    curves = curves_of(ratios(1), 0.0)
    assert np.isfinite(array(curves.variants["full"])).all()
    for unknown in (curves.std["full"], curves.protected[0].low, curves.trends["ffn_gain"].low):
        assert set(unknown) == {None}


def trend(curves: DepthCurves, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a trend's mean, the lower end of its interval, and the windows that count."""
    curve = curves.trends[name]
    return array(curve.mean), array(curve.low), np.array(curve.windows)


def test_trends_are_taken_window_by_window():
    values = ratios(11)
    curves = curves_of(values, 0.0)
    by_name = dict(zip(NAMES, values, strict=True))
    alone = by_name["attention"]
    skip = by_name["attention+skip"]
    ffn = by_name["attention+ffn"]
    bare = by_name["attention-without-layernorm"]
    slow = {
        "attention_of_start": alone / alone[0],
        "skip_of_start": skip / alone[0],
        "layernorm_change": (alone - bare) / alone[0],
        "ffn_gain": np.log(ffn / alone),
    }
    for name, expected in slow.items():
        mean, low, windows = trend(curves, name)
        np.testing.assert_allclose(mean, np.mean(expected, axis=1), rtol=1e-9)
        half = 2.2281388519649385 * np.std(expected, axis=1, ddof=1) / math.sqrt(11)  # t, 10 df
        np.testing.assert_allclose(mean - low, half, rtol=1e-4, atol=1e-12)
        assert (windows == 11).all()
    mean, _, windows = trend(curves, "step_change")
    assert windows.tolist() == [0, 0, 11, 11, 11]
    steps = np.diff(alone[1:] / alone[:-1], axis=0)
    np.testing.assert_allclose(mean[2:], steps.mean(axis=1), rtol=1e-9)


def test_rounding_makes_no_step_and_no_gain():
    values = np.ones((len(VARIANTS), 4, 3))
    floor = 1e-3
    alone = NAMES.index("attention")
    ffn = NAMES.index("attention+ffn")
    values[alone] = np.array([[1, 1, 1], [0.1, 0.1, 0.1], [1e-2, 1e-2, 1e-6], [1e-6, 1e-6, 1e-6]])
    values[ffn] = values[alone] * 2
    curves = curves_of(values, floor)
    mean, _, windows = trend(curves, "step_change")
    assert windows.tolist() == [0, 0, 2, 0]
    assert mean[2] == pytest.approx(0.0)
    assert trend(curves, "ffn_gain")[2].tolist() == [3, 3, 2, 0]
    assert np.isnan(trend(curves, "ffn_gain")[0][3])


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([1.0, 0.5, 0.009, 0.001], 2),
        ([1.0, 0.001, 0.2, 0.001], 3),  # it must stay there
        ([1.0, 0.001, 0.2], None),
        ([1.0, 0.5, 0.01], None),  # below, not at
        ([1.0, float("nan"), 0.001], 2),
        ([1.0, 0.001, float("nan")], None),
    ],
)
def test_collapsed_after(curve, expected):
    assert collapsed_after(np.array(curve)) == expected


def test_the_number_of_threads_changes_nothing(tmp_path, monkeypatch):
    """Five batches, of which the last is not full; progress comes in the same order, too."""
    monkeypatch.setattr("headscope.analyses.depth.run.BATCH_TOKENS", 64)
    model = str(tiny_bert(tmp_path, layers=3))
    text = as_plain([" ".join(WORDS[:20])] * 40)
    threads_before = torch.get_num_threads()

    def measured(threads):
        """Return the result without its provenance, and the calls of progress."""
        torch.set_num_threads(threads)
        calls = []
        result = headscope.depth(
            model,
            text,
            length=16,
            sequences=18,
            validate=False,
            progress=lambda *call: calls.append(call),
        )
        return dataclasses.replace(result, provenance=None), calls

    try:
        by_one_thread, calls = measured(1)
        assert measured(4) == (by_one_thread, calls)
    finally:
        torch.set_num_threads(threads_before)
    assert calls[-1] == ("control", 18, 18)


def test_of_an_encoder_decoder_the_encoder_is_measured_and_said():
    model = BY_NAME["t5"].model("float64", vocab_size=len(VOCABULARY))
    loaded = headscope.wrap(model, tiny_tokenizer(38))
    result = headscope.depth(loaded, sequences=2, dtype="float32", validate=False)
    assert result.length == loaded.max_length < 128
    assert (result.stack, result.layers, result.layer_norm) == ("encoder", (0, 1), "pre")
    assert {len(curve) for curve in result.variants.values()} == {3}
    shown = [block.text for block in blocks(result) if hasattr(block, "text")]
    assert any("encoder alone" in text for text in shown)
