"""What the benchmarks share: jobs timed in turn, whole commands timed from outside, tables."""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it

#: Variables that say how many threads run and how they wait; each run sets its own.
_OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
_SPIN = "import os, sys\nparent = int(sys.argv[1])\nwhile os.getppid() == parent: pass"


def options(doc, *files, **settings):
    """Read the command line: files ("?" for one that may be missing), settings by their default."""
    parser = argparse.ArgumentParser(description=doc)
    for name in files:
        parser.add_argument(name.rstrip("?"), nargs="?" if "?" in name else None, type=Path)
    for name, default in settings.items():
        several = isinstance(default, list)
        how = {"type": type(default[0] if several else default), "nargs": "+" if several else None}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **how)
    return parser.parse_args()


def in_turn(jobs, rounds):
    """Run all jobs, then all again: a drift of the machine meets all of them."""
    times = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(job())
    return times


def medians(jobs, rounds, clock=time.perf_counter):
    """Median seconds of each job, run in turn."""

    def timed(job):
        start = clock()
        job()
        return clock() - start

    times = in_turn({name: partial(timed, job) for name, job in jobs.items()}, rounds)
    return {name: statistics.median(values) for name, values in times.items()}


def print_row(cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def print_head(titles):
    print_row(titles)
    print("|" + "---|" * len(titles), flush=True)


#: Of one command: seconds on the clock and of the processor, and its peak in MiB.
Cost = namedtuple("Cost", "wall cpu peak cut_off")


def cost(command, settings=None, limit=3600.0, stderr=None):
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


def start(command, settings=None, stderr=None):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THREADS)}
    environment = {**inherited, **(settings or {})}
    words = [sys.executable, *command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)


def median_cost(costs):
    """Medians of each figure; cut off if any run was."""
    *figures, cut_off = zip(*costs, strict=True)
    return Cost(*map(statistics.median, figures), any(cut_off))


@contextmanager
def competitors(n):
    """Keep ``n`` programs busy beside what runs in the block; they end with it, or with us."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())]) for _ in range(n)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def load():
    """How many programs wanted a core in the last minute, where the system tells."""
    path = Path("/proc/loadavg")
    return path.read_text(encoding="ascii").split()[0] if path.exists() else "unknown"
