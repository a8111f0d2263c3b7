r"""How much one model is worse than another on the same examples, at any level of confidence.

References
----------
Bonett & Price 2012, Adjusted Wald confidence interval for a difference of binomial proportions
based on paired data (Journal of Educational and Behavioral Statistics 37): one changed example is
added either way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.metrics import RESAMPLES, Metric, Outputs, resampled


@dataclass(frozen=True)
class Change:
    """A metric of two models on the same examples.

    Attributes
    ----------
    examples : int
        Examples that both were measured on.
    baseline, value : float
        The metric of the first model and of the other.
    difference, low, high : float
        ``value - baseline`` with its paired interval.
    level : float
        Of the interval, such as 0.95.
    """

    examples: int
    baseline: float
    value: float
    difference: float
    low: float
    high: float
    level: float

    def most_lost(self, sign: int) -> float:
        """Return the upper end of the loss; ``sign`` is 1 if higher is better, else -1."""
        return -self.low if sign > 0 else self.high


def paired_change(
    metric: Metric,
    baseline: Outputs,
    outputs: Outputs,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Change:
    """Measure a change with a percentile interval of the paired bootstrap.

    Parameters
    ----------
    metric : callable
        From :mod:`headscope.measures.metrics`.
    baseline, outputs : mapping of str to array, (n, ...)
        Of two models on the same examples in the same order.
    level : float
        Of the interval, above 0 and below 1.
    seed : int
        Of the resamples.
    resamples : int
        How often examples are drawn anew.

    Notes
    -----
    Where few examples change, the bootstrap of a rate is too narrow: with none its width is zero,
    however few the examples. So a rate's interval is taken with two examples more, of which each
    model alone gets one right (:func:`with_one_change_each_way`).
    """
    value, start = (float(metric(o, np.ones((1, _size(o))))[0]) for o in (outputs, baseline))
    old, new = with_one_change_each_way(baseline, outputs)
    drawn = [resampled(metric, o, resamples=resamples, seed=seed) for o in (old, new)]
    ends = np.quantile(drawn[1] - drawn[0], ((1 - level) / 2, (1 + level) / 2)).tolist()
    return Change(_size(outputs), start, value, value - start, ends[0], ends[1], level)


def with_one_change_each_way(baseline: Outputs, outputs: Outputs) -> tuple[Outputs, Outputs]:
    """Add two examples to the outputs of a rate; other outputs stay as they are.

    Only the first model gets one of them right and only the second the other. Where a rate is one
    of tokens (``correct`` of ``tokens``), each of the two has one token.
    """
    for hits, label in (("predicted", "label"), ("correct", "tokens")):
        if {hits, label} <= outputs.keys():
            # A prediction of 0 is right where the label is 0; of tokens, 1 of 1 is right.
            right, gold = (0, 0) if label == "label" else (1, 1)
            wrong = 1 - right
            return (
                {hits: _and(baseline[hits], right, wrong), label: _and(baseline[label], gold)},
                {hits: _and(outputs[hits], wrong, right), label: _and(outputs[label], gold)},
            )
    return baseline, outputs


def _and(values: Array, first: int, second: int | None = None) -> Array:
    """Append the values of two examples, the same twice if there is no second."""
    more = (first, first if second is None else second)
    return np.concatenate([values, np.asarray(more, dtype=values.dtype)])


def _size(outputs: Outputs) -> int:
    return len(next(iter(outputs.values())))
