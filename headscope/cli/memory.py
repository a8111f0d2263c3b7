"""Keep the process as small at the end of a long run as at its start.

glibc learns from what is freed: its thresholds grow until blocks of up to 32 MiB live in its heap,
where they leave holes, and a run creeps up by some percent. With fixed thresholds a block of a MiB
or more is mapped alone and goes back to the system as soon as it is freed. This is a setting of the
whole process, so only the command line makes it: a program that imports headscope keeps its own.
"""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MIB = 1 << 20


def bound_memory() -> None:
    """Fix the C library's thresholds at 1 MiB and its arenas at two; does nothing without glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, _MIB)
        mallopt(_ARENA_MAX, 2)
