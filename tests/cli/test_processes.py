"""Several processes of one run, and what a new interpreter imports, says and connects to."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from outcomes import Ended, refused
from processes import Accident, Cold, cold, launch, torchrun
from tiny_models import write_tiny

import headscope
from headscope.cli.process import calm_threads
from headscope.core.serialise import to_json
from headscope.data import corpus
from headscope.data.corpus import SAMPLE
from headscope.session import texts

ROOT = Path(__file__).parents[2]


def same(one: Any, other: Any, where: str = "") -> None:
    """Assert that two results are equal: floats to 1e-9, everything else exactly."""
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            if key not in ("created", "command"):  # when and how it was made
                same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{i}]")
    elif isinstance(one, float):
        assert isinstance(other, float), where
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9), (where, one, other)
    else:
        assert one == other, where


def alone(name: str, *words: Any, **options: Any) -> Any:
    """Return the result of one process, which is ours: forks that come later import nothing."""
    return json.loads(to_json(getattr(headscope, name)(*words, **options)))


def result_of(ended: list[Ended]) -> Any:
    """Return what the first process printed; all went well and the others were silent."""
    assert [(one.code, one.stderr) for one in ended] == [(0, "")] * len(ended), ended
    assert [one.stdout for one in ended[1:]] == [""] * (len(ended) - 1)
    return json.loads(ended[0].stdout)


def said(ended: list[Ended]) -> str:
    """Return the one sentence of a run that failed in every process."""
    assert all(one.code for one in ended), ended
    (words,) = (one.stderr for one in ended if one.stderr)
    assert not any(one.stdout for one in ended)
    assert words.startswith("headscope: ")
    assert len(words.strip().splitlines()) == 1, words
    return words


def test_the_documented_command_gives_what_one_process_gives(tmp_path):
    expected = alone("classify", "demo", limit=16)
    page = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    shown = re.search(r"^torchrun .*", page, re.MULTILINE)[0]
    _, *words = shlex.split(shown, comments=True)
    words[words.index("--limit") + 1] = "16"
    done = torchrun([*words, "--format", "json", "--verbose"], tmp_path)
    assert (done.code, done.stderr) == (0, "")
    same(expected, json.loads(done.stdout))
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"classify.json", "heads.csv"}
    assert not list((tmp_path / "out").glob(".*"))  # no state is left of either process


@pytest.mark.parametrize("kind", ["treebank", "pairs"])
def test_windows_are_dealt_out(kind, model, tmp_path, monkeypatch):
    """Windows of 8 rows, some of which are too long for the model."""
    for module in (corpus, texts):
        monkeypatch.setattr(module, "WINDOW", 8)
    path = SAMPLE
    if kind == "pairs":
        model = write_tiny(tmp_path / "bart", "bart")
        path = tmp_path / "pairs.tsv"
        rows = [sentence.text for sentence in corpus.sample_corpus()][:45]
        rows[20:40:7] = [" ".join(rows[:20])] * 3
        lines = (f"{row}\t{rows[i // 2]}" for i, row in enumerate(rows))
        path.write_text("source\ttarget\n" + "\n".join(lines), encoding="utf-8")
    opened = corpus.open_treebank(path) if kind == "treebank" else corpus.open_text(path)
    expected = alone("classify", model, opened, limit=45, validate=False)
    flags = ("--treebank" if kind == "treebank" else "--text", path, "--limit", "45")
    result = result_of(
        launch(3, "classify", model, *flags, "--no-validate", "--format", "json", "--verbose")
    )
    same(expected, result)
    assert result["corpus"]["skipped"] > 0


def test_prune(model, tmp_path):
    repairs = ("scale", "surgeon")
    methods = ("surgeon", "random")
    few = {"fractions": [0.5], "limit": 24, "calibration_limit": 40}
    other = {"save": tmp_path / "other"}
    expected = alone("prune", model, methods=methods, repairs=repairs, **few, **other)
    words = [f"--repair={name}" for name in repairs] + [f"--method={name}" for name in methods]
    words += ["--fraction=0.5", "--limit=24", "--calibration-limit=40"]
    saved = tmp_path / "saved"
    more = ("--format=json", "--save", saved)
    together = result_of(launch(2, "prune", model, *words, *more))
    assert together["saved"].pop("folder") == str(saved)
    expected["saved"].pop("folder")
    for saved_part in (together["saved"], expected["saved"]):
        saved_part.pop("code")  # it names the folder, as the card does, which is part of its size
        assert saved_part.pop("megabytes") > 0.1
    for result in (together, expected):
        assert result.pop("speed")["parameters_pruned"] > 0  # its times are another run's
    same(expected, together)
    headscope.load(saved)


def test_a_killed_process_ends_all_and_the_run_goes_on(model, tmp_path):
    """No launcher watches here: the others notice by themselves."""
    expected = alone("classify", model, limit=60, control=True, validate=False)
    words = ("--limit", "60", "--control", "--no-validate", "--format", "json", "--verbose")
    command = ("classify", model, *words, "-o", tmp_path / "out")
    accident = Accident(rank=1, batches=1, kind="killed")
    ended = launch(2, *command, accident=accident, env={"HEADSCOPE_PROCESS_TIMEOUT": "1"})
    assert ended[1].code == -9
    assert "Process 2 of 2 has given no sign of life" in said(ended)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".classify.state.safetensors",
        ".classify.state.2-of-2.safetensors",
    }
    result = result_of(launch(2, *command, "--resume"))
    assert not list((tmp_path / "out").glob(".*"))
    same(expected, result)


def test_a_spectrum_goes_on_in_another_number_of_processes(model, tmp_path):
    """It stops where one process does: when the intervals are narrow enough."""
    expected = alone("spectrum", model, length=16, precision=0.005, validate=False)
    words = ("-n", "16", "--precision", "0.005", "--no-validate", "--format", "json")
    command = ("spectrum", model, *words, "-o", tmp_path / "out")
    accident = Accident(rank=0, batches=2, kind="error")
    assert "on fire" in said(launch(2, *command, accident=accident))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".spectrum.state.safetensors"]
    found = result_of(launch(3, *command, "--resume"))
    assert found["sampling"]["reached"]
    assert 128 < found["sequences"] < found["sampling"]["windows"]
    same(expected, found)


def test_slips_are_said_once(model, run, monkeypatch):
    assert "limit is 0" in said(launch(2, "classify", model, "--limit", "0"))
    assert "no folder /nowhere" in said(launch(2, "prune", "/nowhere"))
    words = said(launch(2, "rank", model))
    assert "rank runs in one process, and a launcher started 2" in words
    ended = launch(2, "spectrum", model, "--lenght", "12")
    assert ended[0].stderr.startswith("Usage:")
    assert ended[1].stderr == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    refused(run("classify", model), "RANK and MASTER_ADDR and MASTER_PORT cannot be found")


COMMIT = "0123456789abcdef0123456789abcdef01234567"
CACHED = ("validate", "org/name", "--format", "json")


@pytest.fixture(scope="module")
def hub(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as huggingface_hub lays it out."""
    hub = tmp_path_factory.mktemp("hf-home") / "hub"
    for name, files in (("name", sorted(model.iterdir())), ("bare", [model / "config.json"])):
        repo = hub / f"models--org--{name}"
        snapshot = repo / "snapshots" / COMMIT
        for folder in (repo / "refs", repo / "blobs", snapshot):
            folder.mkdir(parents=True)
        (repo / "refs" / "main").write_text(COMMIT)
        for i, file in enumerate(files):
            blob = repo / "blobs" / f"{i:040x}"
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return hub


