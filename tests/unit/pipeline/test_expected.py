"""The seconds that a run of insights says it will take, by a clock made for it."""

from __future__ import annotations

import itertools

import pytest

from headscope.pipeline.insights.expected import Whole, announcement
from headscope.pipeline.progress import SECONDS

EXPECTED = {"classify": 20.0, "depth": 30.0, "transfer": 50.0}


def told(pace: float, budget: float) -> list[tuple[int, int]]:
    """(so far, in all) of a run each of whose parts takes ``pace`` times what was expected."""
    now, seen = [0.0], []

    def progress(what: str, done: int, total: int) -> None:
        if what == SECONDS:
            seen.append((done, total))

    whole = Whole(EXPECTED, budget, progress, lambda: now[0])
    for name, part in itertools.product(("classify", "depth"), range(1, 11)):
        now[0] += pace * EXPECTED[name] / 10
        whole(f"{name}, batches", part, 10)
    end = min(now[0] + pace * EXPECTED["transfer"], max(budget, now[0] + 1))
    start = now[0]
    for part in range(1, 10):
        now[0] = start + (end - start) * part / 10
        whole("transfer, runs", int(part * 10 * (end - start) / (pace * 50)), 100)
    now[0] = end
    whole.finish()
    return seen


@pytest.mark.parametrize(
    ("pace", "budget", "true"),
    [(1.0, 1000.0, 100), (3.0, 1000.0, 300), (1.0, 80.0, 80), (3.0, 200.0, 200)],
)
def test_the_promise_follows_the_pace_and_the_budget(
    pace: float, budget: float, true: float
) -> None:
    seen = told(pace, budget)
    assert all(total > done for done, total in seen[:-1])
    assert seen[-1][0] == seen[-1][1] == pytest.approx(true, abs=1)
    halfway = [total for done, total in seen if done >= true / 4]
    assert halfway == pytest.approx([true] * len(halfway), rel=0.3)


def test_transfer_is_named_with_what_leaves_it_out() -> None:
    assert "Skip transfer" in announcement(EXPECTED, 100.0)
    assert "Skip" not in announcement({"classify": 20.0}, 100.0)
