"""How much of the processor other programs use, where the system tells."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")  # Linux alone has it
#: Its first line: the processor's time by what it was spent on, in ticks. Counts that follow hold
#: time that is in these already.
_COUNTS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Competitors:
    """Watches what other programs use of the processor, from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._machine_seconds = _machine_seconds()
        self._own_seconds = _own_seconds()

    def cores(self) -> float | None:
        """Return how many cores other programs used since then, on average; None where unknown."""
        machine_seconds = _machine_seconds()
        elapsed = time.monotonic() - self._began
        if machine_seconds is None or self._machine_seconds is None or elapsed <= 0:
            return None
        by_all = machine_seconds - self._machine_seconds
        by_us = _own_seconds() - self._own_seconds
        return max(0.0, (by_all - by_us) / elapsed)


def _machine_seconds() -> float | None:
    """Return the processor time of all programs since the machine started; None where unknown."""
    try:
        first_line = _STAT.read_text(encoding="ascii").partition("\n")[0]
        ticks = {
            name: int(count) for name, count in zip(_COUNTS, first_line.split()[1:], strict=False)
        }
        ticks_a_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    idle = ticks.get("idle", 0) + ticks.get("iowait", 0)
    return (sum(ticks.values()) - idle) / ticks_a_second


def _own_seconds() -> float:
    """Return this process's own processor time, with that of its children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
