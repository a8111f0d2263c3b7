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


class Budget(float):
    """Seconds that a step is given, however slow the machine is, such as for training."""


def progress_of_part(name: str, progress: Progress) -> Progress:
    """Return a progress for a part of a longer run, whose steps become ``part, step``."""

    def tell(step: str, done: int, total: int) -> None:
        progress(f"{name}, {step}", done, total)

    return tell


class Steps:
    """Which of its steps a run is at, how much of that step is done, and the time that is left.

    A report under the name "classify, model" belongs to the step of that name, or to the step
    "classify"; if there is neither, it becomes a new step after the present one. What is told
    before the first step has no number. One thread may report while another one reads.

    The time left is that of the whole run: of the present step by its own speed so far, of later
    ones by how long they usually take beside those that have run, or by their :class:`Budget`.
    """

    def __init__(
        self,
        usual_seconds: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin before the first step.

        ``usual_seconds`` names the steps in their order, with the time that they usually take
        beside each other, or with a :class:`Budget`.
        """
        self._order = list(usual_seconds)
        self._usual_seconds = usual_seconds
        self._clock = clock
        self._started = clock()
        self._step: str | None = None  # The present one; None before the first
        self._step_started = self._started
        self._part = ""  # The name that is told at present: the step's, or that of a part of it
        self._part_started = self._started
        self._seconds: dict[str, float] = {}  # That steps before the present one took
        self._words = _LOADING
        self._share: float | None = None
        self._lock = threading.Lock()

    def say(self, words: str) -> None:
        """Note what is done before the first step."""
        with self._lock:
            if self._step is None:
                self._words = words

    def tell(self, name: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` of the step ``name`` are done."""
        with self._lock:
            self._enter(self._step_of(name))
            if name != self._part:
                self._part = name
                self._part_started = self._clock()
            # "classify, model" -> "classify: measuring the model"
            words = [_STEP_WORDS.get(step, step) for step in name.split(", ", 1)]
            self._words = ": ".join(words)
            self._share = done / max(total, 1)

    def _enter(self, step: str) -> None:
        """Begin a step, unless it is the present one; note how long the one before it took."""
        if step == self._step:
            return
        now = self._clock()
        if self._step is not None:
            earlier = self._seconds.get(self._step, 0.0)
            self._seconds[self._step] = earlier + now - self._step_started
        self._step = step
        self._step_started = now

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
        return self._share

    def title(self) -> str:
        """Say what runs: ``step 3 of 7: choosing heads``."""
        with self._lock:
            if self._step is None:
                return self._words
            number = 1 + self._order.index(self._step)
            return f"step {number} of {len(self._order)}: {self._words}"

    def sentence(self) -> str:
        """Say what runs and how much of it is done: ``step 3 of 7: choosing heads, 41%``."""
        share = self._share
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
            in_step = self._seconds.get(self._step, 0.0) + self._clock() - self._step_started
            step_takes = self._by_its_speed(in_step)
            slowness = self._slowness(step_takes)
            if step_takes is None:
                usual_time = self._expected(self._step, slowness)
                step_takes = None if usual_time is None else max(in_step, usual_time)
            if step_takes is None:
                return None
            left = step_takes - in_step
            for step in self._order[self._order.index(self._step) + 1 :]:
                step_time = self._expected(step, slowness)
                if step_time is None:
                    return None
                left += step_time
            return left

    def _by_its_speed(self, in_step: float) -> float | None:
        """Estimate how long the present step takes from the speed of its present part.

        ``in_step`` is how long it has taken so far. None while there is no speed to go by.
        """
        share = self._share or 0.0
        if share < _LEAST_SHARE:
            return None
        in_part = self._clock() - self._part_started
        takes = in_step - in_part + in_part / share
        usual = self._usual(self._step or "")
        return max(in_step, min(takes, usual)) if isinstance(usual, Budget) else takes

    def _slowness(self, step_takes: float | None) -> float | None:
        """Return what steps took beside what they usually take; None if none has taken any time.

        A step with a budget tells nothing about it. ``step_takes`` is the present one's estimate.
        """
        seconds = {step: took for step, took in self._seconds.items() if step != self._step}
        if self._step is not None and step_takes is not None:
            seconds[self._step] = step_takes
        taken = 0.0
        usual = 0.0
        for step, took in seconds.items():
            usually = self._usual(step)
            if not isinstance(usually, Budget):
                taken += took
                usual += usually
        return taken / usual if usual else None

    def _expected(self, step: str, slowness: float | None) -> float | None:
        """Estimate how long a step takes of which nothing has run; None without any speed."""
        usual = self._usual(step)
        if isinstance(usual, Budget):
            return float(usual)
        return None if slowness is None else slowness * usual

    def _usual(self, step: str) -> float:
        """Return how long a step usually takes beside the others; an unforeseen one, a second."""
        return self._usual_seconds.get(step, 1.0)

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
