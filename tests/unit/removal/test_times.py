"""Models that take turns, and how many times as fast one is by a clock that the test winds."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.speeds import MACHINES, errors

from headscope.data.token_rows import Row
from headscope.removal import times as module
from headscope.removal.times import (
    ENOUGH,
    FEWEST,
    PARTS,
    affordable_batch,
    length_batches,
    median_interval,
    timed_in_turns,
    times,
    typical_batches,
)
from headscope.stats.estimate import Estimate


def test_models_take_turns_in_both_orders():
    said: list[str] = []
    runs = [[lambda name=f"{m}{b}": said.append(name) for b in "12"] for m in "ab"]
    spent = timed_in_turns(runs, fewest=2, most=9, seconds=0.0)
    assert spent.shape == (2, 2, 2)
    # Each once to warm up; then in turns, each turn begun with a pass that does not count.
    assert " ".join(said) == "a1 a2 b1 b2 b1 b1 b2 a1 a1 a2 a1 a1 a2 b1 b1 b2"


def test_batches_have_the_lengths_of_the_examples():
    rows = [[0] * n for n in np.random.default_rng(0).permutation(np.repeat([3, 9, 40], 20))]
    places = typical_batches(rows, 10)
    assert [sorted({len(rows[i]) for i in batch}) for batch in places] == [[3], [9], [40]]
    assert typical_batches(rows[:4], 10) == [sorted(range(4), key=lambda i: len(rows[i]))]
    windows = [[0] * 9 for _ in range(60)]  # of one length: any batch is like every other
    assert typical_batches(windows, 10) == [[*range(10)]]


def test_a_large_model_has_a_round_for_each_part_and_no_passes_that_do_not_count():
    """Passes of ten seconds: twelve rounds in place of sixty, each pass once a round."""
    now = 0.0
    n_passes = 0

    def slow() -> None:
        nonlocal now, n_passes
        now += 10.0
        n_passes += 1

    spent = timed_in_turns(
        [[slow], [slow]], fewest=FEWEST, most=2 * FEWEST, seconds=15.0, clock=lambda: now
    )
    assert spent.shape == (PARTS, 2, 1)
    assert n_passes == 2 + 2 * PARTS  # each once before, unmeasured
    assert median_interval(spent[:, 0, 0] * np.linspace(1, 2, PARTS)).interval is not None


def test_a_timed_batch_is_about_a_second_of_a_core():
    """120 million weights on windows of 100 tokens: four windows; a small model has as usual."""
    rows = [Row(i, tuple(range(100)), None, ()) for i in range(40)]

    def model(weights: int) -> Any:
        network = SimpleNamespace(num_parameters=lambda exclude_embeddings: weights)
        return SimpleNamespace(network=network)

    assert affordable_batch(model(120_000_000), rows, 32) == 4
    assert affordable_batch(model(1_000_000), rows, 32) == 32
    assert affordable_batch(model(10**12), rows, 32) == 1


def test_texts_of_one_length_share_other_batches_in_another_order():
    rows = [[0] * n for n in np.repeat([3, 9], 20)]
    usual = length_batches(rows, 8)
    drawn = length_batches(rows, 8, seed=4)
    for batches in (usual, drawn):
        texts = list(itertools.chain(*batches))
        assert sorted(texts) == list(range(40))
        lengths = [len(rows[text]) for text in texts]
        assert lengths == sorted(lengths)
    assert usual == length_batches(rows, 8)
    assert drawn == length_batches(rows, 8, seed=4)
    assert usual != drawn


class Clock:
    """A machine of two models, whose passes take milliseconds and an hour that drifts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ms_a_text: dict[str, float]) -> None:
        self.now = 0.0
        self._ms = ms_a_text
        self._passes = 0
        self._rng = np.random.default_rng(0)

        def by_this_clock(runs: Any, **options: Any) -> Any:
            return timed_in_turns(runs, **options, clock=lambda: self.now)

        monkeypatch.setattr(module, "_SECONDS", 15.0)
        monkeypatch.setattr(module, "_run_batch", self.run)
        monkeypatch.setattr(module, "timed_in_turns", by_this_clock)
        monkeypatch.setattr(
            module, "padded", lambda rows, pad_id, device: SimpleNamespace(ids=list(rows))
        )

    def run(self, model: Any, batch: Any) -> None:
        self._passes += 1
        drift = 1 + 0.2 * np.sin(self._passes / 150)  # the machine's pace, which both see
        noise = np.exp(0.05 * self._rng.normal())
        self.now += self._ms[model.name] / 1e3 * len(batch.ids) * drift * noise


def timed(name: str) -> Any:
    model = SimpleNamespace(name=name, pad_id=0, device="cpu", tokenizer=None)
    rows = [Row(i, tuple(range(3 + i % 5)), None, ()) for i in range(40)]
    return model, model, rows


