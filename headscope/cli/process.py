"""What ``main`` sets up around a command: memory, threads, errors, and several processes.

These concern a whole process, so only the command line sees to them: in a program that imports
headscope they are that program's business. In the order of this file: memory and threads; garbage
collection; how errors end the process; and the case that ``torchrun`` or Slurm started several
processes for one run. Of those, process 0 writes and prints and the others are silent; if one
fails, exactly one says why, and all end.
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

from headscope.core.disk import lack_of_room
from headscope.core.errors import (
    HeadscopeError,
    InputError,
    LostProcessError,
    UnsavedStateWarning,
)
from headscope.core.safe_text import visible

if TYPE_CHECKING:
    from headscope.core.process_group import Group

# Names of settings in glibc's malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_MIB = 1 << 20
#: Environment variables for short waits. Every OpenMP runtime reads the first; GNU's the second,
#: too, how often a waiting thread looks before it sleeps.
_SHORT_WAITS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
#: New objects between two garbage collections while modules are imported; Python's default is 700.
_RARE_COLLECTION = 100_000
_USUAL_THRESHOLDS = gc.get_threshold()


def bound_memory() -> None:
    """Fix the settings of glibc's malloc, so that long runs neither grow nor wait for memory.

    A run then keeps up to 64 MiB of freed memory, and returns blocks of 32 MiB or more at once. By
    default glibc adapts both limits to the sizes that are freed, and the heap becomes fragmented.
    With limits of 1 MiB every larger tensor would get new pages, which costs a run of small batches
    a third of its time.
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

    By default GNU's OpenMP keeps them busy for milliseconds. Where another program runs too, they
    then take the cores from the very thread that they wait for, and a run takes ten times as long.
    See https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html
    """
    if not {*_SHORT_WAITS, "KMP_BLOCKTIME", "KMP_LIBRARY"} & os.environ.keys():
        os.environ.update(_SHORT_WAITS)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely while modules are imported, until :func:`modules_are_loaded`.

    torch and transformers bring a million objects that stay to the end; looking through them takes
    a sixth of the time of the imports, and a second when the process ends after the block.
    """
    gc.set_threshold(_RARE_COLLECTION, *_USUAL_THRESHOLDS[1:])
    try:
        yield
    finally:
        modules_are_loaded()


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM, by which ``timeout``, Docker and CI stop a program, end it as Ctrl-C does.

    What was measured is printed then, and nothing half-written stays. By default it would end a
    Python program at once.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def modules_are_loaded() -> None:
    """Collect garbage as usual from now on, but leave out all objects that exist by now."""
    gc.freeze()
    gc.set_threshold(*_USUAL_THRESHOLDS)


#: The exit code that a shell reports of a program whose output nobody read: 128 + SIGPIPE.
_NOT_READ = 141
_LONGEST_ERROR = 2000  # Characters that are shown of a sentence about an error


@contextmanager
def error_boundary(debug: bool) -> Iterator[None]:
    """Report known failures in one sentence on stderr, and exit with their code.

    Exit codes: 1 known failure, 3 a check failed, 130 interrupted, 141 nobody reads the output;
    usage errors (2) are typer's.
    """
    if not debug:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UnsavedStateWarning)
        warnings.showwarning = _print_warning
    for name in ("stdout", "stderr"):  # a process may have been started without them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    _buffer_stdout()
    try:
        try:
            yield
        except SystemExit as stop:  # typer ends every command with it
            # typer has turned a KeyboardInterrupt into 130, and a pipe that nobody reads into 1.
            if stop.code == 130:
                raise _interrupt_behind(stop) from None
            if isinstance(stop.__context__, BrokenPipeError):
                raise stop.__context__ from None
            sys.stdout.flush()
            raise
    except KeyboardInterrupt as interrupt:
        _end(visible(str(interrupt) or "interrupted"), 130)
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(_NOT_READ)
    except (HeadscopeError, OSError, MemoryError) as error:
        if debug:
            raise
        if isinstance(error, HeadscopeError):  # safe for a terminal, whatever file it quotes
            sentence = visible(error)
            if len(sentence) > _LONGEST_ERROR:
                half = _LONGEST_ERROR // 2
                sentence = f"{sentence[:half]} [...] {sentence[-half:]}"
            _end(sentence, error.exit_code)
        _end_without_room(error)
        reason = "out of memory" if isinstance(error, MemoryError) else str(error)
        _end(f"the system refused: {reason}", 1)
    except Exception as error:
        if not debug:
            _end_without_room(error)
        raise  # a fault of ours: the traceback says where


