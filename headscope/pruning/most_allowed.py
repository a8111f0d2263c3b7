"""The largest number that passes a test which costs a lot, by bisection."""

from __future__ import annotations

from collections.abc import Callable


def most_allowed(most: int, allowed: Callable[[int], bool], at_least: int = 0) -> int:
    """Find the largest number up to ``most`` that is allowed, with few questions.

    Parameters
    ----------
    most : int
        Numbers above it are not asked for.
    allowed : callable
        The test. It may be asked for one number twice, so it should remember its answers.
    at_least : int
        A number that is known to be allowed; it is not asked for.

    Returns
    -------
    int
        An allowed number (or ``at_least``). Where every number below an allowed one is allowed
        too, it is the largest. Otherwise it is one whose next two numbers are not allowed, and
        larger ones may exist.

    Notes
    -----
    About log2(most - at_least) + 1 questions. Bisection ends at a number whose neighbour above is
    not allowed; losses need not rise with every head, so the one above that is asked for too, and
    wherever it is allowed the search goes on from there.
    """
    low, high = at_least, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return _climb(low, most, allowed)


def _climb(low: int, most: int, allowed: Callable[[int], bool]) -> int:
    """Go up from ``low`` until two neighbours in a row are not allowed."""
    step = 1
    while low + step <= most and step <= 2:
        if allowed(low + step):
            low, step = low + step, 1
        else:
            step += 1
    return low
