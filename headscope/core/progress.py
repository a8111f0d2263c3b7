"""How a command reports its progress, and at which of its steps it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

#: Called with (what is measured, done, all) after every batch or step.
Progress = Callable[[str, int, int], None]
#: What a run does before its first step.
_FIRST = "opening and checking the model"


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def part_of(name: str, progress: Progress) -> Progress:
    """Report under the name of a part of a longer run."""

    def tell(what: str, done: int, total: int) -> None:
        progress(f"{name}, {what}", done, total)

    return tell


class Steps:
    """Which of its steps a run is at, and how much of that step is done.

    ``names`` are the steps in their order. A report counts for the step of its name, or of the
    name's first part ("classify, model" for "classify"); any other name becomes a step of its own
    after the step before it. One thread may report while another one reads.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._order = [_FIRST, *names]
        self._now = _FIRST
        self._words = _FIRST
        self._share: float | None = None
        self._lock = threading.Lock()

    def tell(self, what: str, done: int, total: int) -> None:
        """Take in what a step reports."""
        with self._lock:
            self._now = self._step_of(what)
            self._words, self._share = what.replace(", ", ": ", 1), done / max(total, 1)

    def _step_of(self, what: str) -> str:
        for name in (what, what.partition(", ")[0]):
            if name in self._order:
                return name
        self._order.insert(self._order.index(self._now) + 1, what)
        return what

    @property
    def share(self) -> float:
        """How much of the step is done, from 0 to 1."""
        return self._share or 0.0

    def title(self) -> str:
        """Say what runs: ``step 3 of 7: choosing heads``."""
        with self._lock:
            number = 1 + self._order.index(self._now)
            return f"step {number} of {len(self._order)}: {self._words}"

    def sentence(self) -> str:
        """Say also how much of it is done, once that is known: ``..., 41%``."""
        share = self._share
        return self.title() if share is None else f"{self.title()}, {share:.0%}"
