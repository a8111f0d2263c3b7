"""Numbers as short text, such as ``0-5,8,11-13``: thousands of neurons on one line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_SPANS = re.compile(r"(\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*)?")


def as_spans(numbers: Iterable[int]) -> str:
    """Write different numbers as spans, in their order; nothing for none."""
    runs = itertools.groupby(enumerate(numbers), lambda at: at[1] - at[0])
    ends = [(part[0][1], part[-1][1]) for part in (list(run) for _, run in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def from_spans(text: object, limit: int) -> tuple[int, ...] | None:
    """Read spans of different numbers below ``limit``; None where it is anything else."""
    if not isinstance(text, str) or not _SPANS.fullmatch(text):
        return None
    numbers: list[int] = []
    for span in text.split(",") if text else ():
        first, _, last = span.partition("-")
        start, stop = int(first), int(last or first)
        if not start <= stop < limit:
            return None
        numbers += range(start, stop + 1)
    return tuple(numbers) if len(set(numbers)) == len(numbers) else None
