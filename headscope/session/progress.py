"""How a command reports its progress."""

from __future__ import annotations

from collections.abc import Callable

#: Called with (what is measured, done, all) after every batch or step.
Progress = Callable[[str, int, int], None]
#: The unit of a run that knows its time: seconds so far, and the estimate of all.
SECONDS = "seconds"


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def part_of(name: str, progress: Progress) -> Progress:
    """Report under the name of a part of a longer run."""

    def tell(what: str, done: int, total: int) -> None:
        progress(f"{name}, {what}", done, total)

    return tell
