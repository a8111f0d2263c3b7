"""Runs that are killed, find no room, or meet each other; more in tests/bench/faults.py."""

import errno
import os
from pathlib import Path

import pytest
from outcomes import refused
from processes import Run, die_before

from headscope.core.errors import UnwrittenError
from headscope.core.files import before_of, clear_parts, replace_folder, write_set
from headscope.show.folders import ready_folder

OLD = {"result.json": b"old", "a.csv": b"old a", "gone.csv": b"old b"}
NEW = {"result.json": b"new", "a.csv": b"new a", "b.csv": b"new b"}


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def rewrite(folder: Path) -> int:
    """Put the new set in the place of the old one, as a run does."""
    with ready_folder(folder):
        files = {folder / name: data for name, data in NEW.items()}
        write_set(files, gone=[folder / "gone.csv"], mark=folder / "result.json")
    return 0


def refill(folder: Path) -> int:
    with replace_folder(folder) as new_folder:
        for name, data in NEW.items():
            (new_folder / name).write_bytes(data)
    return 0


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shown(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in everything(folder).items() if name[0] != "."}


def test_killed_before_every_change_of_a_file(tmp_path):
    for number in range(1, 99):
        folder = tmp_path / str(number)
        put(folder, OLD)
        ended = Run(before=die_before(folder, number), body=lambda f=folder: rewrite(f)).end()
        if ended.code == 0:
            break
        shown_files = shown(folder)
        assert shown_files in (OLD, NEW) or "result.json" not in shown_files
        old = folder / "result.json"
        assert (old if old.exists() else before_of(old)).read_bytes() in (b"old", b"new")
        assert rewrite(folder) == 0
        assert everything(folder) == NEW
    assert number > 9


@pytest.mark.parametrize("used", [False, True])
def test_a_folder_replaced_by_a_process_that_is_killed(used, tmp_path):
    for number in range(1, 99):
        folder = tmp_path / str(number) / "model [x]"
        folder.parent.mkdir()
        if used:
            put(folder, OLD)
        dying = die_before(folder.parent, number)
        if Run(before=dying, body=lambda f=folder: refill(f)).end().code == 0:
            break
        if folder.exists():
            assert shown(folder) in (OLD, NEW)
        elif used:  # it is still there, under the name that it was set aside by
            assert OLD in [shown(path) for path in folder.parent.iterdir()]
        assert refill(folder) == 0
        assert refill(folder) == 0  # the second time, what was left beside is no longer needed
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
        assert shown(folder) == NEW
    assert number > 4


def test_a_full_disk_leaves_the_old_set(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    put(folder, OLD)
    calls: list[int] = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwrittenError, match="out could not be written: the disk is full"):
        rewrite(folder)
    assert everything(folder) == OLD
    assert rewrite(folder) == 0


def test_a_folder_belongs_to_one_run(run, model, tmp_path):
    folder = tmp_path / "out"
    call = ("rank", model, "--no-fresh", "--quiet", "-o", folder)
    with ready_folder(folder):
        refused(run(*call), "Another run of headscope is writing", str(folder))
    assert run(*call).code == 0
    clear_parts(folder)
    assert "rank.json" in shown(folder)
