"""Folders of results: made before a long run, and every file in them is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.core.disk import need_room
from headscope.core.errors import InputError
from headscope.core.files import clear_parts, locked, write_set
from headscope.show.style import FORMATS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def ready_folder(folder: Path | None, room: int = 0) -> Iterator[None]:
    """Make the folder before a long run starts, and delete it again if it stays empty.

    While the block runs the folder is locked, so that another run that names it is refused. A disk
    that has no ``room`` for so many bytes is refused too.
    """
    if folder is None:
        yield
        return
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _make(folder)
        need_room(folder, room, "what the run writes")
        with locked(folder) as is_ours:
            if not is_ours:
                raise InputError(
                    f"Another run of headscope is writing to the folder {folder}; wait until it "
                    "has ended, or choose another with -o."
                )
            clear_parts(folder)
            yield
    finally:
        for path in new_folders:
            with suppress(OSError):  # it is not empty, or gone
                path.rmdir()


def _make(folder: Path) -> None:
    """Make a folder, and those above it; refuse one that cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be made ({error.strerror}); choose another with -o."
        ) from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"The folder {folder} cannot be written to; choose another with -o.")


def names_of(*stems: str) -> tuple[str, ...]:
    """Return the names of every stem's files, table and figures: ``flow.csv``, ``flow.png``, ..."""
    names: list[str] = []
    for stem in stems:
        names += [f"{stem}.{kind}" for kind in ("csv", *FORMATS)]
    return tuple(names)


def folder_files(tables: Mapping[str, str], figures: Mapping[str, Figure]) -> dict[str, bytes]:
    """Return the content of ``NAME.csv`` for every table, and of the files of every figure."""
    from headscope.show.figures import figure_files

    files = {f"{name}.csv": text.encode("utf-8", "replace") for name, text in tables.items()}
    return files | figure_files(figures)


def write_files(
    folder: Path, files: Mapping[str, bytes], *, stale: Iterable[str] = (), mark: str | None = None
) -> None:
    """Write every file completely or not at all; none is replaced before all are written.

    Files of the ``stale`` names that are not among ``files`` are deleted: an earlier run left them.
    The file ``mark`` is written last: where it is, all the others are.
    """
    write_set(
        {folder / name: data for name, data in files.items()},
        gone=[folder / name for name in set(stale) - set(files)],
        mark=None if mark is None else folder / mark,
    )
