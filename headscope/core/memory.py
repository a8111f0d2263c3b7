"""The memory that is free, and giving back what was freed."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return the bytes that this process may still take, or None where the system does not tell.

    Those of the machine, or of the control group (a container's) if that has fewer.
    """
    lines = map(str.split, _text(Path("/proc/meminfo")).splitlines())
    free = [1024 * int(number) for name, number, *_ in lines if name == "MemAvailable:"]
    limit, used = _text(_GROUP / "memory.max"), _text(_GROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        numbers = dict(line.split() for line in _text(_GROUP / "memory.stat").splitlines())
        free.append(int(limit) - int(used) + int(numbers.get("inactive_file", 0)))
    return min(free, default=None)


def give_back() -> None:
    """Return to the system what was freed between blocks that are in use; only glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # another system, or no control groups
        return ""
