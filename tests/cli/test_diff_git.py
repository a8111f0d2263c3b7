"""``headscope diff --git``: two revisions of one report, on the command line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import write

from headscope.results import to_dict
from headscope.results.validate import ValidationResult

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same certificate in two commits, then one that failed in the working tree's branch."""
    top = tmp_path_factory.mktemp("repository")
    (top / "out").mkdir()
    git(top, "init", "-q", "-b", "main")
    for name, reasons in (("one", ()), ("two", ()), ("three", ("layer 0 differs",))):
        found = ValidationResult(not reasons, (), 0.0, 0.0, {}, reasons)
        write(top / "out" / "validate.json", to_dict(found))
        (top / "note.txt").write_text(name)
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", name)
        git(top, "tag", name)
    return top


def git(folder: Path, *words: str) -> None:
    told = {f"GIT_{who}_{it}": "t@t" for who in ("AUTHOR", "COMMITTER") for it in ("NAME", "EMAIL")}
    told |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *words], cwd=folder, check=True, env=os.environ | told)


def test_revisions_are_compared_as_folders_are(repository: Path, run: Run) -> None:
    out = repository / "out"
    equal = run("diff", "--git", "one", "two", out, "--fail-on", "any")
    assert (equal.code, equal.stdout, equal.stderr) == (0, "", "")
    other = run("diff", out, "--git", "two", "HEAD", "--fail-on", "validation", "--format", "md")
    assert other.code == 3
    assert f"{out}" in other.stdout.splitlines()[2]
    assert "two:" in other.stdout.splitlines()[2]
    assert "validation FAILED" in other.stderr
    back = run("diff", "--git", "HEAD", "two", out / "validate.json", "--fail-on", "validation")
    assert (back.code, back.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("diff", "out"), 2, "--git REV1 REV2"),
        (("diff", "--git", "one", "two", "out", "out"), 2, "--git compares one PATH with itself"),
        (("diff", "--git", "one", "two"), 2, "Missing argument 'OLD'"),
        (("diff", "--git", "--output=evil", "two", "out"), 1, "git knows no revision"),
        (("diff", "--git", "one", "nowhere", "out"), 1, "git knows no revision 'nowhere'"),
        (("diff", "--git", "one", "two", "gone"), 1, "There is no gone in revision one."),
        (("diff", "--git", "one", "two", "note.txt"), 1, "one:note.txt is not whole JSON"),
    ],
)
def test_what_cannot_be_compared(
    words: tuple[str, ...],
    code: int,
    said: str,
    repository: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository)
    outcome = run(*words)
    assert (outcome.code, outcome.stdout) == (code, "")
    # The box that usage errors stand in breaks lines.
    assert said in " ".join(outcome.stderr.replace("│", " ").split())
    assert not (repository / "evil").exists()
