"""How a command tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable

#: Told (what is measured, done, all) after every batch or step.
Progress = Callable[[str, int, int], None]
#: What a run that knows its time says of itself: seconds so far, and in all as far as is known now.
SECONDS = "seconds"


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def part_of(name: str, progress: Progress) -> Progress:
    """Tell under the name of a part of a longer run."""

    def tell(what: str, done: int, total: int) -> None:
        progress(f"{name}, {what}", done, total)

    return tell
