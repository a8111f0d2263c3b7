"""Writing files and folders so that nobody ever sees half of them, and their SHA-256."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from headscope.core.disk import writing

#: Suffix of a file or folder that is being written, or was left half-written by a killed process.
UNFINISHED = ".headscope-part"
#: Files that hold no text: their first bytes, what they are, and what to do with them.
_NO_TEXT = (
    (b"\x1f\x8b", "compressed (gzip)", "unpack it first (gunzip)"),
    (b"BZh9", "compressed (bzip2)", "unpack it first (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed (xz)", "unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "unpack it first (unzstd)"),
    (b"PK\x03\x04", "a spreadsheet or a zip archive", "save the sheet as CSV, or unpack it"),
    (b"\xd0\xcf\x11\xe0", "a document of an office program", "save it as CSV or plain text"),
    (b"PAR1\x15", "a Parquet table", "save its rows as JSON lines (.jsonl)"),
    (b"ARROW1\x00", "an Arrow table", "save its rows as JSON lines (.jsonl)"),
    (b"%PDF-", "a PDF", "save its text"),
    (b"SQLite format 3\x00", "a database", "save the table as CSV"),
)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    write_set({path: data})


def write_set(
    files: Mapping[Path, bytes], *, gone: Iterable[Path] = (), mark: Path | None = None
) -> None:
    """Write several files; no file of an earlier set is touched before all are on the disk.

    ``gone`` are files of the earlier set, to delete. ``mark`` is the one of the files that readers
    look for: the old one is moved aside first and the new one written last, so that where it is,
    the set is complete.

    Raises
    ------
    UnwrittenError
        If the disk is full, read only, or may not be written to.
    """
    temporary: dict[Path, Path] = {}  # By the path that the file gets in the end
    try:
        # Write everything beside its place.
        with writing(_place_of(files)):
            for path, data in files.items():
                temporary[path] = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
                _write_to_disk(temporary[path], data, path)

        # Take the earlier set away, and put the new one in its place.
        if mark is not None and mark.exists():
            mark.replace(before_of(mark))
        for path in gone:
            path.unlink(missing_ok=True)
        for path in temporary:
            if path != mark:
                temporary[path].replace(path)
        if mark is not None:
            if mark in temporary:
                temporary[mark].replace(mark)
            before_of(mark).unlink(missing_ok=True)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _place_of(files: Iterable[Path]) -> Path:
    """Return what an error is to name: the file, or the folder of several files."""
    paths = list(files)
    return paths[0] if len(paths) == 1 else paths[0].parent


def _write_to_disk(temporary: Path, data: bytes, path: Path) -> None:
    """Write a temporary file, and wait until it is on the disk; errors name ``path`` instead."""
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def before_of(mark: Path) -> Path:
    """Return where the ``mark`` of an earlier set lies while :func:`write_set` replaces the set."""
    return mark.with_name(f".{mark.name}.before")


def clear_parts(folder: Path) -> None:
    """Delete what killed processes left half-written in a folder that is :func:`locked`."""
    for path in folder.glob(f".*{UNFINISHED}"):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for this process; yield True, or False if another process holds it.

    The system frees the lock when the process ends, however it ends; nothing is written. On a
    system or file system without locks it always yields True.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        except OSError:  # a file system without locks
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``folder`` once the block has ended.

    If the block fails, the new folder is deleted and the old one stays as it was. Where it failed
    for want of room, an UnwrittenError says so.
    """
    # Where there is no folder, one beside it may be the old one: a run was killed between the two
    # renamings below.
    if folder.exists():
        _clear_beside(folder)
    prefix = f".{folder.name}."
    new = Path(tempfile.mkdtemp(prefix=prefix, suffix=UNFINISHED, dir=folder.parent))
    old = new.with_name(new.name.removesuffix(UNFINISHED) + f".before{UNFINISHED}")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, new, ignore_errors=True)
        stack.enter_context(locked(new))
        with writing(folder):
            yield new
        if folder.exists():
            folder.rename(old)  # at once; deleting it takes a while
            try:
                new.rename(folder)
            except OSError:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            new.rename(folder)


def _clear_beside(folder: Path) -> None:
    """Delete the folders that killed processes left half-written beside a folder."""
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*{UNFINISHED}"):
        with locked(path) as is_ours:
            if is_ours:
                shutil.rmtree(path, ignore_errors=True)


def no_text(first_bytes: bytes) -> str:
    """Say what a file is that holds no text, and what to do with it; empty for what may be text.

    ``compressed (gzip), not text; unpack it first (gunzip)``
    """
    for mark, kind, mend in _NO_TEXT:
        if first_bytes.startswith(mark):
            return f"{kind}, not text; {mend}"
    return ""


def no_text_in(path: Path) -> str:
    """Say the same of a file by its path; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return no_text(file.read(max(len(mark) for mark, _, _ in _NO_TEXT)))
    except OSError:
        return ""


def sha256_of(data: str | bytes) -> str:
    """Return the SHA-256 of bytes, or of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
