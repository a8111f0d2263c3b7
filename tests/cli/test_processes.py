"""Several processes that share a run give what one process gives, and end together."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import Accident, Ended, launch

import headscope
from headscope.results import to_json

ROOT = Path(__file__).parents[2]
#: What of a result says when and how it was made.
MADE = ("created", "command")


def same(one: Any, other: Any, where: str = "") -> None:
    """Assert that two results are equal: floats to 1e-9, everything else exactly."""
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            if key not in MADE:
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


def result_of(ended: list[Ended]) -> Any:
    """Return what the first process printed; all went well and the others were silent."""
    assert [one.code for one in ended] == [0] * len(ended), ended
    assert [one.stderr for one in ended] == [""] * len(ended)
    assert [one.stdout for one in ended[1:]] == [""] * (len(ended) - 1)
    return json.loads(ended[0].stdout)


def as_json(result: Any) -> Any:
    return json.loads(to_json(result))


def said(ended: list[Ended]) -> str:
    """Return the one sentence of a run that failed in every process."""
    assert all(one.code for one in ended), ended
    (words,) = (one.stderr for one in ended if one.stderr)
    assert not any(one.stdout for one in ended)
    assert words.startswith("headscope: ")
    assert len(words.strip().splitlines()) == 1, words
    return words


def test_the_documented_command_gives_what_one_process_gives(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    command = shlex.split(re.search(r"^torchrun .*", page, re.MULTILINE)[0], comments=True)
    done = subprocess.run(
        [*command, "--format", "json"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    limit = int(command[command.index("--limit") + 1])
    same(as_json(headscope.classify("demo", limit=limit)), json.loads(done.stdout))
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"classify.json", "heads.csv"}
    assert not list((tmp_path / "out").glob(".*"))  # no state is left of either process


def test_a_process_without_work_takes_part(model: Path, tmp_path: Path) -> None:
    """Eight sentences are one batch or two, for three processes."""
    words = ("--limit", "8", "--ablate", "--ablate-limit", "8", "--prefix-matching")
    found = result_of(launch(tmp_path, 3, "classify", model, *words, "--format", "json"))
    options = {"ablate": True, "ablate_limit": 8, "prefix_matching": True}
    same(as_json(headscope.classify(model, limit=8, **options)), found)


def test_prune(model: Path, tmp_path: Path) -> None:
    repairs, methods = ("mean", "refit"), ("fisher-joint", "random")
    words = [f"--repair={name}" for name in repairs] + [f"--method={name}" for name in methods]
    words += [
        "--fraction=0.5",
        "--limit=24",
        "--calibration-limit=40",
        "--no-roles",
        "--no-ablation",
    ]
    saved = tmp_path / "saved"
    ended = launch(tmp_path, 2, "prune", model, *words, "--save", saved, "--format=json")
    one = headscope.prune(
        model,
        methods=methods,
        repairs=repairs,
        fractions=[0.5],
        limit=24,
        calibration_limit=40,
        roles=False,
        ablation=False,
        save=tmp_path / "other",
    )
    found, alone = result_of(ended), as_json(one)
    assert found["saved"][0].pop("folder") == str(saved)
    alone["saved"][0].pop("folder")
    same(alone, found)
    headscope.load(saved)


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_killed_process_ends_all_and_the_run_goes_on(model: Path, tmp_path: Path) -> None:
    """No launcher watches here: the others notice by themselves."""
    words = ("--limit", "120", "--control", "--no-validate", "--format", "json")
    command = ("classify", model, *words, "-o", tmp_path / "out")
    accident = Accident(rank=1, batches=1, kind="killed")
    patience = {"HEADSCOPE_PROCESS_TIMEOUT": "3"}
    ended = launch(tmp_path, 2, *command, accident=accident, env=patience)
    assert ended[1].code == -9
    assert "Process 2 of 2 has given no sign of life" in said(ended)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".classify.state.safetensors",
        ".classify.state.2-of-2.safetensors",
    }
    found = result_of(launch(tmp_path, 2, *command, "--resume"))
    assert not list((tmp_path / "out").glob(".*"))
    same(as_json(headscope.classify(model, limit=120, control=True, validate=False)), found)


def test_a_spectrum_goes_on_in_another_number_of_processes(model: Path, tmp_path: Path) -> None:
    """It stops where one process does: when the intervals are narrow enough."""
    words = ("-n", "16", "--precision", "0.005", "--no-validate", "--format", "json")
    command = ("spectrum", model, *words, "-o", tmp_path / "out")
    accident = Accident(rank=0, batches=2, kind="error")
    assert "on fire" in said(launch(tmp_path, 2, *command, accident=accident))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".spectrum.state.safetensors"]
    found = result_of(launch(tmp_path, 3, *command, "--resume"))
    assert found["sampling"]["reached"]
    assert 128 < found["sequences"] < found["sampling"]["windows"]
    same(as_json(headscope.spectrum(model, length=16, precision=0.005, validate=False)), found)


def test_a_slip_is_said_once(model: Path, tmp_path: Path) -> None:
    assert "The limit is 0" in said(launch(tmp_path, 2, "classify", model, "--limit", "0"))
    assert "no folder /nowhere" in said(launch(tmp_path, 2, "prune", "/nowhere"))
    ended = launch(tmp_path, 2, "spectrum", model, "--lenght", "12")
    assert ended[0].stderr.startswith("Usage:")
    assert ended[1].stderr == ""


def test_other_commands_are_refused(model: Path, tmp_path: Path) -> None:
    words = said(launch(tmp_path, 2, "rank", model))
    assert "rank runs in one process, and a launcher started 2" in words


def test_a_launcher_that_says_too_little(
    model: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    outcome = run("classify", model)
    assert outcome.code == 1
    assert "RANK and MASTER_ADDR and MASTER_PORT cannot be found" in outcome.stderr
