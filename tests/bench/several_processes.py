"""Is the same machine better used by one process with all threads, or by several with fewer?

Run from the repository: ``python tests/bench/several_processes.py [TREEBANK.conllu] [--copies N]``.
It runs ``headscope classify demo`` in one process with N threads and under ``torchrun`` in N
processes of one, in turn. ``efficiency`` is the time of one process over that of several: 1 where
sharing costs nothing. ``after the start`` takes off what a run on one sentence takes.
"""

import tempfile
from functools import partial
from pathlib import Path

from timing import cost, in_turn, load, median_cost, options

from headscope.data.corpus import SAMPLE


def main():
    settings = options(__doc__, "treebank?", copies=1, processes=2, repeats=5)
    n = str(settings.processes)
    treebank = settings.treebank or SAMPLE
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / treebank.name
        corpus.write_bytes(treebank.read_bytes() * settings.copies)
        command = ["-m", "headscope", "classify", "demo", "--format", "json"]
        command += ["--treebank", str(corpus)]
        together = ["-m", "torch.distributed.run", "--nproc-per-node", n, *command]
        one = ("--limit", "1")
        jobs = {
            (name, more): partial(cost, [*words, *more], {"OMP_NUM_THREADS": threads})
            for name, words, threads in (
                (f"1 process, {n} threads", command, n),
                (f"{n} processes, 1 thread each", together, "1"),
            )
            for more in (one, ())
        }
        print(f"{corpus.name} x {settings.copies}, load before the first run {load()}")
        cost([*command, *one])  # files come from the disk once
        medians = {
            key: median_cost(costs) for key, costs in in_turn(jobs, settings.repeats).items()
        }
    walls = []
    after = []
    for name in dict.fromkeys(name for name, _ in jobs):
        start = medians[name, one].wall
        single = medians[name, ()]
        times = f"{single.wall:.1f} s, processor time {single.cpu:.1f} s, start {start:.1f} s"
        print(f"{name:28} {times}")
        walls.append(single.wall)
        after.append(single.wall - start)
    print(f"efficiency {walls[0] / walls[1]:.2f}")
    print(f"efficiency after the start {after[0] / after[1]:.2f}")


if __name__ == "__main__":
    main()
