"""What ``insights`` says of the time that is left."""

import itertools

import pytest

from headscope.core.progress import SECONDS
from headscope.reports.claims.run import Whole


@pytest.mark.parametrize(
    ("pace", "budget", "true"),
    [(1.0, 1000.0, 100), (3.0, 1000.0, 300), (1.0, 80.0, 80), (3.0, 200.0, 200)],
)
def test_what_insights_promises_follows_the_pace_and_the_budget(pace, budget, true):
    """Each of the parts takes ``pace`` times what was expected."""
    expected = {"classify": 20.0, "depth": 30.0, "transfer": 50.0}
    now, seen = [0.0], list[tuple[int, int]]()

    def progress(what: str, done: int, total: int) -> None:
        if what == SECONDS:
            seen.append((done, total))

    whole = Whole(expected, budget, progress, lambda: now[0])
    for name, part in itertools.product(("classify", "depth"), range(1, 11)):
        now[0] += pace * expected[name] / 10
        whole(f"{name}, batches", part, 10)
    start, end = now[0], min(now[0] + pace * expected["transfer"], max(budget, now[0] + 1))
    for part in range(1, 10):
        now[0] = start + (end - start) * part / 10
        whole("transfer, runs", int(part * 10 * (end - start) / (pace * 50)), 100)
    now[0] = end
    whole.finish()
    assert all(total > done for done, total in seen[:-1])
    assert seen[-1][0] == seen[-1][1] == pytest.approx(true, abs=1)
    halfway = [total for done, total in seen if done >= true / 4]
    assert halfway == pytest.approx([true] * len(halfway), rel=0.3)
