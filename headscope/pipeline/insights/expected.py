"""How long a run of ``insights`` will take: said beforehand, and how far it has come as a whole."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from headscope.data.plain import encode_lines, sample_plain
from headscope.models.loaded import LoadedModel
from headscope.session.progress import SECONDS, Progress

__all__ = ["Whole", "announcement", "expected_seconds"]

_SENTENCES = 16  # Sentences whose pass is timed.
#: Passes over these that each part takes as long as, by its defaults; measured on the demo model.
#: "insights" are the kept roles of claim 2.
_PASSES = {
    **{"classify": 170, "rank": 30, "spectrum": 65, "depth": 245, "flow": 125, "linear": 125},
    **{"symmetric": 180, "insights": 350, "transfer": 6000},
}


def expected_seconds(loaded: LoadedModel, parts: Sequence[str], budget: float) -> dict[str, float]:
    """Guess the seconds of each part from one pass of the model; transfer keeps to the budget."""
    lines = [] if loaded.tokenizer is None else list(sample_plain())[:_SENTENCES]
    encoded = encode_lines(loaded, lines)
    batch = loaded.pad([ids for ids in encoded if ids is not None] or [[0]])
    seconds = []
    for _ in range(3):  # the first one warms up
        started = time.perf_counter()
        with torch.no_grad():
            loaded.forward(*batch)
        seconds.append(time.perf_counter() - started)
    expected = {name: _PASSES[name] * min(seconds) for name in parts}
    others = sum(value for name, value in expected.items() if name != "transfer")
    if "transfer" in expected:
        expected["transfer"] = min(expected["transfer"], max(budget - others, 1.0))
    return expected


def announcement(expected: Mapping[str, float], budget: float) -> str:
    """Say what will be measured, about how long that takes, and what leaves the longest out."""
    names = ["the roles kept alone" if name == "insights" else name for name in expected]
    text = f"insights measures {', '.join(names)}: about {_minutes(sum(expected.values()))}"
    if "transfer" not in expected:
        return f"{text}."
    return (
        f"{text}, {_minutes(expected['transfer'])} of it transfer, which ends {budget:g} s after "
        "the start (budget). Skip transfer to leave out claims 8 to 10."
    )


def _minutes(seconds: float) -> str:
    return f"{max(seconds, 1):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Whole:
    """Tells beside every part how many seconds the whole run has taken and will take.

    What was expected is priced anew by the pace so far; transfer ends with the budget.
    """

    def __init__(
        self,
        expected: dict[str, float],
        budget: float,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected, self._budget, self._progress = expected, budget, progress
        self._clock, self._start = clock, clock()
        self._all, self._done = sum(expected.values()), 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell of a part ("name, what"), and of the whole."""
        names, name = list(self._expected), what.partition(",")[0]
        if name in names:
            before = sum(self._expected[other] for other in names[: names.index(name)])
            now = before + self._expected[name] * done / max(total, 1)
            self._done = max(self._done, now)  # a part may count several things, one by one
            so_far = self._clock() - self._start
            self._progress(SECONDS, int(so_far), math.ceil(so_far + max(self._left(so_far), 1.0)))
        self._progress(what, done, total)

    def finish(self) -> None:
        """Say that nothing is left."""
        so_far = max(round(self._clock() - self._start), 1)
        self._progress(SECONDS, so_far, so_far)

    def _left(self, so_far: float) -> float:
        trust = 0.05 * self._all  # in what was expected, until as much has been done
        pace = (so_far + trust) / (self._done + trust)
        tuning = min(self._expected.get("transfer", 0.0), self._all - self._done)
        others = pace * (self._all - self._done - tuning)
        return others + min(pace * tuning, max(self._budget - so_far - others, 0.0))