def test_a_model_that_takes_half_of_the_time_is_twice_as_fast(monkeypatch):
    """3 against 1.5 milliseconds a text, on a machine whose pace drifts by a fifth."""
    clock = Clock(monkeypatch, {"whole": 3.0, "cut": 1.5})
    measured = times(timed("whole"), timed("cut"), batch_size=8)
    assert measured.speed.value == pytest.approx(2.0, abs=0.1)
    assert measured.speed.low is not None
    assert measured.speed.high is not None
    assert 1.8 < measured.speed.low < 2.0 < measured.speed.high < 2.2
    assert measured.ms.value == pytest.approx(1.5, rel=0.25)
    assert measured.ms_of_whole.value == pytest.approx(3.0, rel=0.25)
    # 3 batches of 8 texts and 3 single texts, a batch that is not counted before each round, both
    # models, the fewest rounds, and 15 s beyond them.
    spent = FEWEST * (3.0 + 1.5) / 1e3 * (8 * 4 + 3)
    assert spent < clock.now < 15 + spent
    itself = measured.of_whole()
    assert (itself.speed.value, itself.ms) == (1.0, measured.ms_of_whole)


def test_tokenising_and_single_texts_stand_beside(monkeypatch):
    """A batch costs 2 ms whatever it holds, cut or not, and a text half a ms to tokenise."""
    clock = Clock(monkeypatch, {"whole": 3.0, "cut": 1.5})
    run = clock.run

    def run_at_a_price(model: Any, batch: Any) -> None:
        clock.now += 2e-3
        run(model, batch)

    monkeypatch.setattr(module, "_run_batch", run_at_a_price)

    class Tokenizer:
        def batch_decode(self, ids: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
            return ["text"] * len(ids)

        def __call__(self, texts: list[str], *, verbose: bool) -> None:
            clock.now += 0.5e-3 * len(texts)

    whole = timed("whole")
    whole[0].tokenizer = Tokenizer()
    measured = times(whole, timed("cut"), batch_size=8)
    texts = 8 * 0.5
    whole_ms = 2 + 8 * 3.0
    cut_ms = 2 + 8 * 1.5
    assert measured.speed.value == pytest.approx(whole_ms / cut_ms, rel=0.05)
    with_texts = (whole_ms + texts) / (cut_ms + texts)
    assert measured.with_tokenising.value == pytest.approx(with_texts, rel=0.05)
    assert measured.one_text.value == pytest.approx((2 + 3.0) / (2 + 1.5), rel=0.05)
    assert measured.of_whole().one_text == Estimate(1.0)


def test_models_that_take_turns_with_each_other_are_compared_round_by_round(monkeypatch):
    Clock(monkeypatch, {"whole": 3.0, "cut": 1.5, "other": 1.2})
    together = module.timed_together(timed("whole"), [timed("cut"), timed("other")], batch_size=8)
    speeds = [measured.speed.value for measured in together.times]
    assert speeds == pytest.approx([2.0, 2.5], rel=0.05)
    assert together.lead(1, 0).value == pytest.approx(1.25, rel=0.03)
    assert together.lead(0, 1).high is not None
    assert together.lead(0, 1).high < 1


# --- intervals of medians -----------------------------------------------------------------


def test_the_interval_reaches_from_the_lowest_to_the_highest_part():
    """Twelve stretches of five pairs, one after the other; each has a known median."""
    medians = np.array([5, 3, 9, 4, 6, 8, 2, 7, 1, 12, 11, 10], dtype=float)
    series = (medians[:, None] + [-0.5, 9.0, 0.0, -9.0, 0.5]).ravel()
    estimate = median_interval(series)
    assert estimate == Estimate(float(np.median(series)), 1.0, 12.0)
    # In no order that mixes the stretches is it that wide: they hold what follows one another.
    mixed = median_interval(np.random.default_rng(0).permutation(series))
    assert mixed.low is not None
    assert mixed.low > 1.0


def test_too_few_pairs_and_pairs_without_noise_have_no_interval():
    noise = np.random.default_rng(3).normal(size=ENOUGH)
    assert median_interval(np.exp(noise)).interval is not None
    assert median_interval(np.exp(noise[1:])).interval is None
    assert median_interval(np.full(ENOUGH, 2.0)) == Estimate(2.0)


@pytest.mark.parametrize("machine", MACHINES, ids=[machine.name for machine in MACHINES])
def test_an_end_is_wrong_as_seldom_as_the_docs_say(machine):
    """At most 5% of runs on either side, but where each pace lasts two thirds of the run."""
    runs = 300
    most = 0.12 if machine.name == "two paces, each for 40 pairs" else 0.05
    rates = errors(machine, FEWEST, runs, seed=1)
    slack = 3 * np.sqrt(most * (1 - most) / runs)
    assert rates.known == 1.0
    assert rates.above <= most + slack
    assert rates.below <= most + slack
    # Wide enough to hold the truth, narrow enough to say something.
    assert 0.01 < rates.half_width < 0.09
