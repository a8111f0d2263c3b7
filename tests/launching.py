"""Several processes of one run, forked from a process that has loaded everything already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("headscope.cli.app", "headscope.show.files", "headscope.pipeline.classify.run"),
        *("headscope.pipeline.spectrum.run", "headscope.pipeline.prune.run"),
        *("headscope.processes.group", "transformers.models.bert.modeling_bert"),
        *("headscope.show.classify", "headscope.show.drawing", "matplotlib.backends.backend_svg"),
        *("matplotlib.backends.backend_agg", "scipy.stats", "pandas", "wordfreq"),
    ]
)


@dataclass(frozen=True)
class Ended:
    """How one process ended, and what it printed."""

    code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Accident:
    """What befalls one process after so many batches: an error, or SIGKILL."""

    rank: int
    batches: int
    kind: str


def launch(
    folder: Path,
    size: int,
    *arguments: str | Path,
    accident: Accident | None = None,
    env: dict[str, str] | None = None,
) -> list[Ended]:
    """Run ``headscope ARGUMENTS`` in processes that share the run, as a launcher starts them."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), **(env or {})}
    words, logs = [str(word) for word in arguments], folder / "logs"
    logs.mkdir(exist_ok=True)
    processes = [
        CONTEXT.Process(target=_run, args=(rank, size, settings, words, logs, accident))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
    return [
        Ended(
            process.exitcode,
            *((logs / f"{rank}.{kind}").read_text(encoding="utf-8") for kind in ("out", "err")),
        )
        for rank, process in enumerate(processes)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(
    rank: int,
    size: int,
    settings: dict[str, str],
    words: Sequence[str],
    logs: Path,
    accident: Accident | None,
) -> None:
    """Be one process."""
    from headscope.cli.app import main

    os.environ.update(settings, RANK=str(rank), WORLD_SIZE=str(size))
    for number, kind in enumerate(("out", "err"), start=1):
        os.dup2(os.open(logs / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = open(1, "w", encoding="utf-8"), open(2, "w", encoding="utf-8")  # noqa: SIM115
    if accident is not None:
        _prepare(accident, rank)
    sys.argv = ["headscope", *words]
    main()


def _prepare(accident: Accident, rank: int) -> None:
    """Save after every batch, and let the accident happen when it is time."""
    from headscope.errors import InputError
    from headscope.pipeline.resume import RunState

    make, note = RunState.__init__, RunState.note

    def saved_always(self: RunState, path: Path | None, identity: dict[str, object]) -> None:
        make(self, path, identity, every=0.0)

    def noted(self: RunState, name: str, done: int, *sums: object, final: bool = False) -> None:
        note(self, name, done, *sums, final=final)
        if rank == accident.rank and done == accident.batches:
            if accident.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise InputError("The disk of this machine is on fire.")

    RunState.__init__ = saved_always
    RunState.note = noted