def found_in_the_cache(ended: Ended | Cold) -> None:
    assert (ended.code, ended.stderr) == (0, ""), ended
    result = json.loads(ended.stdout)
    assert result["passed"] is True
    assert result["provenance"]["model"]["id"] == "org/name"
    assert result["provenance"]["model"]["revision"] == COMMIT


def test_offline_a_hub_id_is_found_in_the_cache_or_is_one_sentence(run, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    found_in_the_cache(run(*CACHED, "--quiet", "--revision", COMMIT))
    refused(run("validate", "org/name", "--revision", "dev"), "org/name", "dev")
    said = ("org/other", "not in the local cache", "hf download org/other")
    refused(run("validate", "org/other"), *said)
    refused(run("validate", "org/bare"), "has no weights")


def test_a_new_interpreter_online_where_nothing_is_to_be_had(model, unknown, hub):
    """One start for all that depends on one: modules, threads, loggers, and connections.

    No command on a folder opens a socket; a hub id is found in the cache, or is one sentence.
    """
    first, failed, cached, other = cold(
        ("classify", model, "--limit", 5, "--format", "json"),
        ("validate", unknown, "--format", "csv"),
        CACHED,
        ("validate", "org/other"),
        env={
            **{"HF_HOME": str(hub.parent), "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "0"},
            "HF_ENDPOINT": "http://127.0.0.1:9",  # where nothing listens, which refuses at once
            **{"OMP_WAIT_POLICY": None, "OMP_DISPLAY_ENV": "verbose"},
        },
    )
    assert (first.code, first.sockets) == (0, []), first
    assert not {"matplotlib", "pandas", "tensorly", "sklearn"} & set(first.heavy)
    if sys.platform == "linux":  # torch brings GNU's runtime on Linux alone; it shows its settings
        assert re.search("GOMP_SPINCOUNT = '10000'", first.stderr)
    # No message of a library's logger but our own on the real stderr.
    assert (failed.code, failed.stderr.count("\n"), failed.sockets) == (3, 1, [])
    found_in_the_cache(cached)
    refused(Ended(other.code, other.stdout, other.stderr), "org/other", "could not be reached")
    assert other.sockets, "nothing that connects is seen"


@pytest.mark.parametrize("decided", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_a_user_who_decided_on_threads_is_obeyed(decided, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(decided, "user's")
    before = dict(os.environ)
    calm_threads()
    assert dict(os.environ) == before


#: An interrupt that Python drops, as it does where a library's ``__del__`` runs.
_DROPPED = """
import signal
import time
import headscope.cli.app

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us without

class Cleaned:
    def __del__(self):
        raise KeyboardInterrupt

def run():
    Cleaned()
    for _ in range(50):
        time.sleep(0.1)

headscope.cli.app.main = run
from headscope.__main__ import main
main()
"""


def test_an_interrupt_that_a_library_drops_still_ends_the_run():
    words = [sys.executable, "-c", _DROPPED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


#: A command that is stopped while it opens its model.
_STOPPED = """
import os
import signal
import sys
import threading
import headscope.session.opening

def load(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)

headscope.session.opening.load = load
sys.argv = ["headscope", "classify", "demo"]
from headscope.__main__ import main
main()
"""


def test_sigterm_ends_a_run_as_ctrl_c_does():
    words = [sys.executable, "-c", _STOPPED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "headscope: interrupted\n")
