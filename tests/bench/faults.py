"""What survives when runs are killed, interrupted, or find no room? Counts tried, survived, lost.

Run from the repository: ``python tests/bench/faults.py [--times 50] [--seed 0] [--only KIND ...]``.
Exits with 1 if anything was lost. As root it also fills a real disk and makes one read-only.

A trial survives if, after the fault and one run with ``--resume``, the folder holds the same bytes
as that of a run that was left alone (but for ``created``), nothing else is in it, and at no time
between did it look whole without being so. Where runs are killed or interrupted at random, every
second folder holds the results of another run before.
"""

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
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # for processes.py

from processes import Run, content, die_before, small_disk
from timing import options

from headscope.core.errors import InputError
from headscope.core.files import write_atomically
from headscope.reports.files import state_name
from headscope.reports.reading import read_results
from headscope.show.folders import ready_folder, write_files
from headscope.show.view import view_of

COMMANDS = {
    "classify": ("--limit", "60", "--control"),
    "spectrum": ("--sequences", "24"),
}
#: Another run of the same command, whose results may lie in the folder before.
OTHER = {
    "classify": ("--limit", "20"),
    "spectrum": ("--sequences", "4"),
}
PRELOADED = ("matplotlib.pyplot", "headscope.cli.app", "headscope.models.load.loading")
PRELOADED += ("headscope.analyses.classify.run", "headscope.analyses.spectrum.run")


class Count:
    """What became of the trials of one kind."""

    def __init__(self, name):
        self.name = name
        self.tried = 0
        self.lost = 0
        self.notes = []

    @contextmanager
    def trial(self):
        """Count what the block does; it is lost if an assertion fails."""
        self.tried += 1
        try:
            yield
        except AssertionError as wrong:
            self.lost += 1
            print(f"LOST: {self.name}: {wrong}", flush=True)


class Trials:
    """Folders of runs that were left alone, and trials beside them."""

    def __init__(self, model, seed, scratch):
        self.model = model
        self.scratch = scratch
        self.random = random.Random(seed)
        self.whole_runs = {}
        self.seconds = {}
        self._number = 0
        for command in COMMANDS:  # without a fault, twice: the bytes must be the same
            for name in ("whole", "again"):
                folder = scratch / f"{command}-{name}"
                ended = self.start(command, folder).end()
                assert ended.code == 0, ended.stderr
                self.seconds[command] = ended.seconds
                self.whole_runs.setdefault(command, content(folder))
                self.is_whole(command, folder)
            words = (command, model, *OTHER[command], "-o", scratch / f"{command}-other")
            assert Run(*words).end().code == 0

    def start(self, command, folder, *more, **how):
        """Start a run in a folder."""
        return Run(command, self.model, *COMMANDS[command], "-o", folder, *more, **how)

    def folder(self, command, used):
        """Return a new folder, which holds results of another run if ``used``."""
        self._number += 1
        folder = self.scratch / f"trial-{self._number}"
        if used:
            shutil.copytree(self.scratch / f"{command}-other", folder)
        return folder

    def some(self, times, *, used=False):
        """Yield (number, command, folder) of trials, the commands in turn."""
        for number, command in zip(range(times), itertools.cycle(COMMANDS), strict=False):
            yield number, command, self.folder(command, used=used and number % 2 == 1)

    def moment(self, command):
        return self.random.uniform(0.0, self.seconds[command])

    def is_whole(self, command, folder):
        """Hold a folder against that of the run that was left alone."""
        files = content(folder) if folder.exists() else {}
        whole_run = self.whole_runs[command]
        differing = sorted(n for n in {*files, *whole_run} if files.get(n) != whole_run.get(n))
        assert not differing, f"other bytes in {differing}"

    def is_no_mixture(self, command, folder, *more):
        """Look into a folder that a fault has left; the other run may have left ``more`` files."""
        if not folder.exists():
            return
        try:
            read_results(folder)
        except InputError:
            return
        files = {name: data for name, data in content(folder).items() if not name.startswith(".")}
        other = content(self.scratch / f"{command}-other")
        before = {**other, **dict.fromkeys(more, b"of another run")}
        assert files in (self.whole_runs[command], before), "a mixture was taken for whole"

    def survived(self, command, folder):
        """Look into a folder after a fault, and after the run was resumed."""
        self.is_no_mixture(command, folder)
        ended = self.start(command, folder, "--resume").end()
        assert ended.code == 0, f"resuming ended with {ended.code}: {ended.stderr[-300:]}"
        self.is_whole(command, folder)
        shutil.rmtree(folder)


