"""Runs of the program in forks of one warm process, several cases side by side."""

import gc
import hashlib
import importlib.metadata
import json
import os
import pkgutil
import re
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from golden.cases import Case
from golden.figures import instead_of_pictures
from golden.inputs import write_inputs
from golden.read import read

_REPOSITORY = Path(__file__).parents[2]
#: A case that takes longer is killed.
_MOST_SECONDS = 1800


def warm_up() -> None:
    """Import all that commands import, so that forks have it."""
    import headscope

    for module in pkgutil.walk_packages(headscope.__path__, "headscope."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    import onnxruntime  # noqa: F401
    import torch
    import wordfreq

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    wordfreq.word_frequency("the", "en")  # its table takes a second to load
    instead_of_pictures()
    gc.collect()
    gc.freeze()  # forks then share its pages


def run_all(cases: Sequence[Case], jobs: int, shared: Path) -> Iterator[tuple[Case, Any, float]]:
    """Yield each case with what it left behind and its CPU seconds, as they end."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name).resolve()
        if _join(_fork(lambda: write_inputs(folder / "inputs", shared))):
            raise SystemExit("the inputs of the cases could not be written")
        hashes = _names_of_hashes(folder / "inputs")
        waiting = [*cases]
        running: dict[int, Case] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop(0)
                running[_fork(_recorder(case, folder, hashes))] = case
            pid, status, used = os.wait3(0)
            case = running.pop(pid)
            result_file = folder / f"{_file_name(case)}.json"
            result: Any = f"died with {status}"
            if status == 0:
                result = json.loads(result_file.read_text())
                result_file.unlink()
            yield case, result, used.ru_utime + used.ru_stime


def _recorder(case: Case, folder: Path, hashes: dict[str, str]) -> Callable[[], None]:
    def record() -> None:
        signal.alarm(_MOST_SECONDS)
        desk = folder / _file_name(case)
        desk.mkdir()
        for path in (folder / "inputs").iterdir():
            (desk / path.name).symlink_to(path)
        os.chdir(desk)
        places = {str(desk): "<desk>", str(folder): "<room>", str(_REPOSITORY): "<repository>"}
        places[str(Path(os.environ["HEADSCOPE_SHARED"]).resolve())] = "<shared>"
        places |= hashes
        before = _digests(desk)
        steps = []
        for line in case.steps:
            step = _step(shlex.split(line), places)
            now = _digests(desk)
            changed = [name for name in now if before.get(name) != now[name]]
            files = {n: read(n, (desk / n).read_bytes(), places) for n in changed}
            for name in changed:  # each figure is written twice
                if name.endswith(".svg") and files.get(f"{name[:-4]}.png") == files[name]:
                    files[name] = "as the PNG"
            step["files"] = files
            step["removed"] = [name for name in before if name not in now]
            steps.append({"command": line, **step})
            before = now
        os.chdir(folder)
        shutil.rmtree(desk)
        (folder / f"{_file_name(case)}.json").write_text(json.dumps(steps))

    return record


def _file_name(case: Case) -> str:
    return case.id.replace("/", "-")


def _digests(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, links aside."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def _names_of_hashes(folder: Path) -> dict[str, str]:
    """Return what to write for the SHA-256 of each input, whole or its first digits."""
    paths = []
    for path in sorted(folder.iterdir()):
        paths += [path, *sorted(path.glob("*"))]
    names = {}
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                hash = hashlib.file_digest(file, "sha256").hexdigest()
            names.setdefault(hash, f"<SHA-256 of {path.relative_to(folder)}>")
    return names | {hash[:12]: name for hash, name in names.items()}


def _step(words: list[str], places: dict[str, str]) -> dict[str, Any]:
    """Run the program, or one of the few things that are done to its files."""
    if words[:1] == ["cut"]:
        data = Path(words[1]).read_bytes()
        Path(words[1]).write_bytes(data[: len(data) // 2])
        return {}
    if words[:1] == ["replace"]:
        text = Path(words[1]).read_text()
        Path(words[1]).write_text(text.replace(words[2], words[3]))
        return {}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _join(_fork(lambda: _program(words), out.fileno(), err.fileno()))
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    form = re.search(r"--format (json|csv|html)", " ".join(words))
    printed = f"stdout.{form[1]}" if form and texts[0].strip() else "stdout.txt"
    return {
        "exit": code,
        "stdout": read(printed, texts[0], places),
        "stderr": read("stderr.txt", texts[1], places),
    }


def _program(words: list[str]) -> None:
    """Run what the console script of the package runs."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="headscope")
    sys.argv = ["headscope", *words]
    sys.modules["__main__"].__package__ = None  # usage errors name the program after it
    sys.stdout = os.fdopen(os.dup(1), "w")
    sys.stderr = os.fdopen(os.dup(2), "w")
    entry.load()()


def _fork(body: Callable[[], None], out: int | None = None, err: int | None = None) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks of processes with threads
        pid = os.fork()
    if pid:
        return pid
    code: Any = 99
    try:
        for number, target in ((out, 1), (err, 2)):
            if number is not None:
                os.dup2(number, target)
        code = 0
        body()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        code = 99
        os.write(2, traceback.format_exc().encode())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _join(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
