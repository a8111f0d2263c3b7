r"""Tango's score interval of the difference of two rates on the same examples.

Of n examples, ``gained`` are right for the second model only and ``lost`` for the first only. The
difference of the rates is d = (gained - lost) / n. Let p be the probability that an example is
gained and q that it is lost. For any difference D that is asked about, the likeliest q with
p - q = D solves a quadratic equation, and the score statistic

    z(D) = (gained - lost - n D) / sqrt(n (2 q + D - D^2))

falls as D grows. The interval holds every D whose z(D) lies between the normal quantiles. At D = 0
this is McNemar's test without a correction, so its p-value is below 0.05 exactly where the 95%
interval leaves 0 out. With no changed example at all the interval is -/+ z^2 / (n + z^2): few
examples that did not change leave a change open.

References
----------
Tango 1998, Statistics in Medicine 17, 891-908; McNemar 1947, Psychometrika 12.
"""

from __future__ import annotations

import math

from scipy import optimize, stats

_PRECISION = 1e-12  # How near to the true ends the search comes, as a share of the examples.


def tango(gained: int, lost: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the difference (gained - lost) / n, each end between -1 and 1.

    Of ``n`` examples only the second model has ``gained`` right, and only the first ``lost``.
    """
    z = float(stats.norm.isf((1 - level) / 2))
    # The lower end for one model over the other is the upper end the other way round.
    return -_upper(lost, gained, n, z), _upper(gained, lost, n, z)


def _upper(gained: int, lost: int, n: int, z: float) -> float:
    """Find the difference above the observed one where the statistic is -z."""

    def above(difference: float) -> float:
        return z + _score(difference, gained, lost, n)

    end = 1.0 - _PRECISION
    if gained == n or above(end) > 0:
        return 1.0
    return float(optimize.brentq(above, (gained - lost) / n, end, xtol=_PRECISION))


def _score(difference: float, gained: int, lost: int, n: int) -> float:
    """z(D) of the module's text; 0 at the observed difference."""
    gap = gained - lost - n * difference
    if gap == 0:
        return 0.0
    linear = (2 * n - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    root = math.sqrt(max(linear * linear - 8 * n * constant, 0.0))
    q = max((root - linear) / (4 * n), 0.0)
    variance = n * (2 * q + difference * (1 - difference))
    return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap)


def tango_p(gained: int, lost: int) -> float:
    """Return the level at which 0 is an end of the interval: two-sided, 1 if nothing changed."""
    changed = gained + lost
    return float(2 * stats.norm.sf(abs(gained - lost) / math.sqrt(changed))) if changed else 1.0
