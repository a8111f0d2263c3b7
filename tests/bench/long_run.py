"""A long corpus through ``classify``: time, memory, the bar's promise, and a kill on the way.

Run from the repository: ``python tests/bench/long_run.py TEXT.txt [--sentences 100000]``. On as
many threads as ``--processes``, in one process and under ``torchrun``:

1. a tenth of the sentences and all of them: seconds on the clock and of the processor, peak memory;
   what the bar on the terminal said was left after a quarter, half and three quarters of the time,
   and what was;
2. all of them again in several processes, killed (-9) after a third of the time and resumed: the
   bytes of the result must be those of the run that was left alone, but for ``created``.
"""

import json
import os
import pty
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from timing import cost, load, options, print_head, print_row, start

sys.path.insert(0, str(Path(__file__).parents[1]))  # for processes.py

from processes import content

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
DAY = 86_400.0
#: The time left that a bar shows.
_BAR = re.compile(rb"about (?:(\d+):)?(\d+):(\d\d) left")


class Bar:
    """What a run's bar says on a terminal, with the time at which it was read."""

    def __init__(self):
        self._start = time.perf_counter()
        self._read_end, self.terminal = pty.openpty()
        self._said = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while data := os.read(self._read_end, 4096):
            for figures in _BAR.findall(data):
                hours, minutes, seconds = (int(figure or 0) for figure in figures)
                seconds_left = 3600 * hours + 60 * minutes + seconds
                self._said.append((time.perf_counter() - self._start, seconds_left))

    def promises(self, took):
        """Yield (share of the time, seconds that were said to be left, seconds that were left)."""
        for share in (0.25, 0.5, 0.75):
            moment, seconds_left = next(said for said in self._said if said[0] >= share * took)
            yield share, seconds_left, took - moment


def measure(name, words, folder, threads, terminal=None):
    """Run, and print a row; the texts may hold fewer sentences than were asked for."""
    costs = cost([*words, "-o", str(folder)], {"OMP_NUM_THREADS": str(threads)}, DAY, terminal)
    corpus = json.loads((folder / "classify.json").read_text(encoding="utf-8"))["corpus"]
    n = corpus["sentences"] + corpus["skipped"]
    print_row((name, f"{n:,}", f"{costs.wall:.0f}", f"{costs.cpu:.0f}", f"{costs.peak:,.0f}"))
    return costs.wall


def killed_and_resumed(words, out, after):
    """Kill all processes of a run and resume it; say whether a state was there to go on from."""
    child = start([*words, "-o", str(out)], ONE_THREAD)
    time.sleep(after)
    for process in Path("/proc").iterdir():  # the workers of torchrun are in groups of their own
        if process.name.isdigit() and str(out).encode() in (process / "cmdline").read_bytes():
            os.kill(int(process.name), signal.SIGKILL)
    child.wait()
    n_states = len(list(out.glob(".classify.state*")))
    costs = cost([*words, "-o", str(out), "--resume"], ONE_THREAD, limit=DAY)
    print(f"\nkilled after {after:.0f} s with {n_states} saved states; resumed, {costs.wall:.0f} s")
    return n_states > 0


def main():
    settings = options(__doc__, "text", model="demo", sentences=100_000, processes=2)
    k = settings.processes
    n = settings.sentences
    print(f"{os.cpu_count()} cores, load {load()} at the start\n")
    print_head(("run", "sentences", "seconds", "processor seconds", "peak MiB of a process"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [
            "-m",
            "headscope",
            "classify",
            settings.model,
            "--text",
            str(settings.text),
            "--limit",
        ]
        together = ["-m", "torch.distributed.run", "--nproc-per-node", str(k), *command]
        for size in (str(n // 10), str(n)):
            bar = Bar()
            one = f"1 process, {k} threads"
            alone = measure(one, [*command, size], folder / "one", k, bar.terminal)
            several = f"{k} processes, 1 thread each"
            took = measure(several, [*together, size], folder / "several", 1)
        print()
        for share, said, was in bar.promises(alone):
            print(f"at {share:.0%} of the time the bar said {said:.0f} s left; it took {was:.0f} s")
        n_states = killed_and_resumed([*together, str(n)], folder / "killed", took / 3)
        same = content(folder / "killed") == content(folder / "several")
        print("the same bytes" if same else "OTHER BYTES")
    sys.exit(0 if n_states and same else 1)


if __name__ == "__main__":
    main()
