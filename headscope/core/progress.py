"""How a command reports its progress, at which of its steps it is, and how long it still takes.

A run has steps, such as "measuring the model" and "reading the text". While a step runs, the
command calls a :data:`Progress` after every batch. What it does before its first step it tells by
:func:`say`, to whoever is :func:`listening`. :class:`Steps` puts both together, for a bar or a log
to show: ``step 3 of 7: choosing heads, 41% (1:12 so far, about 4 min left)``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

#: Called with (name of the step, done, total) after every batch.
Progress = Callable[[str, int, int], None]
#: What a run does first of all, for seconds.
_LOADING = "loading PyTorch and transformers"
#: What a reader is told of steps whose names say too little.
_STEP_WORDS = {
    "model": "measuring the model",
    "control": "measuring random weights",
    "runs": "fine-tuning",
    "whole model": "measuring the whole model in every runtime",
    "smaller model": "measuring the smaller model",
    "text": "reading the text",
    "files": "writing the files",
}
#: Share of a step that must be done before its speed is trusted.
_LEAST_SHARE = 0.02
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def say(words: str) -> None:
    """Say what a run does before its first step, to whoever shows how far it has come."""
    listener = _listener.get()
    if listener is not None:
        listener(words)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with what is told by :func:`say` inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def silent(step: str, done: int, total: int) -> None:
    """Report nothing: the :data:`Progress` of runs that nobody watches."""


def progress_of_part(name: str, progress: Progress) -> Progress:
    """Return a progress for a part of a longer run, whose steps become ``part, step``."""

    def tell(step: str, done: int, total: int) -> None:
        progress(f"{name}, {step}", done, total)

    return tell


class ByTheClock(float):
    """Seconds that a step is given, however slow the machine is: minutes that a user allows."""


class _Account:
    """What one step has taken, which a run may do in several parts, or several times.

    The next part begins where the share that is done falls. It is the step once more if its name is
    that of the part before, and else another part of it: "whole model, timed again".
    """

    def __init__(self) -> None:
        self.name = ""  # Of the present part
        self.share = 0.0  # Of the present part that is done
        self.part_seconds = 0.0  # That the present part has taken
        self.earlier_seconds = 0.0  # That all parts before it took
        self.times_before = 0  # How many times the step was done before

    def tell(self, name: str, share: float) -> None:
        """Note how much of a part is done."""
        if share < self.share:
            self.earlier_seconds += self.part_seconds
            self.part_seconds = 0.0
            if name == self.name:
                self.times_before += 1
        self.name = name
        self.share = share

    @property
    def has_speed(self) -> bool:
        """Whether enough of the present part is done to tell how long all of it takes."""
        return self.share >= _LEAST_SHARE

    @property
    def part_takes(self) -> float:
        """How long the present part takes by its own speed so far."""
        return self.part_seconds / self.share

    def seconds_taken(self) -> float:
        """Return how long the step took, which has ended: on average, if it was done again."""
        return (self.earlier_seconds + self.part_seconds) / (self.times_before + 1)

    def seconds_expected(self) -> float | None:
        """Return how long the step takes each time, by its own speed; None as long as it has none.

        That is the speed of the present part, or of those before it.
        """
        if self.has_speed:
            return (self.earlier_seconds + self.part_takes) / (self.times_before + 1)
        if self.earlier_seconds:
            return self.earlier_seconds / max(self.times_before, 1)
        return None


class Steps:
    """Which of its steps a run is at, how much of that step is done, and the time that is left.

    A report under the name "classify, model" belongs to the step of that name, or to the step
    "classify"; if there is neither, it becomes a new step after the present one. What is told
    before the first step has no number. One thread may report while another one reads.

    The time left is that of the whole run: of the present step by its own speed so far, of later
    ones by how long they usually take beside those that have run. Steps that end by the clock take
    their time on every machine, so they say nothing about its speed.
    """

    def __init__(
        self,
        usual_seconds: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin before the first step.

        ``usual_seconds`` names the steps in their order, with the time that they usually take
        beside each other, or the :class:`ByTheClock` that they are given.
        """
        self._order = list(usual_seconds)
        self._usual_seconds = usual_seconds
        self._clock = clock
        self._started = clock()
        self._step: str | None = None  # The present one; None before the first
        self._counted_until = self._started  # Time before this is in the accounts
        self._accounts: dict[str, _Account] = {}  # Of the steps that have begun
        self._words = _LOADING
        self._lock = threading.Lock()

    def say(self, words: str) -> None:
        """Note what is done before the first step."""
        with self._lock:
            if self._step is None:
                self._words = words

    def tell(self, name: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` of the step ``name`` are done."""
        with self._lock:
            self._count_time()
            self._step = self._step_of(name)
            account = self._accounts.setdefault(self._step, _Account())
            account.tell(name, done / max(total, 1))
            # "classify, model" -> "classify: measuring the model"
            words = [_STEP_WORDS.get(step, step) for step in name.split(", ", 1)]
            self._words = ": ".join(words)

    def _count_time(self) -> None:
        """Add the time since the last count to the account of the present step."""
        now = self._clock()
        if self._step is not None:
            self._accounts[self._step].part_seconds += now - self._counted_until
        self._counted_until = now

    def _step_of(self, name: str) -> str:
        """Return the step that a report's name belongs to."""
        first_part, _, _ = name.partition(", ")
        for step in (name, first_part):
            if step in self._order:
                return step
        for step in self._order:  # "classify" begins with the first of its own steps
            if step.startswith(f"{name}, "):
                return step
        position = 0 if self._step is None else self._order.index(self._step) + 1
        self._order.insert(position, name)
        return name

    @property
    def share(self) -> float | None:
        """How much of the step is done, from 0 to 1; None before the first one."""
        return None if self._step is None else self._accounts[self._step].share

    def title(self) -> str:
        """Say what runs: ``step 3 of 7: choosing heads``."""
        with self._lock:
            if self._step is None:
                return self._words
            number = 1 + self._order.index(self._step)
            return f"step {number} of {len(self._order)}: {self._words}"

    def sentence(self) -> str:
        """Say what runs and how much of it is done: ``step 3 of 7: choosing heads, 41%``."""
        share = self.share
        return self.title() if share is None else f"{self.title()}, {share:.0%}"

    def seconds_so_far(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._started

    def seconds_left(self) -> float | None:
        """Estimate the seconds until the whole run ends; None as long as there is nothing to go by.

        That is before the first step, and early in it.
        """
        with self._lock:
            if self._step is None:
                return None
            self._count_time()
            slowness = self._slowness()
            left = self._left_of_step(self._step, slowness)
            for step in self._order[self._order.index(self._step) + 1 :]:
                if left is None:
                    return None
                seconds = self._expected(step, slowness)
                left = None if seconds is None else left + seconds
            return left

    def _slowness(self) -> float | None:
        """Return what steps took, over what they usually take; None as long as nobody can tell."""
        taken = 0.0
        usual = 0.0
        for step, account in self._accounts.items():
            is_present = step == self._step
            seconds = account.seconds_expected() if is_present else account.seconds_taken()
            usual_seconds = self._usual_seconds.get(step)
            if usual_seconds is None or isinstance(usual_seconds, ByTheClock) or seconds is None:
                continue
            taken += seconds
            usual += usual_seconds
        return taken / usual if usual else None

    def _expected(self, step: str, slowness: float | None) -> float | None:
        """Return how long a whole step takes, if that can be told; an unforeseen one, a second."""
        usual_seconds = self._usual_seconds.get(step, 1.0)
        if isinstance(usual_seconds, ByTheClock):
            return usual_seconds
        return None if slowness is None else slowness * usual_seconds

    def _left_of_step(self, step: str, slowness: float | None) -> float | None:
        """Return how long the present step still takes, if that can be told."""
        account = self._accounts[step]
        in_part = account.part_seconds
        given = self._usual_seconds.get(step)
        if account.has_speed:
            takes: float | None = account.part_takes
            if isinstance(given, ByTheClock):
                takes = min(account.part_takes, given)
        elif account.times_before:  # as long as before
            takes = account.seconds_expected()
        elif account.earlier_seconds:  # another part of it, of which nothing is known
            takes = in_part
        else:
            takes = self._expected(step, slowness)
        return None if takes is None else max(takes - in_part, 0.0)

    def times(self) -> str:
        """Say how long the run has taken and still takes: ``1:12 so far, about 4 min left``."""
        so_far = f"{_clock_time(self.seconds_so_far())} so far"
        left = self.seconds_left()
        return so_far if left is None or left < 1 else f"{so_far}, about {_rounded(left)} left"


def _clock_time(seconds: float) -> str:
    """Write seconds as minutes or hours: ``0:07``, ``1:02:05``."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _rounded(seconds: float) -> str:
    """Write an estimated time no finer than it is known: ``40 s``, ``4 min``, ``2 h 10 min``."""
    if seconds < 55:
        return f"{max(5 * round(seconds / 5), 1)} s"
    minutes = max(round(seconds / 60), 1)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"
