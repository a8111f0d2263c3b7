"""The room on a disk: looked at before a long run, and named when a file could not be written.

Every library has its own words for a full disk, and some have none: they leave half a file, which
fails when it is opened. :func:`writing` turns all of it into one sentence.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headscope.core.errors import HeadscopeError, UnwrittenError

#: What the system says of a place that takes no more bytes, and what to do about it.
_FULL = ("the disk is full", "free some room there, or name a folder on another disk")
_LIMITED = (
    "the system allows no file of that size here",
    "raise the limit (ulimit -f), or name a folder on another disk",
)
_USED_UP = ("your share of the disk is used up", _FULL[1])
_READ_ONLY = ("it is on a disk that is read only", "name another folder")
_FORBIDDEN = ("it may not be written to", "give yourself the right to, or name another folder")
_CAUSES: dict[int, tuple[str, str]] = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _USED_UP,
    errno.EFBIG: _LIMITED,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EIO: ("the disk reports an error", "name a folder on another disk"),
}
#: What libraries say that do not hand on the system's error.
_WORDS = {
    "No space left on device": _FULL,
    # a stream of C++, whose file openvino deletes
    "iostream error": ("the system did not take all of it, as on a full disk", _FULL[1]),
}
_NO_ROOM = (_USED_UP, _LIMITED, *_WORDS.values())
#: The number of the system's error, as libraries in Rust write it: ``(os error 28)``.
_NUMBER = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
_PROBE = 1 << 18  # Bytes that are written to see whether a disk takes any more


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn whatever fails in the block for want of room, or of the right to write, into a sentence.

    ``place`` is the file or folder that is being written.

    Raises
    ------
    UnwrittenError
        If the disk is full or does not let us write; any other failure passes as it is.
    """
    room = free_room(place)
    try:
        yield
    except UnwrittenError:
        raise
    except Exception as error:  # safetensors, onnx, openvino and nncf raise many kinds
        cause = cause_of(error)
        if isinstance(error, HeadscopeError):
            cause = lack_of_room(error)  # else its own sentence is better, as of an unreadable file
        if cause is None and is_full(place):
            cause = _FULL
        if cause is None:
            raise
        why, remedy = cause
        if cause in _WORDS.values() and room is not None:
            why = f"{why} ({megabytes(room)} were free)"
        raise UnwrittenError(
            f"{place} could not be written: {why}. Nothing half-written was left there, and what "
            f"was there before is as it was; {remedy}."
        ) from error


def cause_of(error: BaseException) -> tuple[str, str] | None:
    """Return why the system did not write, if that is what an error, or its cause, speaks of.

    Returns the reason and the remedy; None for any other error.
    """
    seen: BaseException | None = error
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else None
        if number is None and (found := _NUMBER.search(str(seen))):
            number = int(found[1] or found[2])
        if number in _CAUSES:
            return _CAUSES[number]
        for words, cause in _WORDS.items():
            if words in str(seen):
                return cause
        seen = seen.__cause__ or seen.__context__
    return None


def lack_of_room(error: BaseException) -> tuple[str, str] | None:
    """Return the reason and the remedy if an error, or its cause, is want of room; None for others.

    A right that is missing does not count: a file that may not be read lacks it too.
    """
    cause = cause_of(error)
    return cause if cause in _NO_ROOM else None


def is_full(place: Path) -> bool:
    """Whether the disk of a place takes no more bytes, found by writing some and deleting them."""
    folder = _nearest_folder(place)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def free_room(place: Path) -> int | None:
    """Return how many bytes may still be written where a file or folder is to be, if known."""
    with suppress(OSError):
        return shutil.disk_usage(_nearest_folder(place)).free
    return None


def need_room(
    place: Path,
    n_bytes: float,
    what: str,
    *,
    largest_file: float | None = None,
    remedy: str = _FULL[1],
) -> None:
    """Refuse, before a long run, a place that may lack the room for what is to be written there.

    ``n_bytes`` is the most that it takes, and ``largest_file`` the most that one of its files
    takes, all of it by default. ``what`` names it in the message, such as "the pruned model", and
    ``remedy`` says what to do.

    Raises
    ------
    UnwrittenError
        If fewer bytes are free, or the system allows no file of that size.
    """
    name = f"{what[0].upper()}{what[1:]}"
    room = free_room(place)
    if room is not None and room < n_bytes:
        raise UnwrittenError(
            f"{name} may take {megabytes(n_bytes)}, and where {place} is to be, "
            f"{megabytes(room)} are free; {remedy}."
        )
    allowed = _largest_allowed()
    needed = n_bytes if largest_file is None else largest_file
    if allowed is not None and allowed < needed:
        raise UnwrittenError(
            f"{name} may have a file of {megabytes(needed)}, and the system allows files of at "
            f"most {megabytes(allowed)}; raise the limit (ulimit -f)."
        )


def on_one_disk(place: Path, other: Path) -> bool:
    """Whether two files or folders are, or are to be, on the same disk."""
    try:
        return _nearest_folder(place).stat().st_dev == _nearest_folder(other).stat().st_dev
    except OSError:
        return False


def megabytes(n_bytes: float) -> str:
    """Write a number of bytes in megabytes (1e6 bytes): ``45 MB``, ``0.3 MB``, ``0 MB``."""
    size = n_bytes / 1e6
    decimals = 1 if 0 < size < 10 else 0
    return f"{size:,.{decimals}f} MB"


def _largest_allowed() -> int | None:
    """Return how many bytes a file may have by the limit of this process; None without limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def _nearest_folder(place: Path) -> Path:
    """Return the folder that is there already and is to hold a file or folder."""
    for folder in (place, *place.absolute().parents):
        if folder.is_dir():
            return folder
    return Path()
