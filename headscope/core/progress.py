"""How a command reports its progress, and at which of its steps it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Called with (name of the step, done, all) after every batch.
Progress = Callable[[str, int, int], None]
#: What a run does first of all: it takes seconds.
_FIRST = "loading PyTorch and transformers"
#: What a reader is told of steps whose names say too little.
_WORDS = {
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
    if (listener := _listener.get()) is not None:
        listener(words)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Let ``listener`` hear what is said inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def silent(step: str, done: int, total: int) -> None:
    """Report nothing."""


def part_of(name: str, progress: Progress) -> Progress:
    """Report under the name of a part of a longer run."""

    def tell(step: str, done: int, total: int) -> None:
        progress(f"{name}, {step}", done, total)

    return tell


class Steps:
    """Which of its steps a run is at, and how much of that step is done.

    ``names`` are the steps in their order. A report counts for the step of its name, or of the
    name's first part ("classify, model" for "classify"); any other name becomes a step of its own
    after the step before it. What is said before the first step has no number. One thread may
    report while another one reads.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._order = list(names)
        self._now = ""
        self._words = _FIRST
        self._share: float | None = None
        self._lock = threading.Lock()

    def say(self, words: str) -> None:
        """Take in what is done before the first step."""
        with self._lock:
            if not self._now:
                self._words = words

    def tell(self, name: str, done: int, total: int) -> None:
        """Take in what a step reports under its name."""
        with self._lock:
            self._now = self._step_of(name)
            self._words = ": ".join(_WORDS.get(word, word) for word in name.split(", ", 1))
            self._share = done / max(total, 1)

    def _step_of(self, name: str) -> str:
        """Return the step that a name belongs to; a new one behind the present step."""
        run_of_parts, _, _ = name.partition(", ")
        for step in (name, run_of_parts):
            if step in self._order:
                return step
        position = self._order.index(self._now) + 1 if self._now else 0
        self._order.insert(position, name)
        return name

    @property
    def share(self) -> float | None:
        """How much of the step is done, from 0 to 1; None before the first one."""
        return self._share

    def title(self) -> str:
        """Say what runs: ``step 3 of 7: choosing heads``."""
        with self._lock:
            if not self._now:
                return self._words
            number = 1 + self._order.index(self._now)
            return f"step {number} of {len(self._order)}: {self._words}"

    def sentence(self) -> str:
        """Say also how much of it is done, once that is known: ``..., 41%``."""
        share = self._share
        return self.title() if share is None else f"{self.title()}, {share:.0%}"
