"""What survives when runs are killed, interrupted, or find no room? Counts tried, survived, lost.

Run from the repository: ``python tests/bench/faults.py [--times 50] [--seed 0] [--only KIND ...]``.
Exits with 1 if anything was lost. As root it also fills a real disk and makes one read-only.

A trial survives if, after the fault and one run with ``--resume``, the folder holds the same bytes
as that of a run that was left alone (but for ``created``), nothing else is in it, and at no time
between did it look whole without being so.

1. kill -9 at a random moment of ``classify``, ``spectrum`` and ``prune``; in half of the trials the
   folder holds the results of another run before.
   A second count kills while a pass runs that has saved a state, and kills its successor too.
2. kill -9 just before every single change of a file while a folder is written.
3. Ctrl-C at random moments, of running commands and of commands that still load.
4. A disk that fills up; a folder, and a disk, that cannot be written to.
5. A reader of stdout that goes away after a random number of bytes.
6. A second run in the folder of one that is at work, which may then be killed.
"""

import argparse
import functools
import importlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # for processes.py

from outcomes import Ended
from processes import Run, content, die_before, small_disk

from headscope.atomic import write_atomically
from headscope.errors import InputError
from headscope.show.files import state_name
from headscope.show.folders import ready_folder, write_files
from headscope.show.view import view_of
from headscope.verdicts.reading import read_results

COMMANDS = {
    "classify": ("--limit", "60", "--control"),
    "spectrum": ("--sequences", "24"),
    "prune": ("--limit", "48", "--calibration-limit", "48", "--step", "0.5", "--no-roles"),
}
#: Another run of the same command, whose results may lie in the folder before.
OTHER = {
    "classify": ("--limit", "20"),
    "spectrum": ("--sequences", "4"),
    "prune": ("--limit", "20", "--calibration-limit", "20", "--heads", "L0H0", "--no-roles"),
}


PRELOADED = ("matplotlib.pyplot", "headscope.cli.app", "headscope.models.loading")
PRELOADED += tuple(f"headscope.pipeline.{name}" for name in ("classify", "prune.run", "spectrum"))


@dataclass
class Count:
    """What became of the trials of one kind."""

    name: str
    tried: int = 0
    losses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def trial(self, failures: list[str]) -> None:
        self.tried += 1
        if failures:
            self.losses.append("; ".join(failures))
            print(f"LOST: {self.name}: {self.losses[-1]}", flush=True)


class Trials:
    """Folders of runs that were left alone, and trials beside them."""

    def __init__(self, model: str, seed: int, room: Path) -> None:
        self.model, self.room, self.random = model, room, random.Random(seed)
        self.whole: dict[str, dict[str, bytes]] = {}
        self.seconds: dict[str, float] = {}
        self._number = 0
        for command in COMMANDS:  # without a fault, twice: the bytes must be the same
            for name in ("whole", "again"):
                folder = room / f"{command}-{name}"
                ended = self.start(command, folder).end()
                assert ended.code == 0, ended.stderr
                self.seconds[command] = ended.seconds
                found = content(folder)
                same = self.whole.setdefault(command, found) == found
                assert same, "two runs differ by themselves"
            words = (command, model, *OTHER[command], "-o", room / f"{command}-other")
            assert Run(*words).end().code == 0

    def start(self, command: str, folder: Path, *more: str, **how: object) -> Run:
        """Start a run in a folder."""
        words = (command, self.model, *COMMANDS[command], "-o", folder, *more)
        return Run(*words, **how)  # type: ignore[arg-type]

    def folder(self, command: str, used: bool) -> Path:
        """Return a new folder, which holds results of another run if ``used``."""
        self._number += 1
        folder = self.room / f"trial-{self._number}"
        if used:
            shutil.copytree(self.room / f"{command}-other", folder)
        return folder

    def moment(self, command: str) -> float:
        return self.random.uniform(0.0, self.seconds[command])

    def looks_whole(self, command: str, folder: Path, *more: str) -> list[str]:
        """Say what is wrong if a folder that a fault has left holds a mixture.

        ``more`` are files that the folder held before besides the other run's.
        """
        try:
            read_results(folder)
        except InputError:
            return []
        found = {name: data for name, data in content(folder).items() if not name.startswith(".")}
        other = content(self.room / f"{command}-other")
        before = {**other, **dict.fromkeys(more, b"of another run")}
        return [] if found in (self.whole[command], before) else ["a mixture was taken for whole"]

    def some(self, times: int, *, used: bool = False) -> Iterator[tuple[int, str, Path]]:
        """Yield (number, command, folder) of trials, the commands in turn.

        With ``used`` every other folder holds results of another run.
        """
        for number in range(times):
            command = list(COMMANDS)[number % len(COMMANDS)]
            yield number, command, self.folder(command, used=used and number % 2 == 1)

    def survived(self, command: str, folder: Path) -> list[str]:
        """Say what is wrong with a folder after a fault, and after the run was resumed."""
        wrong = self.looks_whole(command, folder) if folder.exists() else []
        return wrong + self.resumed(command, folder)

    def resumed(self, command: str, folder: Path) -> list[str]:
        """Resume a run and compare the bytes."""
        ended = self.start(command, folder, "--resume").end()
        wrong = (
            [] if ended.code == 0 else [f"resuming ended with {ended.code}: {ended.stderr[-300:]}"]
        )
        found, whole = content(folder) if folder.exists() else {}, self.whole[command]
        differing = sorted(n for n in {*found, *whole} if found.get(n) != whole.get(n))
        wrong += [f"other bytes in {differing}"] if differing else []
        shutil.rmtree(folder, ignore_errors=True)
        return wrong


