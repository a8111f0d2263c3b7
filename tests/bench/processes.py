"""Is the same machine better used by one process with all threads, or by several with fewer?

Run from the repository: ``python tests/bench/processes.py [TREEBANK.conllu] [--copies N]``. It runs
``headscope classify demo`` in one process with as many threads as there are processes, and under
``torchrun`` in that many processes of one thread each, in turn. A corpus that is so short that
starting takes most of the time can be read several times over. Prints medians of whole runs.

``efficiency`` is the time of one process over that of several, both with the same threads in all:
1 where sharing costs nothing. ``after the start`` takes off what a run on one sentence takes.
"""

import argparse
import tempfile
from pathlib import Path

from timing import cost, in_turn, load, median_cost

from headscope.data.corpus import SAMPLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--copies", type=int, default=1, help="read the treebank so many times")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    n = given.processes
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / given.treebank.name
        corpus.write_bytes(given.treebank.read_bytes() * given.copies)
        command = ["-m", "headscope", "classify", "demo", "--format", "json"]
        command += ["--treebank", str(corpus)]
        together = ["-m", "torch.distributed.run", "--nproc-per-node", str(n), *command]
        ways = {
            f"1 process, {n} threads": (command, {"OMP_NUM_THREADS": str(n)}),
            f"{n} processes, 1 thread each": (together, {"OMP_NUM_THREADS": "1"}),
        }
        jobs = {
            (name, more): lambda words=(*words, *more), threads=threads: cost(words, threads)
            for name, (words, threads) in ways.items()
            for more in (("--limit", "1"), ())
        }
        print(f"{corpus.name} x {given.copies}, load before the first run {load()}")
        cost([*command, "--limit", "1"])  # files come from the disk once
        found = {key: median_cost(costs) for key, costs in in_turn(jobs, given.repeats).items()}
    walls, after = [], []
    for name in ways:
        start, whole = found[name, ("--limit", "1")], found[name, ()]
        print(
            f"{name:28} {whole.wall:.1f} s, processor time {whole.cpu:.1f} s, "
            f"start {start.wall:.1f} s"
        )
        walls.append(whole.wall)
        after.append(whole.wall - start.wall)
    print(f"efficiency {walls[0] / walls[1]:.2f}")
    print(f"efficiency after the start {after[0] / after[1]:.2f}")


if __name__ == "__main__":
    main()
