"""How far a run is, shown on stderr: as a bar in a terminal, as a line now and then in a log.

A run reports to :attr:`RunProgress.listener` after every batch, and says what it does before its
first step to whoever is :func:`~headscope.core.progress.listening`. :class:`Steps` keeps the
account: ``tell`` and ``say`` take these reports, ``title()`` and ``sentence()`` put them in words
("step 3 of 7: choosing heads, 41%"), ``share`` is how much of the present step is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread

from headscope.cli.process import modules_are_loaded
from headscope.core.progress import Progress, Steps, listening

#: Seconds between two lines of a log that say what a run does.
LOG_EVERY = 30.0


class RunProgress:
    """Shows how far a run is, while its block runs; nothing if the user wants quiet.

    Of several processes that share a run, those that have no terminal stay silent.
    """

    def __init__(self, command: str, *, quiet: bool) -> None:
        from headscope.core.processes import current

        self._command = command
        self._terminal = sys.stderr.isatty()
        self._silent = quiet or (current().rank > 0 and not self._terminal)
        self._steps = Steps(())  # of the run that is shown; :meth:`shown` begins a new account
        self._update: Callable[[], None] = _nothing  # draws ``_steps`` anew

    @property
    def listener(self) -> Progress | None:
        """What a run reports its progress to; None where nothing is shown."""
        return None if self._silent else self._show_step

    @contextmanager
    def shown(self, names: Sequence[str]) -> Iterator[None]:
        """Show how far the run is while the block runs; ``names`` are those of its steps."""
        if self._silent:
            yield
            return
        self._steps = Steps(names)
        display = _bar(self._steps) if self._terminal else _log(self._command, self._steps)
        with display as update, listening(self._show_preparation):
            self._update = update
            yield

    def _show_step(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` of a step are done."""
        self._steps.tell(name, done, total)
        self._update()

    def _show_preparation(self, words: str) -> None:
        """Show what is done before the first step."""
        # The model is opened by now, so PyTorch is loaded: from here on garbage is collected.
        modules_are_loaded()
        self._steps.say(words)
        self._update()


def _nothing() -> None:
    """Update nothing: lines of a log are written by the clock, whatever is reported."""


@contextmanager
def _bar(steps: Steps) -> Iterator[Callable[[], None]]:
    """Show the running step, a bar and the remaining time; yield the function that updates them."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        title = steps.title()
        task = bars.add_task(title, total=None)

        def show() -> None:
            nonlocal title
            if steps.title() != title:
                title = steps.title()
                bars.reset(task, description=title)
            share = steps.share
            bars.update(task, completed=share or 0.0, total=None if share is None else 1.0)

        yield show


@contextmanager
def _log(command: str, steps: Steps) -> Iterator[Callable[[], None]]:
    """Print a line every :data:`LOG_EVERY` seconds, also while a step reports nothing for long."""
    ended = Event()

    def write() -> None:
        with suppress(OSError, ValueError):  # the log was closed: the run goes on
            while not ended.wait(LOG_EVERY):
                line = f"headscope {command}: {steps.sentence()}"
                print(line, file=sys.stderr, flush=True)

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield _nothing
    finally:
        ended.set()
        writer.join()
