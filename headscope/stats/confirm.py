"""How many heads may be removed for a bounded loss: a fixed sequence of tests on all examples.

The numbers of heads (or other units) ``k_1 < k_2 < ...`` and the model that is left without each
are settled before an example of the test data is looked at. They are tested in that order::

    H_j: the model without k_j heads loses more than the bound
    rejected where the upper end of the 95% interval of its loss is at most the bound

The first test that does not reject ends the sequence; the last number that was rejected is
confirmed. Each test is made on all examples at level :data:`ALPHA`, and no correction is due: a
false answer needs the first true ``H_j`` to be rejected, whichever that is, and that is one test
that was named beforehand. So the probability that the confirmed number costs more than the bound is
at most :data:`ALPHA`, however the losses rise and fall (as far as intervals hold).

References
----------
Maurer, Hothorn & Lehmacher 1995, in Biometrie in der chemisch-pharmazeutischen Industrie 6 (tests
in a fixed order need no correction); Wiens 2003, Pharmaceutical Statistics 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headscope.core.errors import InputError
from headscope.core.rounding import above
from headscope.stats.estimate import FEWEST_TESTED
from headscope.stats.paired_change import Change

LEVEL = 0.95  # Level of the two-sided intervals, of which only one end counts.
ALPHA = (1 - LEVEL) / 2  # Error probability of each test, and of all of them together.
STEPS = 16  # Steps from no head to all heads, between which the tested numbers lie.


def ascending(n: int, steps: int = STEPS) -> tuple[int, ...]:
    """List the numbers that are tested, of n heads: the rounded multiples of ``n / steps`` below n.

    Of 48 heads in 16 steps 3, 6, ..., 45; all of 1 to n - 1 where n is at most ``steps``. A refusal
    ends the sequence, so it begins where little is lost; large steps make refusals by chance rare.
    """
    # i n / steps to the nearest integer, in whole numbers
    rounded = [(2 * i * n + steps) // (2 * steps) for i in range(1, steps)]
    return tuple(sorted({k for k in rounded if 0 < k < n}))


@dataclass(frozen=True)
class Judged:
    """What a model loses, and whether that is allowed."""

    change: Change  # Of the metric from the full model to this one, with its interval
    lost: float  # Above 0 for a loss, whichever direction of the metric is better
    most_lost: float  # Upper end of the loss's interval; infinite where it is unknown
    allowed: bool  # Whether the upper end is at most the bound


def judged(change: Change, sign: int, bound: float) -> Judged:
    """Judge a paired change; ``sign`` is 1 if a higher metric is better, else -1.

    A loss that is unknown is not allowed.
    """
    most_lost = change.most_lost(sign)
    exceeds_bound = bool(above(most_lost, bound))  # by more than rounding
    return Judged(
        change=change,
        lost=-sign * change.difference,
        most_lost=most_lost,
        allowed=math.isfinite(most_lost) and not exceeds_bound,
    )


def need_examples(count: int, data: str) -> None:
    """Refuse so few examples that nothing could be confirmed on them; ``data`` is their name."""
    if count < FEWEST_TESTED:
        raise InputError(
            f"{data} gives {count} examples, and max_drop needs {FEWEST_TESTED} or more (better "
            "hundreds) to test on."
        )


class Stopped(NamedTuple):
    """Where a sequence ended: the last number confirmed, and the one refused after it."""

    confirmed: int | None  # None where already the first number was refused
    refused: int | None  # None where no number was refused


def last_confirmed(numbers: Iterable[int], test: Callable[[int], bool]) -> Stopped:
    """Test numbers in their order up to the first refusal; later ones are not tested."""
    confirmed = None
    for number in numbers:
        if not test(number):
            return Stopped(confirmed, number)
        confirmed = number
    return Stopped(confirmed, None)


def examples_needed(judged: Judged, bound: float) -> int | None:
    """Estimate how many examples would confirm a change, to two digits; None if none would.

    The interval's half-width falls with the square root of the number of examples.
    """
    largest_half_width = bound - judged.lost
    if largest_half_width <= 0 or not math.isfinite(judged.most_lost):
        return None
    half_width = judged.most_lost - judged.lost
    needed = math.ceil(judged.change.examples * (half_width / largest_half_width) ** 2)

    # Round up to two digits: 1,234 becomes 1,300.
    n_digits = len(str(needed))
    step = int(10 ** max(0, n_digits - 2))
    return math.ceil(needed / step) * step
