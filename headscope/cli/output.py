"""Data go to stdout, messages and progress to stderr; files are complete or absent."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.commands import Command

if TYPE_CHECKING:
    from rich.console import RenderableType

# Columns of what no terminal shows, and of the widest text in one
NARROW = 80
WIDE = 120
_MOST_NAMES = 12  # Of files that were written
#: Options that say where results go or how they are shown, not what is measured.
_WITH_VALUE = {"-o", "--output", "--format", "--figures"}
_ALONE = {"--resume", "--quiet", "-q", "--verbose", "-v"}


def print_human(*parts: RenderableType) -> None:
    """Print tables and sentences on stdout, as wide as the terminal up to 120 columns."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    console.width = min(WIDE, console.width) if console.is_terminal else NARROW
    for part in parts:
        # Lines to paste are not wrapped.
        console.print(part, soft_wrap=getattr(part, "no_wrap", None) is True)


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
    """Say which files a run wrote, and how to open them; ``section`` is a result among them."""
    from rich.text import Text

    from headscope.core.safe_text import visible

    path = visible(folder.as_posix())
    left = len(names) - _MOST_NAMES
    more = f" and {left} more" if left > 0 else ""
    print_human(Text(f"\nWritten to {path}: {', '.join(names[:_MOST_NAMES])}{more}."))
    for page in (name for name in names if name.endswith(".html")):
        print_human(Text(f"Open {path}/{page} in a browser."))
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
