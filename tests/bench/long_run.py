"""A long corpus through ``classify``: time, memory, the bar's promise, and a kill on the way.

Run from the repository: ``python tests/bench/long_run.py TEXT.txt ... [--sentences 100000]``. The
texts are joined. On as many threads as ``--processes``, in one process and under ``torchrun``:

1. a tenth of the sentences and all of them: seconds on the clock and of the processor, peak memory;
   what the bar on the terminal said was left at a quarter, half and three quarters, and what was;
2. all of them again in several processes, killed (-9) after a third of the time and resumed: the
   bytes of the result must be those of the run that was left alone, but for ``created``.
"""

import argparse
import json
import os
import pty
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from timing import Cost, cost, load, print_head, print_row, start

sys.path.insert(0, str(Path(__file__).parents[1]))  # for processes.py

from processes import content

ONE_THREAD, DAY = {"OMP_NUM_THREADS": "1"}, 86_400.0
#: What a bar shows: steps done, steps in all, time left.
_BAR = re.compile(rb"(\d+)/(\d+)\S* +(?:\x1b\[\d*m)*(\d+):(\d\d):(\d\d)")


class Bar:
    """What a run's bar says on a terminal, with the time at which it was read."""

    def __init__(self) -> None:
        self._read_end, self.terminal = pty.openpty()
        self._said: list[tuple[float, float, int]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while data := os.read(self._read_end, 4096):
            for done, n, hours, minutes, seconds in _BAR.findall(data):
                left = 3600 * int(hours) + 60 * int(minutes) + int(seconds)
                self._said.append((time.perf_counter(), int(done) / int(n), left))

    def promises(self) -> list[tuple[float, float, float]]:
        """Return (share done, seconds that were said to be left, seconds that were left)."""
        done = [at for at, share, _ in self._said if share == 1.0]
        end = done[0] if done else self._said[-1][0]
        found = []
        for share in (0.25, 0.5, 0.75):
            at, reached, left = next(said for said in self._said if said[1] >= share)
            found.append((reached, float(left), end - at))
        return found


def show(name: str, folder: Path, found: Cost) -> None:
    """Print a row; the texts may hold fewer sentences than were asked for."""
    corpus = json.loads((folder / "classify.json").read_text(encoding="utf-8"))["corpus"]
    n = corpus["sentences"] + corpus["skipped"]
    print_row((name, f"{n:,}", f"{found.wall:.0f}", f"{found.cpu:.0f}", f"{found.peak:,.0f}"))


def killed_and_resumed(words: list[str], out: Path, after: float) -> bool:
    """Kill all processes of a run and resume it; say whether a state was there to go on from."""
    child = start([*words, "-o", str(out)], ONE_THREAD)
    time.sleep(after)
    for process in Path("/proc").iterdir():  # the workers of torchrun are in groups of their own
        if process.name.isdigit() and str(out).encode() in (process / "cmdline").read_bytes():
            os.kill(int(process.name), signal.SIGKILL)
    child.wait()
    kept = list(out.glob(".classify.state*"))
    found = cost([*words, "-o", str(out), "--resume"], ONE_THREAD, limit=DAY)
    print(
        f"\nkilled after {after:.0f} s with {len(kept)} saved states; resumed, {found.wall:.0f} s"
    )
    return bool(kept)


def main() -> None:
    """Print one row a run, the bar's promises, and what became of the killed run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    k, n = given.processes, given.sentences
    print(f"{os.cpu_count()} cores, load {load()} at the start\n")
    print_head(("run", "sentences", "seconds", "processor seconds", "peak MiB of a process"))
    with tempfile.TemporaryDirectory() as temporary:
        text, folder = Path(temporary) / "corpus.txt", Path(temporary)
        with text.open("wb") as joined:
            for path in given.texts:
                joined.write(path.read_bytes())
        command = ["-m", "headscope", "classify", given.model, "--text", str(text), "--limit"]
        together = ["-m", "torch.distributed.run", "--nproc-per-node", str(k)]
        for size in (n // 10, n):
            bar = Bar()
            words = [*command, str(size), "-o", str(folder / "one")]
            one = cost(words, {"OMP_NUM_THREADS": str(k)}, DAY, bar.terminal)
            show(f"1 process, {k} threads", folder / "one", one)
            words = [*together, *command, str(size), "-o", str(folder / "several")]
            several = cost(words, ONE_THREAD, DAY)
            show(f"{k} processes, 1 thread each", folder / "several", several)
        print()
        for share, said, was in bar.promises():
            print(f"at {share:.0%} the bar said {said:.0f} s left; it took {was:.0f} s")
        kept = killed_and_resumed(
            [*together, *command, str(n)], folder / "killed", several.wall / 3
        )
        same = content(folder / "killed") == content(folder / "several")
        print("the same bytes" if same else "OTHER BYTES")
        shutil.rmtree(folder / "killed")
    sys.exit(0 if kept and same else 1)


if __name__ == "__main__":
    main()
