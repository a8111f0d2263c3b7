"""How a command reports its progress, and at which of its steps it is.

A run has steps, such as "measuring the model" and "reading the text". While a step runs, the
command calls a :data:`Progress` after every batch. What it does before its first step it tells by
:func:`say`, to whoever is :func:`listening`. :class:`Steps` puts both together, for a bar or a log
to show: ``step 3 of 7: choosing heads, 41%``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
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


class Steps:
    """Which of its steps a run is at, and how much of that step is done.

    A report under the name "classify, model" belongs to a step of that name, or to the step
    "classify"; if there is neither, it becomes a new step after the present one. What is told
    before the first step has no number. One thread may report while another one reads.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Begin before the first step; ``names`` are the steps in their order."""
        self._order = list(names)
        self._step: str | None = None  # The present one; None before the first
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
            self._step = self._step_of(name)
            # "classify, model" -> "classify: measuring the model"
            words = [_STEP_WORDS.get(step, step) for step in name.split(", ", 1)]
            self._words = ": ".join(words)
            self._share = done / max(total, 1)

    def _step_of(self, name: str) -> str:
        """Return the step that a report's name belongs to."""
        first_part, _, _ = name.partition(", ")
        for step in (name, first_part):
            if step in self._order:
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
