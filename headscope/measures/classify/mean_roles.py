"""Roles that are a mean over queries: above a threshold, and above uniform attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.rounding import above
from headscope.measures.statistics import adjust, normal_interval, normal_p
from headscope.results import Label

__all__ = ["MeanTest", "mean_test", "which_special"]


@dataclass(frozen=True)
class MeanTest:
    """All heads on one such role; arrays (n_layers, n_heads). The sequence is what was sampled.

    Attributes
    ----------
    role : str
        What a head earns that passes.
    details : array of str
        What its label says besides.
    mean, p : array of float
        The measured mean, and its adjusted p-value against the baseline.
    interval : tuple of two arrays
        Its 95% interval.
    baseline, against : float, str
        What the mean must beat, and which baseline that is.
    passed : array of bool
        Who earns the role.
    """

    role: str
    details: Array
    mean: Array
    interval: tuple[Array, Array]
    p: Array
    baseline: float
    against: str
    passed: Array

    def label(self, place: tuple[int, int]) -> Label:
        """Return the label of a head that passes."""
        low, high = (float(end[place]) for end in self.interval)
        detail, mean, p = str(self.details[place]), float(self.mean[place]), float(self.p[place])
        return Label(self.role, detail, mean, self.baseline, (low, high), p, self.against)


def mean_test(
    role: str,
    mean: Array,
    error: Array,
    *,
    least: float,
    reach: bool,
    uniform: float | None,
    q: float,
    exists: Array,
    details: Array | None = None,
) -> MeanTest:
    """Test every head on one role.

    Parameters
    ----------
    role : str
        What a head earns that passes.
    mean, error : array of float, (n_layers, n_heads)
        The means and their standard errors.
    least : float
        The threshold.
    reach : bool
        Whether a mean equal to the threshold is enough.
    uniform : float or None
        What uniform attention earns; None where the threshold itself is the baseline.
    q : float
        False discovery rate.
    exists : array of bool, (n_layers, n_heads)
        Which places hold a head.
    details : array of str, optional
        What the labels say besides; nothing if missing.
    """
    baseline, against = (least, "threshold") if uniform is None else (uniform, "uniform")
    p = adjust(normal_p(mean, error, baseline), exists)
    high_enough = mean >= least if reach else mean > least
    return MeanTest(
        role=role,
        details=np.full(mean.shape, "") if details is None else details,
        mean=mean,
        interval=normal_interval(mean, error),
        p=p,
        baseline=baseline,
        against=against,
        passed=high_enough & (mean > baseline) & (p <= q),
    )


def which_special(first: Array, last: Array) -> Array:
    """Say which special token has more of the mass: ``first`` or ``last``."""
    return np.where(above(first, last), "first", "last")
