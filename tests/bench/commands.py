"""Runs of whole commands, timed from outside, and what else the machine did meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Variables that say how many threads run and how they wait; each run sets its own.
_OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
_SPIN = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Timing:
    """Seconds on the clock and of processor time, and whether the run was cut off."""

    wall: float
    cpu: float
    cut_off: bool = False


def timed_run(
    command: Sequence[str], settings: Mapping[str, str] | None = None, limit: float = 600.0
) -> Timing:
    """Run ``python COMMAND`` with these settings alone for threads; output is thrown away."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THREADS)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *command],
            env={**inherited, "HF_HUB_OFFLINE": "1", **(settings or {})},
            stdout=subprocess.DEVNULL,
            timeout=limit,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
        cut_off = False
    except subprocess.TimeoutExpired:
        cut_off = True
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall, cpu, cut_off)


@dataclass(frozen=True)
class Cost:
    """Of one command: seconds on the clock and of the processor, and the peak in MiB."""

    wall: float
    cpu: float
    peak: float


def cost(command: Sequence[str], settings: Mapping[str, str] | None = None) -> Cost:
    """Run ``python COMMAND``; the peak is its own, as this process is small."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(settings or {})},
        stdout=subprocess.DEVNULL,
    )
    return cost_of(child, start)


def cost_of(child: subprocess.Popen[bytes], start: float) -> Cost:
    """Wait for a process that started at ``start`` and say what it took."""
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{child.args} ended with code {child.returncode}")
    wall = time.perf_counter() - start
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


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
