"""The command line in processes of their own: forked, launched together, or started cold.

A fork has everything imported already, so a run takes a fraction of a second and most of its life
is the run itself. A cold start is for what depends on one: what is imported, said, or connected to.
"""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from outcomes import Ended

#: Modules that take long to import.
HEAVY = {"numpy", "torch", "transformers", "pandas", "matplotlib", "scipy", "wordfreq"}
HEAVY |= {"tensorly", "sklearn"}
_SOCKETS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}


class Run:
    """One run of the command line in a fork of this process.

    ``before`` is done first, ``body`` is run instead of the command line and returns its code;
    ``stdout`` is a descriptor instead of a file, ``state_seconds`` those between saves of
    the state.
    """

    def __init__(
        self,
        *arguments: str | Path,
        before: Callable[[], object] | None = None,
        state_seconds: float = 0.2,
        stdout: int | None = None,
        body: Callable[[], int] | None = None,
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        out = self._files[0].fileno()
        err = self._files[1].fileno()
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
                if "torch" in sys.modules:  # threads of the parent are not there to take part
                    sys.modules["torch"].set_num_threads(1)
                if before is not None:
                    before()
                code = _main([*map(str, arguments)], state_seconds) if body is None else body()
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
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode())
            file.close()
        out, err = texts
        return Ended(os.waitstatus_to_exitcode(self._status), out, err, seconds)


def _main(arguments: list[str], state_seconds: float) -> int:
    from headscope.cli.app import main
    from headscope.session.resume import RunState

    sys.argv = ["headscope", *arguments]
    sys.stdout = os.fdopen(os.dup(1), "w")
    sys.stderr = os.fdopen(os.dup(2), "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    real = RunState.__init__
    RunState.__init__ = lambda self, path, identity: real(self, path, identity, every=state_seconds)  # type: ignore[method-assign,assignment,misc]
    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def die_before(watched: Path, number: int) -> Callable[[], None]:
    """Return what makes a process kill itself just before its n-th change of files at a place.

    The names of what it opens to write, renames and removes are those that begin with the place's.
    """

    def install() -> None:
        seen = 0

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod")
            if event == "open":
                changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            paths = [os.fspath(a) for a in arguments[:2] if isinstance(a, str | Path)]
            if changes and any(path.startswith(str(watched)) for path in paths):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)

    return install


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too, the times in it left out."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: timeless(item) for key, item in value.items() if key != "created"}
        return [timeless(item) for item in value] if isinstance(value, list) else value

    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".json":
            data = json.dumps(timeless(json.loads(data))).encode()
        files[str(path.relative_to(folder))] = data
    return files


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a disk of so many kB; only root can."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.system(f"mount -t tmpfs -o size={kilobytes}k none '{folder}' 2>/dev/null"):
        raise PermissionError("no disk can be mounted here")
    try:
        yield folder
    finally:
        os.system(f"umount -l '{folder}'")


@dataclasses.dataclass(frozen=True)
class Accident:
    """What befalls one process after so many batches: an error, or SIGKILL."""

    rank: int
    batches: int
    kind: str


def launch(
    size: int,
    *arguments: str | Path,
    accident: Accident | None = None,
    env: dict[str, str] | None = None,
) -> list[Ended]:
    """Run ``headscope ARGUMENTS`` in processes that share the run, as a launcher starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    runs = [
        Run(
            *arguments,
            before=partial(_join, {**shared, "RANK": str(rank), **(env or {})}, accident),
            state_seconds=0.2 if accident is None else 0.0,
        )
        for rank in range(size)
    ]
    deadline = time.monotonic() + 60
    while any(run.alive() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.01)
    for run in runs:
        if run.alive():
            os.kill(run.pid, signal.SIGKILL)
    return [run.end() for run in runs]


def _join(settings: dict[str, str], accident: Accident | None) -> None:
    from headscope.core import process_group
    from headscope.core.errors import InputError
    from headscope.session.resume import RunState

    os.environ.update(settings)
    process_group._PULSE_CHECK = 0.1
    if accident is not None and accident.kind == "killed":
        process_group._LEAVE_SECONDS = 0.1  # nobody is left to be waited for
    if accident is None or settings["RANK"] != str(accident.rank):
        return
    note = RunState.note

    def noted(self: RunState, name: str, done: int, *sums: object, final: bool = False) -> None:
        note(self, name, done, *sums, final=final)
        if done == accident.batches:
            if accident.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise InputError("The disk of this machine is on fire.")

    RunState.note = noted  # type: ignore[method-assign,assignment]


def torchrun(words: Sequence[str], folder: Path) -> Ended:
    """Run ``torchrun WORDS`` in a folder: its own parser and agent, whose processes are forks."""

    def body() -> int:
        from torch.distributed import run as launcher

        start = launcher.elastic_launch
        codes: dict[int, int] = {}

        def forks(config: Any, entrypoint: str) -> Callable[..., None]:
            def call(*arguments: str) -> None:
                assert (entrypoint, *arguments[:3]) == (sys.executable, "-u", "-m", "headscope")
                config.start_method = "fork"
                codes.update(start(config, _main)([*arguments[3:]], 0.2))

            return call

        os.chdir(folder)
        warnings.simplefilter("ignore")  # forks of processes with threads
        launcher.elastic_launch = forks
        launcher.run(launcher.parse_args([*words]))
        return max(codes.values())

    return Run(body=body).end()


@dataclasses.dataclass(frozen=True)
class Cold:
    """How one of several commands of a new interpreter ended.

    ``heavy`` modules are those that had been imported by then, ``sockets`` what it tried to open.
    """

    code: int
    stdout: str
    stderr: str
    heavy: list[str]
    sockets: list[str]


def cold(*commands: Sequence[str | Path], env: dict[str, str | None] | None = None) -> list[Cold]:
    """Run commands one after the other in one new interpreter, offline unless ``env`` says.

    A setting that is None is taken away.
    """
    merged = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(env or {})}
    settings = {name: value for name, value in merged.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        tasks = json.dumps([[str(word) for word in words] for words in commands])
        done = subprocess.run(
            [sys.executable, __file__, folder, tasks],
            capture_output=True,
            text=True,
            timeout=120,
            env=settings,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return [Cold(**one) for one in result]


def _run_all(folder: Path, commands: list[list[str]]) -> None:
    """Be the new interpreter; the descriptors are those that libraries in C write to."""
    tried: list[str] = []
    sys.addaudithook(lambda event, _: tried.append(event) if event in _SOCKETS else None)
    from headscope.cli.app import main

    results = []
    for words in commands:
        sys.argv = ["headscope", *words]
        code = 0
        tried.clear()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        out = (folder / "out").read_text(encoding="utf-8")
        err = (folder / "err").read_text(encoding="utf-8")
        heavy = sorted(HEAVY & set(sys.modules))
        results.append(dataclasses.asdict(Cold(code, out, err, heavy, tried)))
    (folder / "found.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    _run_all(Path(sys.argv[1]), json.loads(sys.argv[2]))
