"""What goes where: data on stdout, messages and progress on stderr, files whole or not at all."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from headscope.cli.process import modules_are_loaded
from headscope.cli.shared_options import Format

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headscope.core.progress import Overall, Progress

WIDTH = 80
#: Seconds between two lines of a log that say what a run does.
LOG_EVERY = 30.0
#: Options that say where results go or how they are shown, not what is measured.
_WITH_VALUE = {"-o", "--output", "--format", "--figures", "--figure-width"}
_ALONE = {
    "--resume",
    "--quiet",
    "-q",
    "--log",
    "--no-log",
    "--no-titles",
    "--fresh",
    "--verbose",
    "-v",
}


def print_human(*parts: RenderableType) -> None:
    """Print tables and sentences on stdout, at most 80 columns wide."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    for part in parts:
        console.print(part)


def print_data(text: str) -> None:
    """Print JSON or CSV on stdout, and nothing else."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_result(command: str, result: Any, format: Format) -> None:
    """Print a command's result in the format that was asked for, as the command's view has it."""
    from headscope.core.serialise import to_json
    from headscope.show.view import view_of

    view = view_of(command)
    if format is Format.json:
        print_data(to_json(result))
        return
    if format is Format.csv:
        print_data(view.csv(result))
    else:
        print_human(*view.human(result))
    print_warnings(result, format)


def print_warnings(result: Any, format: Format) -> None:
    """Print what a result warns of: on stdout for a reader, on stderr beside CSV; JSON holds it."""
    from rich.text import Text

    from headscope.core.safe_text import visible
    from headscope.core.serialise import warnings_of

    for warning in map(visible, warnings_of(result)):
        if format is Format.human:
            print_human(Text(f"Warning: {warning}", style="yellow"))
        else:
            print_note(f"warning: {warning}", quiet=False)


@contextmanager
def result_folder(
    command: str, folder: Path | None, presentation: Mapping[str, Any]
) -> Iterator[Callable[[Any], None]]:
    """Make the folder of a result ready; yields what writes the result there.

    Of several processes that share the run the first one writes. The others drop what they saved
    when it has.
    """
    from headscope.core.processes import current, own_file
    from headscope.show.folders import ready_folder

    processes = current()

    def write(result: Any) -> None:
        if folder is None:
            return
        from headscope.reports.files import state_name, write_result

        if processes.rank == 0:
            write_result(command, result, folder, **presentation)
        processes.meet("the end of the run")
        if processes.rank > 0:
            own_file(folder / state_name(command)).unlink(missing_ok=True)

    with ready_folder(folder if processes.rank == 0 else None):
        processes.meet("the start of the run")  # by now the folder is there, if they share it
        yield write


def print_note(text: str, quiet: bool) -> None:
    """Print a message on stderr, unless the user wants none."""
    if not quiet:
        print(f"headscope: {text}", file=sys.stderr)


def command_line() -> str:
    """Return this run's command without what only concerns presentation.

    Two runs that measure the same thing then record the same command.
    """
    words: list[str] = []
    arguments = iter(sys.argv[1:])
    for word in arguments:
        name, has_value, _ = word.partition("=")
        if name in _WITH_VALUE and not has_value:
            next(arguments, None)
        elif name not in _WITH_VALUE | _ALONE and not word.startswith("-o"):  # -oDIR
            words.append(word)
    return shlex.join(["headscope", *words])


@contextmanager
def shown_progress(
    command: str, quiet: bool, expected: Mapping[str, float]
) -> Iterator[Progress | None]:
    """Show on stderr how far a run is: one bar over all steps, or in a log a line now and then.

    ``expected`` are its steps with their seconds; what it yields takes in what they tell, and is
    None for a command without steps or where nothing is shown.
    """
    from headscope.core.processes import current
    from headscope.core.progress import Overall

    modules_are_loaded()
    overall, terminal = Overall(expected), sys.stderr.isatty()
    if quiet or (terminal and not expected) or (current().rank > 0 and not terminal):
        yield None
        return
    with _bar(overall) if terminal else _log(command, overall) as tell:
        yield tell if expected else None


@contextmanager
def _bar(overall: Overall) -> Iterator[Progress]:
    """Show one bar over all steps while the block runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Task, TextColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    from headscope.core.progress import clock_text

    class Left(TextColumn):
        """How long it will take, said anew twice a second."""

        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            text = clock_text(overall.left())
            return Text(f"{text} left" if text else "", style="progress.remaining")

    columns = (TextColumn("{task.description}"), BarColumn(), Left(""))
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=1.0)

        def update(name: str, done: int, total: int) -> None:
            overall.tell(name, done, total)
            step = overall.step
            bars.update(task, description=step, completed=overall.share())

        yield update


@contextmanager
def _log(command: str, overall: Overall) -> Iterator[Progress]:
    """Print a line every :data:`LOG_EVERY` seconds, also while a step tells nothing for long."""
    ended = Event()

    def write() -> None:
        with suppress(OSError, ValueError):  # the log was closed: the run goes on
            while not ended.wait(LOG_EVERY):
                line = f"headscope {command}: {overall.sentence()}"
                print(line, file=sys.stderr, flush=True)

    writer = Thread(target=write, daemon=True)
    writer.start()
    try:
        yield overall.tell
    finally:
        ended.set()
        writer.join()


class _Known(BaseException):
    """How long a run takes is known; it is no error, and nothing that runs may catch it."""


def seconds_of(run: Callable[[Progress], Any], expected: Mapping[str, float]) -> float:
    """Begin a run, and leave it as soon as it is known how many seconds all of it takes."""
    from headscope.core.progress import Overall

    overall, started = Overall(expected), time.monotonic()

    def tell(name: str, done: int, total: int) -> None:
        overall.tell(name, done, total)
        if overall.all_of_it is not None:
            raise _Known

    try:
        run(tell)
    except _Known:
        return overall.all_of_it or 0.0
    return time.monotonic() - started
