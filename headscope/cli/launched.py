"""What the command line does where ``torchrun`` or Slurm started several processes for one run.

Process 0 writes and prints, the others are silent. If one fails, exactly one says why, and all end.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, NoReturn

from headscope.core.errors import HeadscopeError, InputError, LostProcessError

if TYPE_CHECKING:
    from headscope.core.process_group import Group

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
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")


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
    from headscope.core.process_group import Group, launched
    from headscope.core.processes import shared_by

    if launched() == 1:
        yield
        return
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
            _end(group, captured.getvalue().strip() or None, stop)
        group.leave()
        raise
    except BaseException as error:
        _end(group, str(error) or type(error).__name__, error)
    else:
        group.leave()


def _stopped(number: int, frame: object) -> NoReturn:
    """End as the launcher asks: another process is gone, or the run is to be stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise LostProcessError("Another process of the run has ended, or the run was stopped.")


def _end(group: Group, why: str | None, error: BaseException) -> NoReturn:
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
        reports, cause = group.speak(), next(iter(group.failures()), str(why))
    except RuntimeError:  # the process that holds the shared store has ended
        reports, cause = True, str(why)
    group.leave()
    if not reports:
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    if lost:
        raise LostProcessError(f"{cause} {_GO_ON}") from None
    if group.rank > 0 and isinstance(error, HeadscopeError | SystemExit):
        raise HeadscopeError(f"Process {group.rank + 1} of {group.size}: {why}") from None
    raise error