def one_sentence(ended: Ended, code: int, *words: str) -> list[str]:
    """Say what is wrong with the end of a run that could not go on."""
    wrong = [] if ended.code == code else [f"exit {ended.code}, not {code}"]
    if ended.stderr.count("\n") != 1 or not ended.stderr.startswith("headscope: "):
        wrong.append(f"not one sentence: {ended.stderr[-300:]!r}")
    lacking = [word for word in words if word not in ended.stderr]
    return wrong + [f"{word!r} is not in {ended.stderr!r}" for word in lacking]


def kills(trials: Trials, times: int) -> Iterator[Count]:
    """Kill at random moments, resume, compare."""
    for place, command in enumerate(COMMANDS):
        count = Count(f"kill -9 at a random moment of {command}")
        kept, late = 0, 0
        for number in range(times // 3 + (place < times % 3)):
            folder = trials.folder(command, used=number % 2 == 1)
            run = trials.start(command, folder, "--resume")
            run.kill_after(trials.moment(command))
            late += run.end().code == 0
            state = folder / f".{command}.state.safetensors"
            kept += state.exists()
            count.trial(trials.survived(command, folder))
        count.notes.append(f"{kept} had saved a state, {late} had ended before")
        count.notes.append(f"a run alone takes {trials.seconds[command]:.1f} s")
        yield count


def kills_in_passes(trials: Trials, times: int) -> Iterator[Count]:
    """Kill twice soon after a state was saved, resume, compare."""
    count = Count("kill -9 twice in a pass, with a state to go on from")
    tried = 0
    for _, command, folder in trials.some(times):
        state = folder / f".{command}.state.safetensors"
        for _ in range(2):
            run = trials.start(command, folder, "--resume", every=0.0)
            before = state.stat().st_mtime_ns if state.exists() else 0
            while run.alive() and (not state.exists() or state.stat().st_mtime_ns == before):
                time.sleep(0.001)
            time.sleep(trials.random.uniform(0.0, 0.3))
            with suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)
            tried += run.end().code != 0 and state.exists()
        count.trial(trials.survived(command, folder))
    count.notes.append(f"{tried} of the {2 * times} kills left a state")
    yield count


def every_change(trials: Trials) -> Iterator[Count]:
    """Kill a run before every change of a file while it writes its folder, over another's results.

    The run is one whose result is known already: it makes the folder ready, saves its state, and
    writes.
    """
    command = "classify"
    count = Count("kill -9 before each change of a file in the folder")
    files = {n: (trials.room / "classify-whole" / n).read_bytes() for n in trials.whole[command]}
    state = state_name(command)

    def write(folder: Path) -> int:
        with ready_folder(folder):
            write_atomically(folder / state, b"sums")
            write_files(folder, files, stale=("gone.csv",), mark="classify.json")
            (folder / state).unlink()
        return 0

    for number in itertools.count(1):
        folder = trials.folder(command, used=True)
        (folder / "gone.csv").write_text("of another run")
        ended = Run(before=die_before(folder, number), body=lambda f=folder: write(f)).end()
        if ended.code == 0:
            break
        wrong = trials.looks_whole(command, folder, "gone.csv")
        if Run(body=lambda f=folder: write(f)).end().code != 0:
            wrong.append("the next run failed")
        if content(folder) != trials.whole[command]:
            wrong.append("other bytes")
        count.trial(wrong)
    yield count


def interrupts(trials: Trials, times: int) -> Iterator[Count]:
    """Ctrl-C at random moments."""
    count = Count("Ctrl-C at a random moment")
    for _, command, folder in trials.some(times, used=True):
        run = trials.start(command, folder, "--resume")
        run.kill_after(trials.moment(command), signal.SIGINT)
        ended = run.end()
        wrong = [] if ended.code == 0 else one_sentence(ended, 130, "interrupted")
        count.trial(wrong + trials.survived(command, folder))
    yield count


