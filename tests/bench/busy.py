"""What does another program on the cores cost a command, under each setting of OpenMP?

Run from the repository: ``python tests/bench/busy.py [TREEBANK.conllu]``. It runs ``headscope
classify demo`` on a quiet machine (make it so: no other program should run), beside one spinning
program, and beside one on every core; the programs are its own. All settings are run in turn, so
that a drift of the machine meets all of them; a run that takes 15 times as long as the fastest
quiet one is cut off. Prints medians and ratios, and asserts nothing: machines differ.

On an ideal machine, whose threads share the cores fairly and never wait for one that does not run,
the ratio would be 1.5 beside one program on two cores and 2 beside a program on each.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from commands import Timing, competitors, load, timed_run

#: As it is shipped; the runtime left alone (a variable that GNU's does not know keeps headscope
#: from setting any); and what else could be set.
SETTINGS: dict[str, dict[str, str]] = {
    "headscope's default": {},
    "the runtime's default": {"KMP_LIBRARY": "throughput"},
    "sleep at once": {"OMP_WAIT_POLICY": "passive"},
    "spin 1000 times": {"GOMP_SPINCOUNT": "1000"},
    "spin 30000 times": {"GOMP_SPINCOUNT": "30000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
CUT_OFF = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, help="default: the built-in sample")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, help="only the first sentences")
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--busy", nargs="*", type=int, help="default: 1, and one per core")
    arguments = parser.parse_args()
    command = ["-m", "headscope", "classify", "demo", "--format", "json"]
    command += ["--treebank", str(arguments.treebank)] if arguments.treebank else []
    command += ["--limit", str(arguments.limit)] if arguments.limit else []
    cores = os.cpu_count() or 1
    busy = arguments.busy if arguments.busy is not None else sorted({1, cores})

    print(f"{cores} cores, load before the first run {load()}")
    timed_run(command)  # files come from the disk once
    quiet = measure(command, arguments.only, 0, arguments.repeats, 600.0)
    first = arguments.only[0]
    show("quiet", quiet, quiet[first].wall)
    limit = CUT_OFF * min(timing.wall for timing in quiet.values())
    for programs in busy:
        found = measure(command, arguments.only, programs, arguments.repeats, limit)
        show(f"beside {programs} spinning program(s)", found, quiet[first].wall)


def measure(
    command: list[str], names: list[str], programs: int, repeats: int, limit: float
) -> dict[str, Timing]:
    """Medians of each setting; one that was ever cut off counts as cut off."""
    runs: dict[str, list[Timing]] = {name: [] for name in names}
    with competitors(programs):
        for _ in range(repeats):
            for name in names:
                if not any(timing.cut_off for timing in runs[name]):
                    runs[name].append(timed_run(command, SETTINGS[name], limit))
    return {
        name: Timing(
            statistics.median(timing.wall for timing in timings),
            statistics.median(timing.cpu for timing in timings),
            any(timing.cut_off for timing in timings),
        )
        for name, timings in runs.items()
    }


def show(title: str, found: dict[str, Timing], yardstick: float) -> None:
    print(f"\n{title} (load {load()}); ratio: to headscope's default, or the first, when quiet")
    for name, timing in found.items():
        more = "more than " if timing.cut_off else ""
        print(
            f"  {name:22} {more}{timing.wall:.1f} s, processor time {timing.cpu:.1f} s, "
            f"ratio {more}{timing.wall / yardstick:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
