"""The process of the command line: how errors end it, its memory, threads and garbage collector.

These are matters of a whole process, so only the command line sees to them: in a program that
imports headscope they are the program's own. Where ``torchrun`` or Slurm started several processes
for one run, process 0 writes and prints, the others are silent; if one fails, exactly one says why,
and all end.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, NoReturn

from headscope.core.errors import HeadscopeError, InputError, LostProcessError
from headscope.core.safe_text import visible

if TYPE_CHECKING:
    from headscope.core.process_group import Group

# From glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_MIB = 1 << 20
#: Every OpenMP runtime reads ``OMP_WAIT_POLICY``; GNU's also takes the number of spins.
_SHORT_WAITS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
_RARELY = 100_000  # New containers between two garbage collections; Python's default is 700.
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
    """Collect garbage rarely until :func:`modules_are_loaded`, and never after the block.

    torch and transformers bring a million objects that stay to the end; looking through them takes
    a sixth of the time of the imports, and a second at the end. The process ends with the block.
    """
    gc.set_threshold(_RARELY, *_USUAL[1:])
    try:
        yield
    finally:
        modules_are_loaded()


def modules_are_loaded() -> None:
    """Collect garbage as usual from here on, but not among objects that exist by now."""
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
            text = visible(error)
            half = _LONGEST // 2
            text = text if len(text) <= _LONGEST else f"{text[:half]} [...] {text[-half:]}"
            _end(text, error.exit_code)
        reason = "out of memory" if isinstance(error, MemoryError) else str(error)
        _end(f"the system refused: {reason}", 1)


def _end(sentence: str, code: int) -> None:
    """Print the reason and exit; text that stdout or stderr cannot take is left out."""
    with suppress(OSError):
        print(f"headscope: {sentence}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()  # Python would try again at its end, and fail
    sys.exit(code)


def _give_up_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


SHARED = ("classify", "spectrum", "prune")  # Commands whose work several processes can share.
_FIRST_WORD = 1.0  # Seconds that other processes wait for process 0 to report why the run ends.
_GO_ON = (
    "The run ends with it. Where classify or spectrum was given a folder (-o), the same command "
    "with --resume goes on from what was saved there; prune has to start anew."
)


def check_shared(command: str | None) -> None:
    """Refuse a command that several processes cannot share."""
    if several() and command is not None and command not in SHARED:
        raise InputError(
            f"{command} runs in one process, and a launcher started "
            f"{os.environ['WORLD_SIZE']} (WORLD_SIZE): start it without one. Those that several "
            f"processes share are {', '.join(SHARED)}."
        )


def several() -> bool:
    """Whether the environment says that several processes share this run."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isdecimal() and int(size) > 1


@contextmanager
def launched_together() -> Iterator[None]:
    """Share the run in the block with the other processes of the launch, if there are any.

    It stands inside of the error boundary, which prints what leaves it.
    """
    if not several():
        yield
        return
    # Where a machine has no network, torch remarks on the name of each socket; read on its import.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from headscope.core.process_group import Group
    from headscope.core.processes import shared_by

    group = Group.join()
    signal.signal(signal.SIGTERM, _stopped)
    captured = io.StringIO()
    try:
        with shared_by(group), ExitStack() as stack:
            if group.rank > 0:  # only the first prints
                stack.enter_context(redirect_stdout(io.StringIO()))
                stack.enter_context(redirect_stderr(captured))
            yield
    except SystemExit as stop:
        if stop.code:
            _end_together(group, captured.getvalue().strip() or None, stop)
        group.leave()
        raise
    except BaseException as error:
        _end_together(group, str(error) or type(error).__name__, error)
    else:
        group.leave()


def _stopped(number: int, frame: object) -> NoReturn:
    """End as the launcher asks: another process is gone, or the run is to be stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise LostProcessError("Another process of the run has ended, or the run was stopped.")


def _end_together(group: Group, why: str | None, error: BaseException) -> NoReturn:
    """Tell the others that this process ends; re-raise if it is the one that reports why.

    ``why`` is None where this process has printed that already.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left takes a second
    lost = isinstance(error, LostProcessError)
    try:
        if not lost:
            group.fail(why or "see its words")
            deadline = time.monotonic() + _FIRST_WORD
            while group.rank > 0 and time.monotonic() < deadline and not group.spoken():
                time.sleep(0.02)
        reports = group.speak()
        cause = next(iter(group.failures()), str(why))
    except RuntimeError:  # the process that holds the shared store has ended
        reports = True
        cause = str(why)
    group.leave()
    if not reports:
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    if lost:
        raise LostProcessError(f"{cause} {_GO_ON}") from None
    if group.rank > 0 and isinstance(error, HeadscopeError | SystemExit):
        raise HeadscopeError(f"Process {group.rank + 1} of {group.size}: {why}") from None
    raise error
