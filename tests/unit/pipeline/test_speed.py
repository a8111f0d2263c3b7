"""The benchmark counts multiplications as torch's own counter does, and times both models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_families import tiny
from tiny_translators import translator
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.errors import InputError
from headscope.pipeline.prune.speed import _work, benchmark
from headscope.results import SpeedResult, from_dict, to_dict

REMOVED = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (2, 0)]


def counted(run: Callable[[], object]) -> int:
    """Multiplications, as torch's counter sees them: with an addition each, it counts two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("family", ["bert", "albert, two groups", "distilbert", "electra"])
def test_multiplications_are_those_that_torch_counts(family: str) -> None:
    full = headscope.wrap(tiny(family, auto=AutoModelForSequenceClassification))
    shared = family == "albert, two groups"
    ids = torch.randint(5, 61, (2, 11))
    ones, found = torch.ones_like(ids), []
    for loaded in (full, headscope.remove_heads(full, REMOVED[:1] if shared else REMOVED)):
        loaded.network.set_attn_implementation("eager")
        found.append(_work(loaded, ids, ones))
        assert found[-1][0] == counted(lambda loaded=loaded: loaded.run(ids, ones))
    if not shared:
        assert found[1][1] / found[0][1] == pytest.approx(6 / 12)  # of the attention part


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross", "all"])
def test_both_sides_of_an_encoder_decoder_model_are_counted(kind: str, stack: str) -> None:
    """The whole pass as torch counts it; the attention part has 3 of 4 heads left in each layer."""
    full = headscope.wrap(translator(kind)).only(stack)
    removed = [(site.stack, site.layer, 1) for site in full.sites]
    ids = torch.randint(5, 29, (2, 11))
    found = []
    for loaded in (full, headscope.remove_heads(full, removed)):
        net = loaded.network
        net.set_attn_implementation("eager")
        found.append(_work(loaded, ids, torch.ones_like(ids)))
        whole = counted(lambda net=net: net(input_ids=ids, decoder_input_ids=ids))
        assert found[-1][0] == whole
    assert found[1][1] / found[0][1] == pytest.approx(3 / 4)


def test_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.pipeline.prune.speed._SECONDS", 0.0)
    full = headscope.wrap(tiny("bert", hidden_size=128, intermediate_size=128))
    pruned = headscope.remove_heads(full, REMOVED)
    full.model.set_attn_implementation("eager")
    seen: list[tuple[str, int, int]] = []
    options = {"lengths": (4, 32, 99), "batch_sizes": (1, 2)}
    result = benchmark(full, pruned, **options, progress=lambda *args: seen.append(args))
    shapes = [(row.length, row.batch_size) for row in result.rows]
    assert shapes == [(4, 1), (4, 2), (32, 1), (32, 2)]
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
    with pytest.raises(InputError, match="takes 1 to 40 tokens"):
        benchmark(full, full, lengths=(64,))
    with pytest.raises(InputError, match="can be timed"):
        benchmark(full, full, lengths=(8,), batch_sizes=(0,))
