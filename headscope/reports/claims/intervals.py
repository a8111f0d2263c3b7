"""Where the interval of an estimate lies, in one word, and how an estimate is written.

The word, called an outcome, is ``holds``, ``does not hold``, ``open`` (the interval contains the
bound) or ``not measured`` (there is no interval: a single value says nothing about the next).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.core import rounding
from headscope.show.estimates import ranged
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_DRAWS, finite, standard_error, t_half_width

HOLDS = "holds"
FAILS = "does not hold"
OPEN = "open"
NOT_MEASURED = "not measured"


# --- one estimate against a bound -----------------------------------------------------------------


def above(number: Estimate, limit: float) -> str:
    """Decide whether the whole interval lies above a limit, by more than rounding."""
    if number.low is None or number.high is None:
        return NOT_MEASURED
    if rounding.above(number.low, limit):
        return HOLDS
    return OPEN if rounding.above(number.high, limit) else FAILS


def below(number: Estimate, limit: float) -> str:
    """Decide whether the whole interval lies below a limit, by more than rounding."""
    return above(negative(number), -limit)


def within(number: Estimate, least: float, most: float) -> str:
    """Decide whether the whole interval lies between two limits; fails if all of it is outside."""
    if number.low is None or number.high is None:
        return NOT_MEASURED
    if least <= number.low and number.high <= most:
        return HOLDS
    return FAILS if number.high < least or number.low > most else OPEN


def negative(number: Estimate) -> Estimate:
    """Return the number with its sign reversed: 2 [1, 5] -> -2 [-5, -1]."""
    return Estimate(
        value=None if number.value is None else -number.value,
        low=None if number.high is None else -number.high,
        high=None if number.low is None else -number.low,
    )


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over layers or heads with its t interval, unknown for a single value."""
    if not values:
        return Estimate(None)
    numbers = np.asarray(values, dtype=float)
    n = np.array(len(values))
    error = standard_error(numbers.sum(), np.square(numbers).sum(), n)
    half_width = t_half_width(error, n, FEWEST_DRAWS)
    return Estimate.around(float(numbers.mean()), finite(float(half_width)))


# --- one word for several outcomes ----------------------------------------------------------------


def every(outcomes: Sequence[str]) -> str:
    """Decide whether all of some outcomes hold; a single one that does not decides against.

    holds, holds -> holds; holds, open, does not hold -> does not hold; holds, open -> open.
    """
    for outcome in (FAILS, NOT_MEASURED, OPEN):
        if outcome in outcomes:
            return outcome
    return HOLDS if outcomes else NOT_MEASURED


def common(outcomes: Sequence[str]) -> str:
    """Return the outcome that all outcomes share; "mixed" or "open" where they differ.

    Of a part with one outcome for each control, or layer. holds, does not hold -> mixed; holds,
    open -> open.
    """
    if not outcomes or NOT_MEASURED in outcomes:
        return NOT_MEASURED
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "mixed" if FAILS in outcomes else OPEN


# --- how it is written ----------------------------------------------------------------------------


def shown(number: Estimate, form: str = ".2f", unknown: str = NOT_MEASURED) -> str:
    """Write a number with its interval: 0.41 [0.35, 0.47]."""
    if number.value is None:
        return unknown
    if number.low is None or number.high is None:
        return f"{number.value:{form}} [no interval]"
    return ranged(number, lambda value: f"{value:{form}}")


def or_dash(value: float | None, form: str = ".2f") -> str:
    """Write a plain number, or a dash where it is not known."""
    return "-" if value is None else format(value, form)
