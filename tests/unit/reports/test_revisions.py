"""Results read out of git's revisions, held against what was committed there."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headscope.core.errors import InputError
from headscope.core.revisions import in_revision
from headscope.core.serialise import to_dict
from headscope.models.validation import ValidationResult
from headscope.reports.reading import read_results


def certificate(tokens: int) -> Any:
    return to_dict(ValidationResult(True, (), 0.0, 0.0, {}, tokens=tokens))


def git(folder: Path, *words: str) -> None:
    people = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    env = os.environ | dict.fromkeys(people, "t@t") | alone
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, env=env)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits, the second tagged; in between the folder of the report got a new value."""
    top = tmp_path_factory.mktemp("repository")
    report = top / "reports" / "with space: ä" / "report.json"
    report.parent.mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    for tokens in (1, 2):
        report.write_text(json.dumps({"schema": 2, "validate": certificate(tokens)}))
        (top / "validate.json").write_text(json.dumps(certificate(10 * tokens)))
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        (top / "large.json").write_text(pointer)
        git(top, "add", "-A")
        git(top, "commit", "-q", "-m", f"{tokens} tokens")
    git(top, "tag", "v2")
    return top


def tokens_in(revision: str, path: Path) -> int:
    found = read_results(in_revision(revision, path)).validate
    assert found is not None
    return found.tokens


def test_a_file_and_its_folder_are_as_they_were(repository):
    folder = repository / "reports" / "with space: ä"
    for revision, expected in (("HEAD~1", 1), ("main", 2), ("v2", 2)):
        assert tokens_in(revision, folder / "report.json") == expected
        assert tokens_in(revision, folder) == expected
        assert tokens_in(revision, folder / ".." / folder.name) == expected
        assert tokens_in(revision, repository) == 10 * expected


def test_the_place_need_not_be_there_any_more(repository, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    shutil.rmtree(copy / "reports")
    monkeypatch.chdir(copy)
    path = Path("reports/with space: ä/report.json")
    assert tokens_in("HEAD", path) == 2
    assert read_results(in_revision("HEAD~1", path)).name == f"HEAD~1:{path}"
    assert not (copy / "reports").exists()


def test_what_is_no_revision_is_refused(repository, tmp_path, monkeypatch):
    before = sorted(repository.rglob("*"))
    monkeypatch.chdir(repository)
    wrong = ["nowhere", "", "--output=evil", "-x", "HEAD..main", "^HEAD", "HEAD:validate.json"]
    for revision in (*wrong, "a\nb"):
        with pytest.raises(InputError, match="git knows no revision '") as refused:
            in_revision(revision, Path("validate.json"))
        assert "\n" not in str(refused.value)
    assert sorted(repository.rglob("*")) == before
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="git is not installed"):
        in_revision("HEAD", repository / "validate.json")


def test_what_cannot_be_read_is_said(repository, tmp_path):
    with pytest.raises(InputError, match=r"There is no .*nothing\.json in revision HEAD\."):
        in_revision("HEAD", repository / "nothing.json")
    with pytest.raises(InputError, match=r"HEAD:.*large\.json is kept by Git LFS"):
        read_results(in_revision("HEAD", repository / "large.json"))
    with pytest.raises(InputError, match="holds no results; looked for report"):
        read_results(in_revision("HEAD", repository / "reports"))
    with pytest.raises(InputError, match="lies in no git repository"):
        in_revision("HEAD", tmp_path / "report.json")


def test_no_program_of_the_repository_is_run(repository, tmp_path):
    """Filters, hooks and a pager that its configuration names stay untouched."""
    copy = Path(shutil.copytree(repository, tmp_path / "copy"))
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'sprung'}\ncat\n")
    trap.chmod(0o755)
    (copy / ".gitattributes").write_text("*.json diff=trap filter=trap\n")
    names = ("diff.trap.textconv", "filter.trap.smudge", "filter.trap.clean", "core.pager")
    for name in (*names, "core.fsmonitor", "diff.external"):
        git(copy, "config", name, str(trap))
    assert tokens_in("HEAD", copy / "validate.json") == 20
    assert not (tmp_path / "sprung").exists()
