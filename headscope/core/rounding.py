"""When a number counts as larger than another, or as equal to it, in spite of rounding.

On paper a constant has no variance, copies of a head have equal scores, and evenly spread attention
has no largest weight. In floating point such numbers differ in their last digits, and otherwise on
each processor. So no decision asks whether a number is ``> 0`` or the largest, but whether it is so
by more than rounding:

* :func:`above`: is 0.3000001 above 0.3?
* :func:`tied`: scores 0.3, 0.3000001 and 0.7 become 0.3, 0.3 and 0.7, before they are sorted;
* :func:`first_largest`: of the weights 0.25, 0.2500001, 0.25, 0.25 the first is the largest.

Numbers that differ by just about the tolerance may still fall on either side. What is settled, on
every processor, is the case that models and texts do bring about: numbers that are equal on paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from headscope.core.accumulator import Array

if TYPE_CHECKING:
    from torch import Tensor

#: Relative rounding of float32, the dtype in which patterns and states arrive.
EPS = float(np.finfo(np.float32).eps)
#: Numbers that are equal on paper agree to this share of their size, 8e-6. A float32 product of
#: some hundred terms, or a softmax row of that length, is off by a few EPS; the rest is room for a
#: softmax of large scores and for what layers add to each other's rounding. It lies far below what
#: a report prints.
ROUNDING = 64 * EPS
#: A variance below this share of the mean square is that of a constant.
VARIANCE = ROUNDING**2
#: For differences of fractions of counts, as 45/100 - 35/100 >= 0.10: one that falls short of its
#: bound by at most this has reached it. Counts are exact; only a few float64 operations round.
FRACTION = 1e-12


def above(value: ArrayLike, bound: ArrayLike) -> Array:
    """Whether a number exceeds another by more than rounding may explain, element by element.

    For shares, cosines, correlations and metrics: the tolerance is ROUNDING times the larger of the
    two, and at least ROUNDING itself. So a difference of 1e-17, which on paper is zero, is not
    above 0. Infinity is above every finite number.
    """
    size = np.maximum(np.maximum(np.abs(value), np.abs(bound)), 1.0)
    size = np.minimum(size, np.finfo(float).max)  # else infinity's tolerance is infinity
    return np.asarray(np.subtract(value, bound) > ROUNDING * size)


def tied(values: ArrayLike, size: float = 0.0) -> Array:
    """Give scores that agree up to rounding the same value, before they are sorted or compared.

    Two neighbours in ascending order along the last axis, (..., n), are tied if they differ by at
    most ROUNDING times the larger one (or times ``size``, where that is larger), plus EPS times the
    largest of all: the score of a head that does nothing counts as zero next to the others. NaN
    stays NaN.

    Sorted by what is returned and then by index, copies of a head stand in the order of their
    numbers on any processor. For the scores of heads, not for thousands of examples: those lie so
    close that one tie would lead to the next.
    """
    values = np.asarray(values, dtype=float)
    if not values.size:
        return values

    # Sort, and compare every score with the one before it.
    order = np.argsort(values, axis=-1, kind="stable")  # NaN comes last
    ascending = np.take_along_axis(values, order, -1)
    magnitudes = np.nan_to_num(np.abs(ascending), nan=0.0)
    floor = EPS * magnitudes.max(-1, keepdims=True)
    larger = np.maximum(magnitudes[..., 1:], magnitudes[..., :-1])  # of each two neighbours
    tolerance = ROUNDING * np.maximum(larger, size) + floor
    begins_tie = np.ones(values.shape, dtype=bool)
    with np.errstate(invalid="ignore"):  # a difference of infinities; NaN is tied to nothing
        begins_tie[..., 1:] = ~(np.diff(ascending, axis=-1) <= tolerance)

    # Give all scores of a tie its first value: begins_tie 1 0 0 1 -> first_of_tie 0 0 0 3.
    index = np.arange(values.shape[-1])
    first_of_tie = np.maximum.accumulate(np.where(begins_tie, index, 0), axis=-1)
    tied_ascending = np.take_along_axis(ascending, first_of_tie, -1)

    # Put them back into the order of ``values``.
    tied_values = np.empty_like(values)
    np.put_along_axis(tied_values, order, tied_ascending, -1)
    return tied_values


def first_largest(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest entry along the last axis, and the first index of those equal to it.

    Entries within ROUNDING times the largest count as equal to it. ``weights`` (..., n) -> (...)
    and (...).
    """
    largest = weights.amax(-1)
    equal = weights >= (largest - ROUNDING * largest.abs()).unsqueeze(-1)
    if equal.device.type == "cpu":  # NumPy stops at the first True
        from torch import from_numpy  # not above: results and views need no torch

        return largest, from_numpy(np.asarray(equal.numpy().argmax(-1)))
    # The first True, several times as fast as argmax.
    return largest, equal.max(-1).indices
