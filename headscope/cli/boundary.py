"""The one place where an exception becomes a sentence and an exit code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from headscope.errors import HeadscopeError


@contextmanager
def error_boundary(debug: bool) -> Iterator[None]:
    """Say known failures in one sentence on stderr and exit with their code.

    Exit codes: 1 known failure, 3 a check failed, 130 interrupted; usage errors (2) are typer's.
    """
    if not debug:
        warnings.simplefilter("ignore")
    try:
        yield
    except HeadscopeError as error:
        if debug:
            raise
        print(f"headscope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("headscope: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as stop:  # typer makes 130 of a KeyboardInterrupt, in silence
        if stop.code == 130:
            print("headscope: interrupted", file=sys.stderr)
        raise
    except (OSError, MemoryError) as error:
        if debug or isinstance(error, BrokenPipeError):
            raise
        what = "out of memory" if isinstance(error, MemoryError) else str(error)
        print(f"headscope: the system refused: {what}", file=sys.stderr)
        sys.exit(1)
