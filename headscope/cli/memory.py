"""Keep the process as small at the end of a long run as at its start.

The C library keeps freed blocks of up to 32 MiB in its heap, where they leave holes, so that a run
creeps up by some percent. This is a setting of the whole process, so only the command line touches
it, not the library.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["bound_memory"]

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MIB = 1 << 20


def bound_memory() -> None:
    """Return large freed blocks to the system."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        for parameter, value in (
            (_TRIM_THRESHOLD, _MIB),
            (_MMAP_THRESHOLD, _MIB),
            (_ARENA_MAX, 2),
        ):
            mallopt(parameter, value)
