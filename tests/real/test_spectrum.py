"""``spectrum`` on the demo model: against output_attentions and NumPy, and when it stops."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

import headscope
from headscope.analyses.spectrum import efficient
from headscope.analyses.spectrum.passes import MINIMUM
from headscope.analyses.spectrum.view import control_sentence
from headscope.data.corpus import as_plain
from headscope.data.packing import pack
from headscope.models.run.implementation import use_implementation


@pytest.fixture(scope="module")
def result(demo):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficient, "TOKENS", 256)
        patch.setattr(efficient, "DRAWS", 2)
        return headscope.spectrum(demo, length=64, sequences=8, efficient=True)


@pytest.fixture(scope="module")
def little():
    """A text of some thousand tokens, in memory."""
    return list(itertools.islice(as_plain(None).lines(), 60))


def test_equals_a_script_on_output_attentions(demo, result):
    windows = pack(as_plain(None), demo, 64)
    ids = torch.from_numpy(windows.batch([i * len(windows) // 8 for i in range(8)]))
    with use_implementation(demo.model, "eager"), torch.no_grad():
        attentions = demo.model(input_ids=ids, output_attentions=True).attentions
    for head in result.heads:
        sigma = np.linalg.svd(attentions[head.layer][:, head.head].double(), compute_uv=False)
        curves = np.cumsum(sigma, -1) / sigma.sum(-1, keepdims=True)
        np.testing.assert_allclose(head.curve, curves.mean(0), atol=2e-5)
        assert head.share_at_k.value == pytest.approx(curves[:, 15].mean(), abs=2e-5)
        half = stats.t.ppf(0.975, 7) * curves[:, 15].std(ddof=1) / np.sqrt(8)
        assert head.share_at_k.half_width == pytest.approx(half, abs=5e-5)
        squares = np.cumsum(sigma**2, -1) / (sigma**2).sum(-1, keepdims=True)
        np.testing.assert_allclose(head.curve_sq, squares.mean(0), atol=2e-5)


def test_positional_heads_are_the_exception(result):
    """L0H2 attends to the previous token, so its spectrum is that control's."""
    head = result.heads[2]
    assert (head.name, head.offset) == ("L0H2", -1)
    assert head.offset_mass > 0.95
    assert head.share_at_k.value == pytest.approx(
        result.controls["previous-token"].share_at_k, abs=0.02
    )
    assert "L0H2" in result.verdict.not_low_rank
    assert len(result.verdict.low_rank) > 10
    verdict = result.verdict
    names = {*verdict.low_rank, *verdict.not_low_rank, *verdict.between}
    assert names == {h.name for h in result.heads}


def test_cheap_forms_end_to_end(result):
    efficient = result.efficient
    assert efficient is not None
    points = {(p.form, p.size): p for p in efficient.points}
    sizes = [2, 4, 8, 16, 32]
    best = [points["truncated", k] for k in sizes]
    assert [p.error.value for p in best] == sorted((p.error.value for p in best), reverse=True)
    for k in sizes:  # nothing of rank k beats the bound, and more keys keep more mass
        bound = points["bound", k].error.value
        errors = [points[form, k].error.value for form in ("truncated", "random", "pooled")]
        assert bound < min(errors)
        assert (bound == 0) == (k >= 32)  # d_head
        window = points["window", k]
        more = points["window+global", k]
        assert window.mass is not None
        assert more.mass is not None
        assert window.mass < more.mass
    assert best[-1].fidelity.value > 0.97 > points["uniform", 0].fidelity.value
    assert all(-1 <= p.fidelity.value <= 1 for p in efficient.points)
    heads = [h for h in efficient.heads if (h.form, h.size) == ("window", 4)]
    assert len(heads) == 72
    assert np.mean([h.error.value for h in heads]) == pytest.approx(points["window", 4].error.value)
    # One key back suffices for the previous-token head alone.
    by_name = {(h.layer, h.head): h for h in heads}
    assert by_name[0, 2].error.value < 0.1 < by_name[5, 0].error.value


def test_random_weights_are_of_low_rank_too(demo):
    """methods: 0.97, and all 72 heads above 0.9, on MiniLM's geometry: no sign of learning."""
    result = headscope.spectrum(demo, sequences=10, control=True)
    random = result.random_weights
    assert random is not None
    assert random.share_at_k.value == pytest.approx(0.97, abs=0.01)
    assert [draw.above for draw in random.draws] == [72] * 5
    text = control_sentence(result)
    assert "72 of 72 heads are above 0.9: low rank alone is no sign of learning" in text
    assert "below that" in text


def test_adaptive_mode_stops_when_precise_or_says_that_the_text_ended(demo, little):
    result = headscope.spectrum(demo, length=32, precision=0.05)
    sampling = result.sampling
    assert (sampling.mode, sampling.reached) == ("adaptive", True)
    assert MINIMUM <= result.sequences < sampling.windows
    widest = max(h.share_at_k.half_width for h in result.heads)
    assert widest == pytest.approx(sampling.half_width)
    assert sampling.half_width < 0.05
    # All windows, in a random order that the seed decides or in their own: the same means.
    ended = headscope.spectrum(demo, little, length=32, precision=1e-6, seed=1)
    assert ended.sampling.reached is False
    assert ended.sequences == ended.sampling.windows
    fixed = headscope.spectrum(demo, little, length=32, sequences=10**6)
    for one, other in zip(ended.heads, fixed.heads, strict=True):
        assert one.share_at_k.value == pytest.approx(other.share_at_k.value, abs=1e-5)
