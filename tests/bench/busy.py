"""What does another program on the cores cost a command, under each setting of OpenMP?

Run from the repository: ``python tests/bench/busy.py [TREEBANK.conllu]``. It runs ``headscope
classify demo`` on a quiet machine (make it so: no other program should run), beside one spinning
program of its own, and beside one on every core, all settings in turn; one that takes 15 times as
long as the fastest quiet one is cut off. Where threads share the cores fairly, the ratio is 1.5
beside one program on two cores and 2 beside a program on each.
"""

import os

from timing import competitors, cost, load, median_cost, options

#: As it is shipped; the runtime left alone (a variable that GNU's does not know keeps headscope
#: from setting any); and what else could be set.
SETTINGS = {
    "headscope's default": {},
    "the runtime's default": {"KMP_LIBRARY": "throughput"},
    "sleep at once": {"OMP_WAIT_POLICY": "passive"},
    "spin 1000 times": {"GOMP_SPINCOUNT": "1000"},
    "spin 30000 times": {"GOMP_SPINCOUNT": "30000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def main():
    cores = os.cpu_count() or 1
    chosen = {"only": list(SETTINGS), "busy": sorted({1, cores})}
    settings = options(__doc__, "treebank?", repeats=3, limit="", **chosen)
    command = ["-m", "headscope", "classify", "demo", "--format", "json"]
    command += ["--treebank", str(settings.treebank)] if settings.treebank else []
    command += ["--limit", settings.limit] if settings.limit else []
    print(f"{cores} cores, load before the first run {load()}")
    cost(command)  # files come from the disk once
    limit = 600.0
    yardstick = 0.0
    for programs in (0, *settings.busy):
        runs = {name: [] for name in settings.only}
        with competitors(programs):
            for _ in range(settings.repeats):
                for name, costs in runs.items():
                    if not any(one.cut_off for one in costs):
                        costs.append(cost(command, SETTINGS[name], limit))
        medians_of_runs = {name: median_cost(costs) for name, costs in runs.items()}
        if not programs:
            yardstick = medians_of_runs[settings.only[0]].wall
            limit = 15 * min(one.wall for one in medians_of_runs.values())
        print(f"\nbeside {programs} programs (load {load()}); ratio to the first, quiet")
        for name, one in medians_of_runs.items():
            more = "more than " if one.cut_off else ""
            ratio = f"ratio {more}{one.wall / yardstick:.2f}"
            times = f"{more}{one.wall:.1f} s, processor time {one.cpu:.1f} s"
            print(f"  {name:22} {times}, {ratio}", flush=True)


if __name__ == "__main__":
    main()
