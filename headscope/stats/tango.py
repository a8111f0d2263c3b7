"""How two models' rates differ on the same examples: Tango's score interval, and its p-value.

References
----------
Tango 1998, Statistics in Medicine 17.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

_PRECISION = 1e-12  # How near to the true ends of the interval the search comes.


def tango(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of (gained - lost) / n, each end between -1 and 1.

    Of ``n`` examples, ``gained`` are right in the second model alone, ``lost`` in the first alone.
    The interval holds every difference that a score test at this level does not reject.
    """
    from scipy.optimize import brentq

    z = float(-ndtri((1 - level) / 2))

    def upper(gained: int, lost: int) -> float:
        """Find the difference above the observed one at which the statistic is -z."""

        def statistic_plus_z(difference: float) -> float:
            return z + _tango_score(difference, gained, lost, n)

        observed = (gained - lost) / n
        largest = 1.0 - _PRECISION
        if gained == n or statistic_plus_z(largest) > 0:
            return 1.0
        return float(brentq(statistic_plus_z, observed, largest, xtol=_PRECISION))

    # The lower limit for one model over the other is the upper limit the other way round.
    return -upper(lost, gained), upper(gained, lost)


def _tango_score(difference: float, gained: int, lost: int, n: int) -> float:
    """Return Tango's statistic of ``gained`` and ``lost`` of n, were this the true difference.

    It is the gap between the observed and the true difference in standard errors.
    """
    gap = gained - lost - n * difference
    if gap == 0:
        return 0.0
    # q is the most likely share that the first model alone has right, given the difference: the
    # larger root of 2 n q^2 + linear q + constant = 0.
    linear = (2 * n - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
    q = max((root - linear) / (4 * n), 0.0)
    variance = n * (2 * q + difference * (1 - difference))
    if variance <= 0:
        return math.copysign(math.inf, gap)
    return gap / math.sqrt(variance)


def tango_p(gained: int, lost: int) -> float:
    """Return the two-sided p-value of no difference, 1 if nothing changed.

    It is below 1 - level exactly where the interval of :func:`tango` excludes 0.
    """
    n_changed = gained + lost
    if not n_changed:
        return 1.0
    return float(2 * ndtr(-abs(gained - lost) / math.sqrt(n_changed)))
