"""Seconds: what a run says of the time that is left, and the benchmark of both models."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from families import tiny
from tiny_models import translator
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.core.errors import InputError
from headscope.core.progress import SECONDS, STEPS
from headscope.core.serialise import from_dict, to_dict
from headscope.pruning.result import SpeedResult
from headscope.pruning.speed import _work, benchmark
from headscope.pruning.steps import Cost, Steps

COSTS = {
    "measured": Cost(1.0),
    "scale": Cost(4.0),
    "save": Cost(2.0, 3.0),
    "shape 0": Cost(seconds=12.0),
    "gates": Cost(20.0),
}


class Run:
    """A run of steps by a clock that stands still until it is told to go on, and what it told."""

    def __init__(self, *parts: tuple[str, dict[str, int]]) -> None:
        self.now = 100.0
        self.said: list[tuple[str, int, int]] = []
        self.steps = Steps(lambda *told: self.said.append(told), lambda: self.now)
        self.steps.plan(COSTS, [(name, Counter(kinds)) for name, kinds in parts], 2.0)

    def spend(self, kind: str, seconds: float) -> None:
        self.now += seconds
        self.steps.did(kind)

    @property
    def left(self) -> int:
        """Seconds left, of what was told last."""
        what, so_far, in_all = self.said[-1]
        assert what == SECONDS
        return in_all - so_far


def test_everything_that_is_known_to_come_counts_from_the_start():
    """10 passes of 2 s, scales of 8 s, and saving and a benchmark in the part after."""
    run = Run(("", {"measured": 10, "scale": 2}), ("", {"save": 1, "shape 0": 1}))
    assert run.left == 20 + 16 + (4 + 3) + 12


def test_it_says_which_step_of_how_many_comes():
    run = Run(("", {"measured": 2, "scale": 1}), ("", {"save": 1}))
    run.steps.doing("measured")
    assert run.said[-1][0] == "measuring a model"
    counted = [told[1:] for told in run.said if told[0] == STEPS]
    assert counted == [(1, 4)]
    run.spend("measured", 1.0)
    run.steps.expect({})  # the rest of the part was not needed
    run.spend("measured", 1.0)
    run.steps.begin()
    assert [told[1:] for told in run.said if told[0] == STEPS] == [(1, 4), (2, 4), (3, 3), (3, 3)]
    run.steps.doing("save")
    assert run.said[-1][0] == "save"


def test_what_was_done_prices_what_is_left():
    run = Run(("", {"measured": 4, "scale": 1}), ("", {"save": 1}))
    run.spend("measured", 6.0)
    # A kind that was done takes its own time; the others the pace so far: (2 + 6) / 2 a pass.
    assert run.left == 3 * 6 + 4 * 4 + (2 * 4 + 3)
    run.spend("measured", 2.0)
    assert run.left == pytest.approx(2 * 4 + 4 * (10 / 3) + (2 * 10 / 3 + 3), abs=1)


REMOVED = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (2, 0)]


def counted(run: Callable[[], object]) -> int:
    """Multiplications, as torch's counter sees them: with an addition each, it counts two."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("family", ["bert", "albert, two groups"])
def test_multiplications_are_those_that_torch_counts(family):
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
def test_both_sides_of_an_encoder_decoder_model_are_counted(kind, stack):
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


def test_benchmark(monkeypatch):
    monkeypatch.setattr("headscope.pruning.speed._SECONDS", 0.0)
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
