"""How a command reports its progress, and how much of a run of several steps is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

#: Called with (what is measured, done, all) after every batch or step.
Progress = Callable[[str, int, int], None]
#: The unit of a run that knows its time: seconds so far, and the estimate of all.
SECONDS = "seconds"
#: What a run tells that counts its steps itself: the number of the one that runs, and of all.
STEPS = "steps"
#: What a run does before its first step.
_FIRST = "opening and checking the model"
#: Of all that is expected, how much has to be done before the rest is judged by it.
_ENOUGH = 0.03


#: Sentences of the built-in sample.
_SAMPLE = 512


def part_of_sample(limit: int | None) -> float:
    """Return how many times the built-in sample a run reads that has such a limit."""
    return (limit or _SAMPLE) / _SAMPLE


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def part_of(name: str, progress: Progress) -> Progress:
    """Report under the name of a part of a longer run."""

    def tell(what: str, done: int, total: int) -> None:
        progress(f"{name}, {what}", done, total)

    return tell


class Overall:
    """Adds up what the steps of a run report to one share and one time left.

    ``expected`` names the steps in their order with the seconds that each takes with the demo
    model. Only their proportions count: the pace so far says what the rest takes here. A step that
    is passed over was not needed. One that is not named takes the next place whose name begins with
    ``*``, or is as long as the mean of the others. A step ``seconds`` says itself how long its part
    of the run takes, and is believed. One thread may tell while another one asks.
    """

    def __init__(
        self, expected: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._clock = dict(expected), clock
        self._order = [_FIRST, *expected]  # Every step that is known, done or not
        self._counted: tuple[int, int] | None = None  # By a run that counts its steps itself
        self._lock = threading.RLock()
        self._start = clock()
        self._expected = self._took = 0.0  # of the steps that are done
        self.step = ""  # What is measured now, in words
        #: The step that runs, and when it first and last spoke; shares of it that were done then.
        self._now = ""
        self._first = self._last = (self._start, 0.0)
        self._said: int | None = None  # Seconds left, by a step that knows them
        self._share = 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        """Take in what a step reports."""
        with self._lock:
            self._take(what, done, total)

    def _take(self, what: str, done: int, total: int) -> None:
        if what.rpartition(", ")[2] == STEPS:
            if what == STEPS:  # in a report all of a section's steps count as one
                self._counted = done, total
            return
        section, comma, _ = what.rpartition(", ")
        named = what not in self._steps and f"{section.partition(', ')[0]}{comma}{SECONDS}"
        if what.rpartition(", ")[2] != SECONDS:
            self.step = what.replace(", ", ": ", 1) if comma else what
        if named in self._steps:  # the whole of it is told apart
            return
        at = self._clock(), done / max(total, 1)
        if what != self._now:
            self._begin(what, at)
        self._now, self._last = what, at
        self._said = max(total - done, 0) if what.rpartition(", ")[2] == SECONDS else None

    def _begin(self, what: str, at: tuple[float, float]) -> None:
        if what not in self._steps:
            costs = [cost for name, cost in self._steps.items() if name != self._now]
            free = next((name for name in self._steps if name.rpartition(" ")[2][:1] == "*"), None)
            if free is not None:
                self._steps = {what if k == free else k: v for k, v in self._steps.items()}
                self._order[self._order.index(free)] = what
            else:
                if what not in self._order:
                    before = self._order.index(self._now or _FIRST)
                    self._order.insert(before + 1, what)
                mean = sum(costs) / len(costs) if costs else 1.0
                at_front = {self._now: self._steps[self._now]} if self._now in self._steps else {}
                self._steps = {**at_front, what: mean, **self._steps}
        if self._now in self._steps:
            self._expected += self._steps.pop(self._now) * (1 - self._first[1])
            self._expected += self._steps[what] * at[1]  # is done when it first speaks
            self._took += at[0] - self._first[0]
        for name in list(self._steps)[: list(self._steps).index(what)]:
            del self._steps[name]
        self._first = at

    def left(self) -> float | None:
        """Return the seconds that are left; None while too little is done to say."""
        with self._lock:
            return self._left()

    def _left(self) -> float | None:
        since = self._clock() - self._last[0]
        expected = self._steps.get(self._now, 0.0)
        (began, from_share), (ended, share) = self._first, self._last
        known = self._expected + expected * (share - from_share)
        took = self._took + ended - began
        rest = sum(self._steps.values()) - expected
        if self._said is not None:
            own: float | None = self._said
        elif share - from_share >= _ENOUGH:
            own = (ended - began) * (1 - share) / (share - from_share)
        else:
            own = None
            rest += expected * (1 - share)
        if rest and known <= _ENOUGH * (known + rest):
            return None
        seconds = (own or 0.0) + (rest * took / known if rest else 0.0)
        # Until the run ends something is left: a tenth of the time since it spoke, or a second.
        return max(seconds - since, 0.1 * since, 1.0)

    @property
    def all_of_it(self) -> float | None:
        """Seconds that the whole run takes, those that have passed included."""
        left = self.left()
        return None if left is None else self._clock() - self._start + left

    def share(self) -> float:
        """Return how much of the run is done, from 0 to 1; it never falls."""
        left, so_far = self.left(), self._clock() - self._start
        if left is not None:
            self._share = max(self._share, so_far / (so_far + left))
        return self._share

    def sentence(self) -> str:
        """Say what runs: ``step 3 of 7, choosing heads, 41%, about 1:05 left``.

        The share and the time are left out until they are known.
        """
        with self._lock:
            number = 1 + self._order.index(self._now or _FIRST), len(self._order)
            parts = ["step {} of {}".format(*(self._counted or number)), self.step or _FIRST]
            if (left := self.left()) is not None:
                parts += [f"{self.share():.0%}", f"{clock_text(left)} left"]
            return ", ".join(parts)


def clock_text(seconds: float | None) -> str:
    """Write a time, such as ``about 1:05``; nothing where it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"about {hours}:{minutes:02}:{rest:02}" if hours else f"about {minutes}:{rest:02}"
