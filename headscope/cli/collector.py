"""Python's garbage collector, kept out of the way while modules load and when the process ends.

torch and transformers bring a million objects that stay to the end. To look through them again and
again for garbage takes a sixth of the time of the imports, and one more second at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 100_000  # New containers between two looks for garbage; Python's own number is 700.
_USUAL = gc.get_threshold()


@contextmanager
def rest_collector() -> Iterator[None]:
    """Look for garbage rarely until :func:`modules_are_loaded`, and never after the block.

    The process is meant to end with the block: the system takes its memory back as it is.
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
