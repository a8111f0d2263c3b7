"""Checking that a run fits into free memory, and returning freed memory to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

from headscope.core.errors import InputError

_CONTROL_GROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30


def check_memory(name: str, needed: float, without: Mapping[str, float]) -> None:
    """Refuse a run that needs more bytes, besides the model ``name`` itself, than are free.

    ``without`` maps each part of the run that can be left out, in the words of the message, to the
    bytes that the run needs without it.
    """
    release_memory()  # what an earlier run has left
    free = free_memory()
    if free is None or needed <= free:
        return
    remedy = "free some, or take a larger machine"
    for left_out, needed_without in without.items():
        if needed_without <= free:
            remedy = f"it fits without {left_out}"
            break
    raise InputError(
        f"This run needs about {needed / _GIB:.1f} GiB of memory beside {name} itself, and "
        f"{free / _GIB:.1f} GiB are free; {remedy}."
    )


def free_memory() -> int | None:
    """Return the bytes that this process may still take; None if the system does not say.

    That is what is free in the machine, or in the control group (of a container) if that is less.
    """
    free: list[int] = []
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, kib, *_ = line.split()
        if name == "MemAvailable:":
            free.append(1024 * int(kib))
    limit = _text(_CONTROL_GROUP / "memory.max")
    used = _text(_CONTROL_GROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        lines = _text(_CONTROL_GROUP / "memory.stat").splitlines()
        statistics = dict(line.split() for line in lines)
        reclaimable = int(statistics.get("inactive_file", 0))  # files that the system only caches
        free.append(int(limit) - int(used) + reclaimable)
    return min(free, default=None)


def release_memory() -> None:
    """Return freed memory to the system, also the gaps between blocks in use; glibc alone can."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _text(path: Path) -> str:
    """Read one of the system's files; empty where there is none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # another system, or no control groups
        return ""
