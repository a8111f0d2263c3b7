"""What the benchmarks share: jobs timed in turn, whole commands timed from outside, tables."""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")

#: Variables that say how many threads run and how they wait; each run sets its own.
_OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
_SPIN = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent: pass"


def in_turn(jobs: Mapping[Name, Callable[[], Result]], rounds: int) -> dict[Name, list[Result]]:
    """Run all jobs, then all again: a drift of the machine meets all of them."""
    found: dict[Name, list[Result]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(job())
    return found


def medians(
    jobs: Mapping[Name, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, float]:
    """Median seconds of each job, run in turn."""

    def timed(job: Callable[[], object]) -> float:
        start = clock()
        job()
        return clock() - start

    times = in_turn({name: lambda job=job: timed(job) for name, job in jobs.items()}, rounds)
    return {name: statistics.median(values) for name, values in times.items()}


def print_row(cells: Iterable[object]) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def print_head(titles: Sequence[str]) -> None:
    print_row(titles)
    print("|" + "---|" * len(titles), flush=True)


@dataclass(frozen=True)
class Cost:
    """Of one command: seconds on the clock and of the processor, and its peak in MiB."""

    wall: float
    cpu: float
    peak: float
    cut_off: bool = False


def cost(
    command: Sequence[str],
    settings: Mapping[str, str] | None = None,
    limit: float = 3600.0,
    stderr: int | None = None,
) -> Cost:
    """Run ``python COMMAND`` with these settings alone for threads; the peak is its own."""
    started = time.perf_counter()
    child = start(command, settings, stderr)
    timer = threading.Timer(limit, child.kill)
    timer.start()
    _, status, used = os.wait4(child.pid, 0)
    timer.cancel()
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode and wall < limit:
        raise SystemExit(f"{' '.join(command)} ended with code {child.returncode}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, wall >= limit)


def start(
    command: Sequence[str], settings: Mapping[str, str] | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THREADS)}
    return subprocess.Popen(
        [sys.executable, *command],
        env={**inherited, "HF_HUB_OFFLINE": "1", **(settings or {})},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Medians of each figure; cut off if any run was."""
    figures = ([getattr(one, name) for one in costs] for name in ("wall", "cpu", "peak"))
    return Cost(*map(statistics.median, figures), any(one.cut_off for one in costs))


@contextmanager
def competitors(n: int) -> Iterator[None]:
    """Keep ``n`` programs busy beside what runs in the block; they end with it, or with us."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())]) for _ in range(n)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def load() -> str:
    """How many programs wanted a core in the last minute, where the system tells."""
    path = Path("/proc/loadavg")
    return path.read_text(encoding="ascii").split()[0] if path.exists() else "unknown"
