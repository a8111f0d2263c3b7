"""How far a run is, shown on stderr: as a bar in a terminal, as a line now and then in a log.

A run reports to :attr:`RunProgress.listener` after every batch, and says what it does before its
first step to whoever is :func:`~headscope.core.progress.listening`. :class:`Steps` keeps the
account: ``tell`` and ``say`` take these reports, ``sentence()`` and ``times()`` put them in words
("step 3 of 7: choosing heads, 41%", "1:12 so far, about 4 min left").
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread

from headscope.cli.process import modules_are_loaded
from headscope.core.progress import Progress, Steps, listening

#: Seconds between two lines of a log that say what a run does, if it has come further.
LOG_EVERY = 30.0
#: Seconds after which a log says once more what it said last.
SAY_AGAIN_AFTER = 600.0
#: Seconds between two updates of the bar's clock.
_TICK = 0.5


class RunProgress:
    """Shows how far a run is, while its block runs; nothing if the user wants quiet.

    Of several processes that share a run, those that have no terminal stay silent. So does a run
    whose progress would end up between its answers, in one pipe with them.
    """

    def __init__(self, command: str, *, quiet: bool) -> None:
        from headscope.core.processes import current

        self._command = command
        self._terminal = sys.stderr.isatty()
        is_helper = current().rank > 0 and not self._terminal
        self._silent = quiet or is_helper or _is_in_the_pipe_of_the_answer()
        self._steps = Steps({})  # of the run that is shown; :meth:`shown` begins a new account
        self._update: Callable[[], None] = _nothing  # draws ``_steps`` anew

    @property
    def listener(self) -> Progress | None:
        """What a run reports its progress to; None where nothing is shown."""
        return None if self._silent else self._show_step

    @contextmanager
    def shown(self, usual_seconds: Mapping[str, float]) -> Iterator[None]:
        """Show how far the run is while the block runs; its steps are as ``Steps`` takes them."""
        if self._silent:
            yield
            return
        self._steps = Steps(usual_seconds)
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


def _is_in_the_pipe_of_the_answer() -> bool:
    """Whether stderr and stdout are one pipe, as in ``headscope ... 2>&1 | less``."""
    try:
        answers = os.fstat(sys.stdout.fileno())
        remarks = os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or captured in memory
        return False
    return stat.S_ISFIFO(remarks.st_mode) and os.path.samestat(answers, remarks)


@contextmanager
def _bar(steps: Steps) -> Iterator[Callable[[], None]]:
    """Show the step, a bar of the whole run and its times; yield the function that updates them."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    words = TextColumn("{task.description}", markup=False)
    times = TextColumn("{task.fields[times]}", markup=False)
    columns = (words, BarColumn(bar_width=20), times)
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(steps.sentence(), total=None, times=steps.times())

        def show() -> None:
            left = steps.seconds_left()
            so_far = steps.seconds_so_far()
            bars.update(
                task,
                description=steps.sentence(),
                completed=so_far,
                total=None if left is None else so_far + left,
                times=steps.times(),
            )

        with _repeated(show, _TICK):
            yield show


@contextmanager
def _log(command: str, steps: Steps) -> Iterator[Callable[[], None]]:
    """Print a line every :data:`LOG_EVERY` seconds if the run has come further since the last.

    What was said last is said again after :data:`SAY_AGAIN_AFTER` seconds alone.
    """
    last_sentence = ""
    said_at = 0.0

    def write() -> None:
        nonlocal last_sentence, said_at
        sentence = steps.sentence()
        now = time.monotonic()
        if sentence == last_sentence and now - said_at < SAY_AGAIN_AFTER:
            return
        last_sentence = sentence
        said_at = now
        with suppress(OSError, ValueError):  # the log was closed: the run goes on
            line = f"headscope {command}: {sentence} ({steps.times()})"
            print(line, file=sys.stderr, flush=True)

    with _repeated(write, LOG_EVERY):
        yield _nothing


@contextmanager
def _repeated(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call ``act`` every so many seconds on a thread of its own, while the block runs."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
