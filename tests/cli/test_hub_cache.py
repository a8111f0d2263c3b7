"""Hub ids: found in the local cache when offline, one sentence when nothing is to be had."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
START = "from headscope.cli.app import main; main()"
#: A port that nothing listens on: refused at once.
UNREACHABLE = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def cache(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache as huggingface_hub lays it out; returns the settings that point to it."""
    home = tmp_path_factory.mktemp("hf-home")
    repo = home / "hub" / "models--org--name"
    snapshot = repo / "snapshots" / COMMIT
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for i, file in enumerate(sorted(model.iterdir())):
        blob = repo / "blobs" / f"{i:040x}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", blob.name))
    bare = home / "hub" / "models--org--bare"
    (bare / "snapshots" / COMMIT).mkdir(parents=True)
    (bare / "refs").mkdir()
    (bare / "refs" / "main").write_text(COMMIT)
    (bare / "snapshots" / COMMIT / "config.json").write_bytes((model / "config.json").read_bytes())
    return {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub")}


def refused(outcome: Any, *words: str) -> None:
    assert (outcome.code, outcome.stdout) == (1, ""), outcome
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    for word in words:
        assert word in outcome.stderr


@pytest.mark.parametrize("settings", [{}, UNREACHABLE], ids=["offline", "unreachable"])
def test_a_cached_id_is_found(
    settings: dict[str, str], spawn: Run, cache: dict[str, str], tmp_path: Path
) -> None:
    began = time.monotonic()
    outcome = spawn(
        "-c", START, "validate", "org/name", "--format", "json", env={**cache, **settings}
    )
    assert outcome.code == 0, outcome
    assert outcome.stderr == ""
    result = json.loads(outcome.stdout)
    assert result["passed"] is True
    assert result["provenance"]["model"]["id"] == "org/name"
    assert result["provenance"]["model"]["revision"] == COMMIT
    assert time.monotonic() - began < 30


def test_a_cached_revision_is_found(spawn: Run, cache: dict[str, str]) -> None:
    arguments = ("validate", "org/name", "--revision", COMMIT, "--format", "csv")
    assert spawn("-c", START, *arguments, env=cache).code == 0


def test_an_id_that_is_not_cached_offline(spawn: Run, cache: dict[str, str]) -> None:
    outcome = spawn("-c", START, "validate", "org/other", env=cache)
    refused(outcome, "org/other", "not in the local cache", "hf download org/other")


def test_a_revision_that_is_not_cached(spawn: Run, cache: dict[str, str]) -> None:
    outcome = spawn("-c", START, "validate", "org/name", "--revision", "dev", env=cache)
    refused(outcome, "org/name", "dev")


def test_the_hub_is_unreachable(spawn: Run, cache: dict[str, str]) -> None:
    began = time.monotonic()
    outcome = spawn("-c", START, "validate", "org/other", env={**cache, **UNREACHABLE})
    refused(outcome, "org/other", "hub", "could not be reached")
    assert time.monotonic() - began < 20


def test_a_cached_id_without_weights(spawn: Run, cache: dict[str, str]) -> None:
    refused(spawn("-c", START, "validate", "org/bare", env=cache), "has no weights")
