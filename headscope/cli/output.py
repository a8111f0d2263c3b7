"""What a run prints: results on stdout (tables, JSON or CSV), remarks on stderr."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.commands import Command

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROW = 80  # Columns of text that goes to no terminal
WIDE = 120  # Columns of the widest text in a terminal
_MOST_NAMES = 12  # Names of written files that are listed
# Flags that say where results go or how they are shown, not what is measured
_FLAGS_WITH_VALUE = {"-o", "--output", "--format", "--figures"}
_SWITCHES = {"--resume", "--quiet", "-q", "--verbose", "-v"}


def print_human(*blocks: RenderableType) -> None:
    """Print tables and sentences on stdout, as wide as the terminal up to 120 columns."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where there is no Unicode, ? stands for a sign
    console = Console(highlight=False, soft_wrap=False)
    console.width = min(WIDE, console.width) if console.is_terminal else NARROW
    for block in blocks:
        is_code = getattr(block, "no_wrap", None) is True  # lines to paste are not broken
        console.print(block, soft_wrap=is_code)


def print_data(text: str) -> None:
    """Print JSON or CSV on stdout, and nothing else."""
    written = text.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8
    sys.stdout.write(written if written.endswith("\n") else written + "\n")
    sys.stdout.flush()


def print_result(command: Command, result: Any, format: str) -> None:
    """Print a command's result in the format that was asked for, as the command's view has it."""
    from headscope.core.serialise import to_json
    from headscope.show.style import is_verbose

    view = command.view
    if format == "json":
        print_data(to_json(result if is_verbose() else view.brief(result)))
        return
    if format == "csv":
        print_data(view.csv(result))
    else:
        print_human(*view.human(result))
    print_warnings(result, format)


def print_written(folder: Path, names: Sequence[str], section: str | None) -> None:
    """Say which files a run wrote, and how to open them.

    ``section`` is a result among them, which the lines of Python read as an example.
    """
    from rich.text import Text

    from headscope.core.safe_text import listed, visible

    path = visible(folder.as_posix())
    print_human(Text(f"\nWritten to {path}: {listed(names, _MOST_NAMES)}."))
    for name in names:
        if name.endswith(".html"):
            print_human(Text(f"Open {path}/{name} in a browser."))
    if section is not None:
        code = (
            "To read the numbers in Python:\n"
            "from headscope.reports.reading import read_results\n"
            f'results = read_results("{path}")\n'
            f"print(results.{section}.to_frame())"
        )
        print_human(Text(code, no_wrap=True))


def print_warnings(result: Any, format: str) -> None:
    """Print a result's warnings: on stdout for a reader, on stderr with CSV; JSON has them."""
    from rich.text import Text

    from headscope.core.safe_text import visible
    from headscope.core.serialise import warnings_of

    for warning in map(visible, warnings_of(result)):
        if format == "human":
            print_human(Text(f"Warning: {warning}", style="yellow"))
        else:
            print_note(f"warning: {warning}", quiet=False)


def print_note(text: str, quiet: bool) -> None:
    """Print a message on stderr, unless the user wants none."""
    if not quiet:
        print(f"headscope: {text}", file=sys.stderr)


def command_line() -> str:
    """Return this run's command line, without the flags that change no number.

    Two runs that measure the same thing then record the same command.
    """
    words: list[str] = []
    arguments = iter(sys.argv[1:])
    for word in arguments:
        name, has_value, _ = word.partition("=")
        if name in _FLAGS_WITH_VALUE:
            if not has_value:
                next(arguments, None)
        elif name not in _SWITCHES and not word.startswith("-o"):  # -oDIR
            words.append(word)
    return shlex.join(["headscope", *words])
