"""How long a run of ``insights`` will take: said beforehand, and how far it has come as a whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from headscope.data.plain import encode_lines, sample_plain
from headscope.models.loaded import LoadedModel
from headscope.pipeline.progress import Progress

__all__ = ["Whole", "announcement", "expected_seconds"]

#: Sentences whose pass is timed.
_SENTENCES = 16
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
    """Tells beside every part how far the whole run has come, in the seconds that it will take.

    Parameters
    ----------
    expected : dict of str to float
        Seconds of each part, in their order.
    progress : Progress
        Who is told.
    """

    def __init__(self, expected: dict[str, float], progress: Progress) -> None:
        self._expected, self._progress = expected, progress
        self._most = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell of a part ("name, what"), and of the whole."""
        names = list(self._expected)
        name = what.partition(",")[0]
        if name in names:
            before = sum(self._expected[other] for other in names[: names.index(name)])
            now = before + self._expected[name] * done / max(total, 1)
            self._most = max(self._most, now)  # a part may count several things, one by one
            self._progress("all", round(self._most), round(sum(self._expected.values())))
        self._progress(what, done, total)
