"""The one place where an exception becomes a sentence and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headscope.core.errors import HeadscopeError
from headscope.core.safe_text import visible

_NOT_READ = 141  # What a shell says of a program whose output nobody read: 128 + SIGPIPE.
_LONGEST = 2000  # Characters of a sentence about an error.


@contextmanager
def error_boundary(debug: bool) -> Iterator[None]:
    """Say known failures in one sentence on stderr and exit with their code.

    Exit codes: 1 known failure, 3 a check failed, 130 interrupted, 141 nobody reads the output;
    usage errors (2) are typer's.
    """
    if not debug:
        warnings.simplefilter("ignore")
    for name in ("stdout", "stderr"):  # a process may have been started without them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        try:
            yield
        except SystemExit as stop:  # how typer ends every command
            # It makes 130 of a KeyboardInterrupt and 1 of a pipe that nobody reads, in silence.
            if stop.code == 130:
                raise KeyboardInterrupt from None
            if isinstance(stop.__context__, BrokenPipeError):
                raise stop.__context__ from None
            sys.stdout.flush()
            raise
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except BrokenPipeError:
        _give_up_stdout()
        sys.exit(_NOT_READ)
    except (HeadscopeError, OSError, MemoryError) as error:
        if debug:
            raise
        if isinstance(error, HeadscopeError):  # safe for a terminal, whatever file it quotes
            text, half = visible(error), _LONGEST // 2
            text = text if len(text) <= _LONGEST else f"{text[:half]} [...] {text[-half:]}"
            _end(text, error.exit_code)
        reason = "out of memory" if isinstance(error, MemoryError) else str(error)
        _end(f"the system refused: {reason}", 1)


def _end(sentence: str, code: int) -> None:
    """Say why, and exit. What stdout or stderr cannot take is left out."""
    with suppress(OSError):
        print(f"headscope: {sentence}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()  # Python would try again at its end, and fail
    sys.exit(code)


def _give_up_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
