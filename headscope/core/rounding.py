"""What counts as zero, as equal and as more after rounding: a tolerance for each kind of decision.

In exact arithmetic a constant has no variance, copies of a head have equal scores, and evenly
spread attention has no largest weight. In floating point all of these leave a trace of the size of
the dtype in which the data arrived, and it differs from one processor to the next. So no test
asks whether a number is ``> 0`` or the largest, but whether it is so by more than that trace.

A tolerance only moves the border between two outcomes: numbers that differ by just about the
tolerance may still fall on either side. What it does settle, on every processor, is the case that
models and texts do bring about: numbers that are equal on paper.
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
#: Numbers that are equal on paper agree to this share of what they were computed from. A float32
#: product of some hundred terms, or a softmax row of that length, is off by a few EPS, and differs
#: by as much in another order of summation; 64 EPS (8e-6) leave room for a softmax of large scores
#: and for what layers add to each other's rounding, and lie far below what a report prints.
ROUNDING = 64 * EPS
#: A variance, or another sum of squares, below this share of the mean square is that of a constant.
VARIANCE = ROUNDING**2
#: A difference of fractions of counts reaches a bound if it falls short of it by at most this: on
#: paper 0.45 - 0.35 is 0.10. Counts are exact, so this is the rounding of a few operations in
#: float64.
FRACTION = 1e-12


def above(value: ArrayLike, bound: ArrayLike) -> Array:
    """Whether a number exceeds another by more than rounding may explain, element by element.

    For shares, cosines, correlations and metrics: ROUNDING is taken of the larger of the two, and
    of 1 where both are smaller. So an interval from 1e-17 to 1e-17, which on paper is a difference
    of zero, is not above 0. Infinity is above every finite number.
    """
    size = np.maximum(np.maximum(np.abs(value), np.abs(bound)), 1.0)
    size = np.minimum(size, np.finfo(float).max)
    return np.asarray(np.subtract(value, bound) > ROUNDING * size)


def tied(values: ArrayLike, size: float = 0.0) -> Array:
    """Give scores that agree up to rounding the same value, before they are sorted or compared.

    Two neighbours in the order along the last axis are tied if they differ by at most ROUNDING of
    the larger one, plus EPS of the largest of all: the score of a head that does nothing counts as
    zero next to the others. Where both are smaller than ``size``, ROUNDING is taken of that. Sorted
    by what is returned and then by index, copies of a head stand in the order of their numbers on
    any processor. For the scores of heads, not for thousands of examples: those lie so close that
    one tie would lead to the next. NaN stays NaN.

    Shapes: ``values`` (..., n).
    """
    values = np.asarray(values, dtype=float)
    if not values.size:
        return values

    # Sort, and compare every score with the one before it.
    order = np.argsort(values, axis=-1, kind="stable")  # NaN comes last
    ascending = np.take_along_axis(values, order, -1)
    magnitudes = np.nan_to_num(np.abs(ascending), nan=0.0)
    floor = EPS * magnitudes.max(-1, keepdims=True)
    larger = np.maximum(np.maximum(magnitudes[..., 1:], magnitudes[..., :-1]), size)
    begins_tie = np.ones(values.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        begins_tie[..., 1:] = ~(np.diff(ascending, axis=-1) <= ROUNDING * larger + floor)

    # Give each tie its first value, and put all back into their order.
    index = np.arange(values.shape[-1])
    first_of_tie = np.maximum.accumulate(np.where(begins_tie, index, 0), axis=-1)
    one_value = np.take_along_axis(ascending, first_of_tie, -1)
    tied_values = np.empty_like(values)
    np.put_along_axis(tied_values, order, one_value, -1)
    return tied_values


def first_largest(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest entry along the last axis, and the first index of those equal to it.

    Entries within ROUNDING of it count as equal: the softmax of scores that are equal on paper
    (evenly spread attention, a word that stands twice where positions do not count) has weights
    that differ in their last digits.
    """
    largest = weights.amax(-1)
    equal = weights >= (largest - ROUNDING * largest.abs()).unsqueeze(-1)
    if equal.device.type == "cpu":  # NumPy stops at the first True
        from torch import from_numpy  # not above: results and views need no torch

        return largest, from_numpy(np.asarray(equal.numpy().argmax(-1)))
    # The first True, several times as fast as argmax.
    return largest, equal.max(-1).indices
