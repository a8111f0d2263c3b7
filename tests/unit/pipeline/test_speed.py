"""The benchmark counts multiplications as torch's own counter does, and times both models."""

from __future__ import annotations

import pytest
import torch
from families import tiny
from tiny_models import translator
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.errors import InputError
from headscope.pipeline.prune.speed import _work, benchmark
from headscope.results import SpeedResult, from_dict, to_dict

REMOVED = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (2, 0)]


@pytest.mark.parametrize("family", ["bert", "albert, two groups", "distilbert", "electra"])
def test_multiplications_are_those_that_torch_counts(family: str) -> None:
    full = headscope.wrap(tiny(family, auto=AutoModelForSequenceClassification))
    removed = REMOVED if family != "albert, two groups" else REMOVED[:1]
    for loaded in (full, headscope.remove_heads(full, removed)):
        ids = torch.randint(5, 61, (2, 11))
        loaded.network.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            loaded.run(ids, torch.ones_like(ids))
        # It counts a multiplication and an addition as two.
        assert 2 * _work(loaded, ids, torch.ones_like(ids))[0] == counter.get_total_flops()


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross", "all"])
def test_both_sides_of_an_encoder_decoder_model_are_counted(kind: str, stack: str) -> None:
    """The whole pass as torch counts it; the attention part has 3 of 4 heads left in each layer."""
    full = headscope.wrap(translator(kind)).only(stack)
    removed = [(site.stack, site.layer, 1) for site in full.sites]
    ids = torch.randint(5, 29, (2, 11))
    found = []
    for loaded in (full, headscope.remove_heads(full, removed)):
        loaded.network.set_attn_implementation("eager")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            loaded.network(input_ids=ids, decoder_input_ids=ids)
        found.append(_work(loaded, ids, torch.ones_like(ids)))
        assert 2 * found[-1][0] == counter.get_total_flops()
    assert found[1][1] / found[0][1] == pytest.approx(3 / 4)


def test_attention_part_is_proportional_to_heads() -> None:
    full = headscope.wrap(tiny("bert"))
    pruned = headscope.remove_heads(full, REMOVED)
    ids = torch.randint(5, 61, (2, 11))
    (_, all_heads), (_, some) = (_work(m, ids, torch.ones_like(ids)) for m in (full, pruned))
    assert some / all_heads == pytest.approx(6 / 12)


def test_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.pipeline.prune.speed._SECONDS", 0.0)
    full = headscope.wrap(tiny("bert", hidden_size=128, intermediate_size=128))
    pruned = headscope.remove_heads(full, REMOVED)
    full.model.set_attn_implementation("eager")
    seen = []
    result = benchmark(
        full,
        pruned,
        lengths=(4, 32, 99),
        batch_sizes=(1, 2),
        progress=lambda *args: seen.append(args),
    )
    assert [(row.length, row.batch_size) for row in result.rows] == [
        (4, 1),
        (4, 2),
        (32, 1),
        (32, 2),
    ]
    assert (result.heads_full, result.heads_pruned) == (12, 6)
    assert result.parameters_full - result.parameters_pruned == 6 * (4 * 128 * 32 + 3 * 32)
    assert result.threads == torch.get_num_threads()
    for row in result.rows:
        assert row.attention_predicted_ratio == pytest.approx(0.5)
        assert row.attention_predicted_ratio < row.predicted_ratio < 1
        assert 0 < row.attention_full_ms < 3 * row.full_ms
        assert row.ratio == pytest.approx(row.pruned_ms / row.full_ms)
        assert row.repeats == 5
    assert seen[0] == ("benchmark", 0, 4)
    assert seen[-1] == ("benchmark", 4, 4)
    assert full.model.config._attn_implementation == "eager"
    assert from_dict(SpeedResult, to_dict(result)) == result


def test_lengths_that_do_not_fit() -> None:
    full = headscope.wrap(tiny("bert"))
    with pytest.raises(InputError, match="takes 1 to 40 tokens"):
        benchmark(full, full, lengths=(64,))
    with pytest.raises(InputError, match="can be timed"):
        benchmark(full, full, lengths=(8,), batch_sizes=(0,))
