"""Is the same machine better used by one process with all threads, or by several with fewer?

Run from the repository: ``python tests/bench/processes.py [TREEBANK.conllu] [--copies N]``. It runs
``headscope classify demo`` in one process with as many threads as there are processes, and under
``torchrun`` in that many processes of one thread each, in turn, so that a drift of the machine
meets both. A corpus that is so short that starting takes most of the time can be read several times
over. Prints medians of whole runs, and asserts nothing: machines differ.

``efficiency`` is the time of one process over that of several, both with the same threads in all:
1 where sharing costs nothing. ``after the start`` takes off what a run on one sentence takes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from commands import Timing, load, timed_run

from headscope.data.corpus import SAMPLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--copies", type=int, default=1, help="read the treebank so many times")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    n = arguments.processes
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / arguments.treebank.name
        corpus.write_bytes(arguments.treebank.read_bytes() * arguments.copies)
        command = ["-m", "headscope", "classify", "demo", "--format", "json"]
        command += ["--treebank", str(corpus)]
        together = ["-m", "torch.distributed.run", "--nproc-per-node", str(n), *command]
        ways = {
            f"1 process, {n} threads": (command, {"OMP_NUM_THREADS": str(n)}),
            f"{n} processes, 1 thread each": (together, {"OMP_NUM_THREADS": "1"}),
        }
        print(f"{corpus.name} x {arguments.copies}, load before the first run {load()}")
        timed_run([*command, "--limit", "1"])  # files come from the disk once
        whole: dict[str, list[Timing]] = {name: [] for name in ways}
        start: dict[str, list[Timing]] = {name: [] for name in ways}
        for _ in range(arguments.repeats):
            for name, (words, threads) in ways.items():
                start[name].append(timed_run([*words, "--limit", "1"], threads))
                whole[name].append(timed_run(words, threads, limit=3600))
                print(f"  {name:28} {whole[name][-1].wall:6.1f} s (load {load()})", flush=True)
    show(whole, start)


def show(whole: dict[str, list[Timing]], start: dict[str, list[Timing]]) -> None:
    """Print medians, and the ratio of the first way's to the second's."""
    walls = {name: statistics.median(one.wall for one in runs) for name, runs in whole.items()}
    starts = {name: statistics.median(one.wall for one in runs) for name, runs in start.items()}
    for name, runs in whole.items():
        cpu = statistics.median(one.cpu for one in runs)
        print(
            f"{name:28} {walls[name]:.1f} s, processor time {cpu:.1f} s, start {starts[name]:.1f} s"
        )
    one, several = walls
    print(f"efficiency {walls[one] / walls[several]:.2f}")
    after = [walls[name] - starts[name] for name in (one, several)]
    print(f"efficiency after the start {after[0] / after[1]:.2f}")


if __name__ == "__main__":
    main()
