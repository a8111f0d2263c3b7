"""Runs of the command line in processes of their own that something happens to.

A fork has everything imported already, so a run takes a fraction of a second and most of its life
is the run itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What differs between two runs that measure the same: when they ran.
TIMES = ("created",)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a run ended: its code, or minus the signal that killed it; and what it said."""

    code: int
    out: str
    err: str
    seconds: float


class Run:
    """One run of the command line in a fork of this process.

    Parameters
    ----------
    arguments : sequence of str or path
        Of ``headscope``.
    before : callable, optional
        What the new process does first.
    every : float
        Seconds between two saves of the state; a trial should have some to lose.
    stdout : int, optional
        A file descriptor instead of a file.
    body : callable, optional
        What to run instead of the command line; returns an exit code.
    """

    def __init__(
        self,
        *arguments: str | Path,
        before: Callable[[], object] | None = None,
        every: float = 0.2,
        stdout: int | None = None,
        body: Callable[[], int] | None = None,
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        out, err = (file.fileno() for file in self._files)
        self._start = time.monotonic()
        self._status: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks of processes with threads
            self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.dup2(out if stdout is None else stdout, 1)
                os.dup2(err, 2)
                if before is not None:
                    before()
                code = _main([*map(str, arguments)], every) if body is None else body()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)

    def kill_after(self, seconds: float, number: int = signal.SIGKILL) -> None:
        """Send a signal once the run is so old, unless it has ended by then."""
        time.sleep(max(0.0, self._start + seconds - time.monotonic()))
        os.kill(self.pid, number)

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is None

    def end(self) -> Ended:
        """Wait for the end."""
        if self.alive():
            _, self._status = os.waitpid(self.pid, 0)
        assert self._status is not None
        seconds = time.monotonic() - self._start
        for file in self._files:
            file.seek(0)
        out, err = (file.read().decode() for file in self._files)
        for file in self._files:
            file.close()
        return Ended(os.waitstatus_to_exitcode(self._status), out, err, seconds)


def _main(arguments: list[str], every: float) -> int:
    from headscope.cli.app import main
    from headscope.pipeline.resume import RunState

    sys.argv = ["headscope", *arguments]
    streams = [os.fdopen(os.dup(number), "w") for number in (1, 2)]
    sys.stdout, sys.stderr = streams
    signal.signal(signal.SIGINT, signal.default_int_handler)
    real = RunState.__init__
    RunState.__init__ = lambda self, path, identity: real(self, path, identity, every=every)  # type: ignore[method-assign,assignment,misc]
    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def die_before(place: Path, number: int) -> Callable[[], None]:
    """Return what makes a process kill itself just before its n-th change of files at a place.

    The names of what it opens to write, renames and removes are those that begin with the place's.
    """

    def install() -> None:
        seen = 0

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if _changes(event, arguments) and _concerns(arguments, str(place)):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)

    return install


def _changes(event: str, arguments: Sequence[Any]) -> bool:
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod")


def _concerns(arguments: Sequence[Any], place: str) -> bool:
    return any(os.fspath(a).startswith(place) for a in arguments[:2] if isinstance(a, str | Path))


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too, the times in it left out."""
    return {
        str(path.relative_to(folder)): _timeless(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _timeless(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".json":
        return data
    return json.dumps(_without_times(json.loads(data))).encode()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a disk of so many kB; only root can."""
    place.mkdir(parents=True, exist_ok=True)
    if os.system(f"mount -t tmpfs -o size={kilobytes}k none '{place}' 2>/dev/null"):
        raise PermissionError("no disk can be mounted here")
    try:
        yield place
    finally:
        os.system(f"umount -l '{place}'")
