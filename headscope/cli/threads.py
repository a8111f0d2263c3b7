"""How threads wait for each other, chosen before torch starts any.

torch splits each operation over OpenMP threads, which then wait for the slowest. By default GNU's
runtime, which torch's packages for Linux bring along, lets them spin for milliseconds before they
sleep. On a quiet machine that saves a wake-up; with another program on the cores the spinning
threads take them from the one that they wait for, and a run takes ten times as long. Spinning for
less than a millisecond covers the waits between two operations of a quiet run and loses little in
a busy one. Only the command line decides this: in Python the process is the user's own.

References
----------
https://gcc.gnu.org/onlinedocs/libgomp/Environment-Variables.html
"""

from __future__ import annotations

import os

#: ``OMP_WAIT_POLICY`` is understood by every OpenMP runtime; GNU's takes the spins in numbers.
_CALM = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
#: Whoever has set one of these has decided how threads wait.
_DECIDED = {*_CALM, "KMP_BLOCKTIME", "KMP_LIBRARY"}


def calm_threads() -> None:
    """Let waiting threads sleep soon, unless the environment says how they wait."""
    if not _DECIDED & os.environ.keys():
        os.environ.update(_CALM)
