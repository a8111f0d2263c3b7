"""How two models' rates differ on the same examples: Tango's score interval, and its p-value.

References
----------
Tango 1998, Statistics in Medicine 17.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

_PRECISION = 1e-12  # How near to the true ends the search comes, as a share of the examples.


def tango(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of (gained - lost) / n, each end between -1 and 1.

    Of ``n`` examples, ``gained`` are right in the second model alone, ``lost`` in the first alone.
    """
    from scipy.optimize import brentq

    z = float(-ndtri((1 - level) / 2))

    def upper(gained: int, lost: int) -> float:
        """Find the difference above the observed one where the statistic is -z."""

        def above_limit(difference: float) -> float:
            return z + _tango_score(difference, gained, lost, n)

        largest = 1.0 - _PRECISION
        if gained == n or above_limit(largest) > 0:
            return 1.0
        return float(brentq(above_limit, (gained - lost) / n, largest, xtol=_PRECISION))

    # The lower limit for one model over the other is the upper limit the other way round.
    return -upper(lost, gained), upper(gained, lost)


def _tango_score(difference: float, gained: int, lost: int, n: int) -> float:
    """Return Tango's statistic of ``gained`` and ``lost`` of n, were this the true difference."""
    gap = gained - lost - n * difference
    if gap == 0:
        return 0.0
    # q is the most likely share that the first model alone has right, given the difference.
    linear = (2 * n - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
    q = max((root - linear) / (4 * n), 0.0)
    variance = n * (2 * q + difference * (1 - difference))
    return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap)


def tango_p(gained: int, lost: int) -> float:
    """Return the level at which 0 is an end of the interval: two-sided, 1 if nothing changed."""
    n_changed = gained + lost
    if not n_changed:
        return 1.0
    return float(2 * ndtr(-abs(gained - lost) / math.sqrt(n_changed)))
