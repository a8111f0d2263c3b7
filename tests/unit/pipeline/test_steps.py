"""What a run says of the time that is left, by a clock that the test turns."""

from __future__ import annotations

from collections import Counter

import pytest

from headscope.cli.output import time_left
from headscope.pipeline.progress import SECONDS
from headscope.pipeline.prune.steps import Cost, Steps

COSTS = {
    "measured": Cost(1.0),
    "scale": Cost(4.0),
    "save": Cost(2.0, 3.0),
    "shape 0": Cost(seconds=12.0),
    "gates": Cost(20.0),
}


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told:
    """A run of steps, and what it told."""

    def __init__(self, *parts: tuple[str, dict[str, int]], a_pass: float = 2.0) -> None:
        self.clock = Clock()
        self.said: list[tuple[str, int, int]] = []
        self.steps = Steps(lambda *told: self.said.append(told), self.clock)
        self.steps.plan(COSTS, [(name, Counter(kinds)) for name, kinds in parts], a_pass)

    def spend(self, kind: str, seconds: float) -> None:
        self.clock.now += seconds
        self.steps.did(kind)

    @property
    def left(self) -> int:
        """Seconds left, of what was told last."""
        what, so_far, in_all = self.said[-1]
        assert what == SECONDS
        return in_all - so_far


def test_everything_that_is_known_to_come_counts_from_the_start() -> None:
    """10 passes of 2 s, scales of 8 s, and saving and a benchmark in the part after."""
    run = Told(("", {"measured": 10, "scale": 2}), ("", {"save": 1, "shape 0": 1}))
    assert run.left == 20 + 16 + (4 + 3) + 12


def test_what_was_done_prices_what_is_left() -> None:
    run = Told(("", {"measured": 4, "scale": 1}), ("", {"save": 1}))
    run.spend("measured", 6.0)
    # A kind that was done takes its own time; the others the pace so far: (2 + 6) / 2 a pass.
    assert run.left == 3 * 6 + 4 * 4 + (2 * 4 + 3)
    run.spend("measured", 2.0)
    assert run.left == pytest.approx(2 * 4 + 4 * (10 / 3) + (2 * 10 / 3 + 3), abs=1)


def test_fixed_seconds_do_not_grow_with_the_pace() -> None:
    run = Told(("", {"measured": 2, "shape 0": 1}))
    run.spend("measured", 200.0)
    assert run.left == 200 + 12
    run.steps.price("shape 0", Cost(seconds=50.0))
    run.spend("measured", 200.0)
    assert run.left == 50


def test_a_search_that_ends_early_drops_what_it_did_not_need() -> None:
    run = Told(("", {"measured": 8, "scale": 3}), ("", {"save": 1}))
    run.spend("measured", 2.0)
    run.steps.expect({"measured": 1})
    run.spend("measured", 2.0)
    assert run.left == 2 * 2 + 3
    run.steps.begin()
    assert run.left == 2 * 2 + 3


def test_a_long_step_counts_by_its_own_share() -> None:
    run = Told(("encoder", {"gates": 1, "measured": 1}))
    run.clock.now += 30.0
    run.steps("gates", 1, 4)
    assert ("encoder, gates", 1, 4) in run.said
    assert run.left == 90 + 2


def test_nothing_is_left_only_at_the_end() -> None:
    """A run that takes far longer than its steps were priced."""
    run = Told(("", {"measured": 2}), ("", {"save": 1}))
    for kind in ("measured", "measured", "measured", "unknown", "save", "save"):
        run.spend(kind, 300.0)
        assert run.left >= 1
    run.steps.begin()
    run.steps.begin()
    run.steps.finish()
    assert run.said[-1] == (SECONDS, 1800, 1800)
    so_far = [done for what, done, _ in run.said if what == SECONDS]
    assert so_far == sorted(so_far)


@pytest.mark.parametrize(
    ("done", "total", "since", "says"),
    [
        (0, 400, 0, "about 6:40 left"),
        (0, 400, 100, "about 5:00 left"),
        (10, 3700, 0, "about 1:01:30 left"),
        (395, 400, 4, "about 0:01 left"),
        (395, 400, 300, "about 0:30 left"),  # late: it will take some time yet
        (400, 400, 0, "done"),
    ],
)
def test_the_bar_says_about_and_never_zero(
    done: float, total: float, since: float, says: str
) -> None:
    assert time_left(done, total, since) == says