def kill(run):
    with suppress(ProcessLookupError):
        os.kill(run.pid, signal.SIGKILL)
    return run.end()


def one_sentence(ended, code, *words):
    """Look at the end of a run that could not go on."""
    assert ended.code == code, f"exit {ended.code}, not {code}"
    said = ended.stderr
    assert said.count("\n") == 1, f"not one sentence: {said[-300:]!r}"
    assert all(word in said for word in ("headscope: ", *words)), f"no {words} in {said!r}"


def kills(trials, times):
    for index, command in enumerate(COMMANDS):
        count = Count(f"kill -9 at a random moment of {command}")
        n_whole = 0
        late = 0
        for number in range(times // len(COMMANDS) + (index < times % len(COMMANDS))):
            folder = trials.folder(command, used=number % 2 == 1)
            run = trials.start(command, folder, "--resume")
            run.kill_after(trials.moment(command))
            late += run.end().code == 0
            n_whole += (folder / state_name(command)).exists()
            with count.trial():
                trials.survived(command, folder)
        count.notes.append(f"{n_whole} had saved a state, {late} had ended before")
        count.notes.append(f"a run alone takes {trials.seconds[command]:.1f} s")
        yield count


def kills_in_passes(trials, times):
    """Kill soon after a state was saved, and the run that goes on from it, too."""
    count = Count("kill -9 twice in a pass, with a state to go on from")
    tried = 0
    for _, command, folder in trials.some(times):
        state = folder / state_name(command)
        for _ in range(2):
            run = trials.start(command, folder, "--resume", state_seconds=0.0)
            before = state.stat().st_mtime_ns if state.exists() else 0
            while run.alive() and (not state.exists() or state.stat().st_mtime_ns == before):
                time.sleep(0.001)
            time.sleep(trials.random.uniform(0.0, 0.3))
            tried += kill(run).code != 0 and state.exists()
        with count.trial():
            trials.survived(command, folder)
    count.notes.append(f"{tried} of the {2 * times} kills left a state")
    yield count


def every_change(trials, _):
    """Kill a run before every change of a file while it writes its folder, over another's results.

    The run is one whose result is known already: it makes the folder ready, saves its state, and
    writes.
    """
    command = "classify"
    count = Count("kill -9 before each single change of a file in the folder")
    files = {
        n: (trials.scratch / "classify-whole" / n).read_bytes() for n in trials.whole_runs[command]
    }
    state = state_name(command)

    def write(folder):
        with ready_folder(folder):
            write_atomically(folder / state, b"sums")
            write_files(folder, files, stale=("gone.csv",), mark="classify.json")
            (folder / state).unlink()
        return 0

    for number in itertools.count(1):
        folder = trials.folder(command, used=True)
        (folder / "gone.csv").write_text("of another run")
        body = functools.partial(write, folder)
        if Run(before=die_before(folder, number), body=body).end().code == 0:
            break
        with count.trial():
            trials.is_no_mixture(command, folder, "gone.csv")
            assert Run(body=body).end().code == 0, "the next run failed"
            trials.is_whole(command, folder)
    yield count


def interrupts(trials, times):
    count = Count("Ctrl-C at a random moment")
    for _, command, folder in trials.some(times, used=True):
        run = trials.start(command, folder, "--resume")
        run.kill_after(trials.moment(command), signal.SIGINT)
        ended = run.end()
        with count.trial():
            if ended.code != 0:
                one_sentence(ended, 130, "interrupted")
            trials.survived(command, folder)
    yield count


def loading(trials, times):
    count = Count("Ctrl-C while the program loads")
    for _ in range(times):
        words = [sys.executable, "-m", "headscope", "classify", trials.model, "--limit", "5"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(trials.random.uniform(0.1, 2.0))
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1].decode()
        with count.trial():
            assert process.returncode in (0, 130, -signal.SIGINT), process.returncode
            assert said in ("", "headscope: interrupted\n"), said[-300:]
    yield count


def disks(trials, times):
    """Fill a disk at random sizes; take the right to write away."""
    full = Count("disk full")
    disk = trials.scratch / "disk"
    for _, command, _ in trials.some(times):
        needed = sum(map(len, trials.whole_runs[command].values())) // 1024
        with small_disk(disk, trials.random.randint(8, max(9, needed))), full.trial():
            ended = trials.start(command, disk / "out").end()
            if ended.code != 0:
                one_sentence(ended, 1, "No space left")
            trials.is_no_mixture(command, disk / "out")
            os.system(f"mount -o remount,size=64m '{disk}'")
            trials.survived(command, disk / "out")
    yield full
    closed = Count("read-only disk, or folder of another user")
    for command in COMMANDS:
        with small_disk(disk, 4096), closed.trial():
            os.system(f"mount -o remount,ro '{disk}'")
            one_sentence(trials.start(command, disk / "out").end(), 1, str(disk / "out"), "-o")
        with tempfile.TemporaryDirectory(dir="/tmp") as own_folder, closed.trial():
            os.chmod(own_folder, 0o755)
            as_nobody = functools.partial(os.setuid, 65534)
            one_sentence(
                trials.start(command, own_folder, before=as_nobody).end(), 1, own_folder, "-o"
            )
    yield closed


def pipes(trials, times):
    """Go away while a run prints, with its folder to be written too."""
    count = Count("stdout's reader goes away")
    for _, command, folder in trials.some(times):
        form = trials.random.choice(("human", "json", "csv"))
        reading, writing = os.pipe()
        alone = functools.partial(os.close, reading)  # or the run would be a reader of itself
        run = trials.start(command, folder, "--format", form, stdout=writing, before=alone)
        os.close(writing)
        n_bytes = trials.random.choice((0, 1, 100, 5000))
        while n_bytes > 0 and (data := os.read(reading, n_bytes)):
            n_bytes -= len(data)
        os.close(reading)
        ended = run.end()
        with count.trial():
            assert ended.code in (0, 141), f"exit {ended.code}"
            assert not ended.stderr, f"said {ended.stderr[-300:]!r}"
            trials.is_whole(command, folder)
    yield count


def two_runs(trials, times):
    """Start a second run in a folder at a random moment of the first, which is killed or not."""
    count = Count("two runs in one folder")
    for number, command, folder in trials.some(times):
        first = trials.start(command, folder)
        time.sleep(0.5 + trials.moment(command) / 2)
        second = trials.start(command, folder, "--resume").end()
        ended = kill(first) if number % 2 else first.end()
        with count.trial():
            if second.code != 0:
                one_sentence(second, 1, "Another run", str(folder))
            if number % 2:
                trials.survived(command, folder)
            else:
                assert ended.code == 0, f"the first ended with {ended.code}: {ended.stderr}"
                trials.is_whole(command, folder)
    yield count


KINDS = {"changes": every_change, "kills": kills, "passes": kills_in_passes}
KINDS |= {"interrupts": interrupts, "loading": loading, "pipes": pipes, "two": two_runs}
KINDS |= {"disks": disks}


def main():
    settings = options(__doc__, times=50, seed=0, model="demo", only=list(KINDS))
    for name in PRELOADED:  # once, for every fork
        importlib.import_module(name)
    for command in COMMANDS:
        view_of(command)
    start = time.monotonic()
    lost = 0
    few = max(3, settings.times // 5)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(settings.model, settings.seed, Path(folder))
        print("| fault | tried | survived | lost |\n|---|---|---|---|")
        for kind in settings.only:
            times = settings.times if kind in ("kills", "loading") else few
            for count in KINDS[kind](trials, times):
                lost += count.lost
                survived = count.tried - count.lost
                print(f"| {count.name} | {count.tried} | {survived} | {count.lost} |")
                print(*(f"<!-- {note} -->" for note in count.notes), sep="\n", flush=True)
    print(f"{(time.monotonic() - start) / 60:.1f} minutes")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