def loading(trials: Trials, times: int) -> Iterator[Count]:
    """Ctrl-C while modules are imported."""
    count = Count("Ctrl-C while the program loads")
    for _ in range(times):
        words = [sys.executable, "-m", "headscope", "classify", trials.model, "--limit", "5"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(trials.random.uniform(0.1, 2.0))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        ended = process.returncode in (0, 130, -signal.SIGINT)
        quiet = err.decode() in ("", "headscope: interrupted\n")
        count.trial([] if ended and quiet else [f"{process.returncode}: {err.decode()[-300:]}"])
    yield count


def disks(trials: Trials, times: int) -> Iterator[Count]:
    """Fill a disk at random sizes; take the right to write away."""
    full = Count("disk full")
    for number in range(times):
        command = list(COMMANDS)[number % 3]
        needed = sum(map(len, trials.whole[command].values())) // 1024
        with small_disk(trials.room / "disk", trials.random.randint(8, max(9, needed))) as disk:
            ended = trials.start(command, disk / "out").end()
            wrong = one_sentence(ended, 1, "No space left") if ended.code else []
            wrong += trials.looks_whole(command, disk / "out") if (disk / "out").exists() else []
            os.system(f"mount -o remount,size=64m '{disk}'")
            wrong += trials.resumed(command, disk / "out")
        full.trial(wrong)
    yield full
    closed = Count("read-only disk, or folder of another user")
    for command in COMMANDS:
        with small_disk(trials.room / "disk", 4096) as disk:
            os.system(f"mount -o remount,ro '{disk}'")
            ended = trials.start(command, disk / "out").end()
            closed.trial(one_sentence(ended, 1, str(disk / "out"), "-o"))
        mine = Path(tempfile.mkdtemp(dir="/tmp"))
        mine.chmod(0o755)
        nobody: Callable[[], None] = lambda: os.setuid(65534)  # noqa: E731
        ended = trials.start(command, mine, before=nobody).end()
        closed.trial(one_sentence(ended, 1, str(mine), "-o"))
        mine.rmdir()
    yield closed


def pipes(trials: Trials, times: int) -> Iterator[Count]:
    """Go away while a run prints, with its folder to be written too."""
    count = Count("stdout's reader goes away")
    for _, command, folder in trials.some(times):
        form = trials.random.choice(("human", "json", "csv"))
        reading, writing = os.pipe()
        alone = functools.partial(os.close, reading)  # or the run would be a reader of itself
        run = trials.start(command, folder, "--format", form, stdout=writing, before=alone)
        os.close(writing)
        wanted = trials.random.choice((0, 1, 100, 5000))
        while wanted > 0 and (data := os.read(reading, wanted)):
            wanted -= len(data)
        os.close(reading)
        ended = run.end()
        wrong = [] if ended.code in (0, 141) else [f"exit {ended.code}"]
        wrong += [f"said {ended.stderr[-300:]!r}"] if ended.stderr else []
        if content(folder) != trials.whole[command]:
            wrong.append("the folder is not whole")
        shutil.rmtree(folder)
        count.trial(wrong)
    yield count


def two_runs(trials: Trials, times: int) -> Iterator[Count]:
    """Start a second run in a folder at a random moment of the first."""
    count = Count("two runs in one folder")
    for number, command, folder in trials.some(times):
        first = trials.start(command, folder)
        time.sleep(0.5 + trials.moment(command) / 2)
        second = trials.start(command, folder, "--resume").end()
        wrong = [] if second.code == 0 else one_sentence(second, 1, "Another run", str(folder))
        if number % 2:
            with suppress(ProcessLookupError):
                os.kill(first.pid, signal.SIGKILL)
            first.end()
            wrong += trials.resumed(command, folder)
        else:
            ended = first.end()
            if ended.code != 0:
                wrong.append(f"the first ended with {ended.code}: {ended.stderr}")
            if content(folder) != trials.whole[command]:
                wrong.append("other bytes")
        count.trial(wrong)
    yield count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="kills in all; fewer of the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="demo")
    parser.add_argument(
        "--only", nargs="*", help="changes kills passes interrupts loading pipes two disks"
    )
    arguments = parser.parse_args()
    for name in PRELOADED:  # once, for every fork
        importlib.import_module(name)
    for command in COMMANDS:
        view_of(command)
    start = time.monotonic()
    few = max(3, arguments.times // 5)
    with tempfile.TemporaryDirectory() as room:
        trials = Trials(arguments.model, arguments.seed, Path(room))
        many = arguments.times
        kinds = {
            "changes": every_change(trials),
            "kills": kills(trials, many),
            "passes": kills_in_passes(trials, few),
            "interrupts": interrupts(trials, few),
            "loading": loading(trials, many),
            "pipes": pipes(trials, few),
            "two": two_runs(trials, few),
            "disks": disks(trials, few),
        }
        print("| fault | tried | survived | lost |\n|---|---|---|---|")
        lost = 0
        for kind in arguments.only or kinds:
            for count in kinds[kind]:
                lost += len(count.losses)
                survived = count.tried - len(count.losses)
                print(f"| {count.name} | {count.tried} | {survived} | {len(count.losses)} |")
                print(*(f"<!-- {note} -->" for note in count.notes), sep="\n", flush=True)
    print(f"{(time.monotonic() - start) / 60:.1f} minutes")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
