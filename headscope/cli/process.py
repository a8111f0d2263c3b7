"""The process of the command line: how errors end it, its memory, threads and garbage collector.

These are matters of a whole process, so only the command line sees to them: in a program that
imports headscope they are the program's own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headscope.core.errors import HeadscopeError
from headscope.core.safe_text import visible

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # From glibc's malloc.h.
_MIB = 1 << 20
#: Every OpenMP runtime reads ``OMP_WAIT_POLICY``; GNU's also takes the number of spins.
_SHORT_WAITS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
_RARELY = 100_000  # New containers between two looks for garbage; Python's own number is 700.
_USUAL = gc.get_threshold()


def bound_memory() -> None:
    """Fix glibc's thresholds and its arenas, so that long runs neither grow nor wait for pages.

    By default the thresholds follow the sizes that are freed, and the heap becomes fragmented. With
    thresholds of 1 MiB every larger tensor would get new pages, which costs a run of small batches
    a third of its time. With these, a run keeps up to 64 MiB of freed memory, and blocks of 32 MiB
    or more are returned at once.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 64 * _MIB)
        mallopt(_MMAP_THRESHOLD, 32 * _MIB)
        mallopt(_ARENA_MAX, 2)


def calm_threads() -> None:
    """Let torch's waiting threads sleep soon, unless the environment says how they wait.

    By default GNU's OpenMP lets them spin for milliseconds. With another program on the cores they
    take them from the thread that they wait for, and a run takes ten times as long. See
    https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html
    """
    if not {*_SHORT_WAITS, "KMP_BLOCKTIME", "KMP_LIBRARY"} & os.environ.keys():
        os.environ.update(_SHORT_WAITS)


@contextmanager
def rest_collector() -> Iterator[None]:
    """Look for garbage rarely until :func:`modules_are_loaded`, and never after the block.

    torch and transformers bring a million objects that stay to the end; looking through them takes
    a sixth of the time of the imports, and a second at the end. The process ends with the block.
    """
    gc.set_threshold(_RARELY, *_USUAL[1:])
    try:
        yield
    finally:
        modules_are_loaded()


def modules_are_loaded() -> None:
    """Look for garbage as usual from here on, but not among what exists by now."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


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