def _end_without_room(error: BaseException) -> None:
    """End the process with a sentence if an error is want of room on a disk; else do nothing."""
    cause = lack_of_room(error)
    if cause is not None:
        why, remedy = cause
        _end(f"a file, or what is printed, could not be written: {why}; {remedy}", 1)


def _buffer_stdout() -> None:
    """Give stdout a buffer where the environment took it away (PYTHONUNBUFFERED).

    Without one Python drops, without an error, what a disk that gets full does not take. Every line
    is written at once all the same.
    """
    stdout = sys.__stdout__
    if stdout is None or sys.stdout is not stdout:
        return  # another's, such as a test's, which closes it
    raw: object = stdout.buffer
    if not isinstance(raw, io.RawIOBase):
        return  # it has its buffer
    stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=True,
    )


def _print_warning(message: Warning | str, *place: object, **more: object) -> None:
    """Print a warning as one sentence on stderr; where in the code it was raised is left out."""
    with suppress(OSError):
        print(f"headscope: warning: {visible(message)}", file=sys.stderr, flush=True)


def _interrupt_behind(stop: SystemExit) -> KeyboardInterrupt:
    """Return the interrupt that made typer end the command: it may say what was saved."""
    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error
        error = error.__cause__ or error.__context__
    return KeyboardInterrupt()


def _end(sentence: str, code: int) -> None:
    """Print why the process ends, and exit with a code; where nobody can be told, in silence."""
    with suppress(OSError):
        print(f"headscope: {sentence}", file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    sys.exit(code)


def _discard_stdout() -> None:
    """Drop what is still to be printed: Python would try it again at its end, and fail."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


SHARED = ("classify", "spectrum", "prune")  # Commands whose work several processes can share
#: Seconds for which the other processes let process 0 be the one that reports why the run ends.
_FIRST_REPORT = 1.0
_HOW_TO_CONTINUE = (
    "The run ends with it. Where classify or spectrum was given a folder (-o), the same command "
    "with --resume goes on from what was saved there; prune has to start anew."
)


def check_shared(command: str | None) -> None:
    """Refuse a command that several processes cannot share, if several run it."""
    if _several_processes() and command is not None and command not in SHARED:
        raise InputError(
            f"{command} runs in one process, and a launcher started "
            f"{os.environ['WORLD_SIZE']} (WORLD_SIZE): start it without one. Those that several "
            f"processes share are {', '.join(SHARED)}."
        )


def _several_processes() -> bool:
    """Whether the environment says that several processes share this run."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isdecimal() and int(size) > 1


@contextmanager
def launched_together() -> Iterator[None]:
    """Share the run in the block with the other processes of the launch, if there are any.

    To be used inside of :func:`error_boundary`, which prints the one error that is raised here.
    """
    if not _several_processes():
        yield
        return
    # Before torch is imported: on a machine without network it would warn about each socket.
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
    """Handle SIGTERM, which the launcher sends when another process is gone, or to stop the run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise LostProcessError("Another process of the run has ended, or the run was stopped.")


def _end_together(group: Group, why: str | None, error: BaseException) -> NoReturn:
    """End this process after an error: raise it if this process is the one that reports it.

    Of all processes that end, one reports the error, and the others end in silence. ``why`` is None
    if this process has printed it already.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher need not hurry the last second
    other_failed = isinstance(error, LostProcessError)
    try:
        if not other_failed:
            group.fail(why or "see its words")
            deadline = time.monotonic() + _FIRST_REPORT
            while group.rank > 0 and time.monotonic() < deadline and not group.is_reported():
                time.sleep(0.02)
        reports = group.claim_report()
        cause = next(iter(group.failures()), str(why))
    except RuntimeError:  # the process that holds the shared store has ended
        reports = True
        cause = str(why)
    group.leave()

    if not reports:
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    if other_failed:
        raise LostProcessError(f"{cause} {_HOW_TO_CONTINUE}") from None
    if group.rank > 0 and isinstance(error, HeadscopeError | SystemExit):
        raise HeadscopeError(f"Process {group.rank + 1} of {group.size}: {why}") from None
    raise error
