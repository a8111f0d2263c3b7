"""How the process of the command line uses memory, threads and Python's garbage collector.

These are settings of a whole process, so only the command line makes them: in a program that
imports headscope they are the program's own.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # From glibc's malloc.h.
_MIB = 1 << 20
#: ``OMP_WAIT_POLICY`` is understood by every OpenMP runtime; GNU's takes the spins in numbers.
_SHORT_WAITS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
_RARELY = 100_000  # New containers between two looks for garbage; Python's own number is 700.
_USUAL = gc.get_threshold()


def bound_memory() -> None:
    """Fix glibc's thresholds at 1 MiB and its arenas at two, so that long runs do not grow.

    By default its thresholds grow until blocks of up to 32 MiB live in the heap, where they leave
    holes. With fixed ones a block of a MiB goes back to the system as soon as it is freed.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, _MIB)
        mallopt(_ARENA_MAX, 2)


def calm_threads() -> None:
    """Let torch's waiting threads sleep soon, unless the environment says how they wait.

    By default GNU's OpenMP lets them spin for milliseconds. With another program on the cores they
    take them from the thread that they wait for, and a run takes ten times as long. See
    https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html
    """
    if not {*_SHORT_WAITS, "KMP_BLOCKTIME", "KMP_LIBRARY"} & os.environ.keys():
        os.environ.update(_SHORT_WAITS)


@contextmanager
def rest_collector() -> Iterator[None]:
    """Look for garbage rarely until :func:`modules_are_loaded`, and never after the block.

    torch and transformers bring a million objects that stay to the end; looking through them takes
    a sixth of the time of the imports, and a second at the end. The process ends with the block.
    """
    gc.set_threshold(_RARELY, *_USUAL[1:])
    try:
        yield
    finally:
        modules_are_loaded()


def modules_are_loaded() -> None:
    """Look for garbage as usual from here on, but not among what exists by now."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
