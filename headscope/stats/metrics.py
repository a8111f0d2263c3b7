r"""Metrics of a task over weighted examples, and their values in bootstrap resamples.

A bootstrap resample draws n examples with replacement; all that a metric needs of it is how often
each example was drawn. Every metric here therefore takes counts ``w`` (resamples, n) and gives one
value per resample, without ever copying examples; counts of 1 give the metric itself. The counts
depend on the seed and n alone, so that two models are always compared on the same resamples.
Outputs may have an array :data:`CLUSTER`: examples with the same number (questions on one
paragraph) are not independent, and are drawn together.

The class of a metric says which interval it has (:mod:`headscope.stats.paired_change`):
:class:`Rate` of examples that are right or wrong, one of :data:`Counted` where a right answer is
counted some other way; any other function has continuous values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS, ROUNDING

Outputs = Mapping[str, Array]  # Per-example arrays by name; the first axis of each is the example.
#: A metric: (outputs, counts (resamples, n)) -> one value per resample.
Metric = Callable[[Outputs, Array], Array]

CLUSTER = "cluster"  # Name of the array that says which examples belong together.
RESAMPLES = 1000  # Resamples of a bootstrap.
_MOST_COUNTS = 1 << 20  # Counts (resamples, n) that are held at a time: 8 MiB, some ten times.


def mean_of(name: str, scale: float = 1.0) -> Metric:
    """Return the metric that is the mean of one per-example array, times ``scale``."""

    def mean(outputs: Outputs, counts: Array) -> Array:
        return np.asarray(scale * (counts @ outputs[name]) / counts.sum(axis=1))

    return mean


def ratio_of(total: str, size: str, scale: float = 1.0) -> Metric:
    """Return the metric sum of ``total`` / sum of ``size``: a mean over parts of examples."""

    def ratio(outputs: Outputs, counts: Array) -> Array:
        sizes = np.maximum(counts @ outputs[size], 1e-300)
        return np.asarray(scale * (counts @ outputs[total]) / sizes)

    return ratio


@dataclass(frozen=True)
class Rate:
    """Share of examples that are right, times 100."""

    right: Callable[[Outputs], Array]  # Outputs -> array of bool or of 0 and 1, (n,).

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample."""
        return np.asarray(100.0 * (counts @ self.right(outputs)) / counts.sum(axis=1))


def _predicted_right(outputs: Outputs) -> Array:
    return np.asarray(outputs["predicted"] == outputs["label"], dtype=float)


#: Share of examples whose ``predicted`` is their ``label``, times 100.
accuracy = Rate(_predicted_right)


def rate_of(name: str) -> Rate:
    """Return the rate of one per-example array of 0 and 1."""
    return Rate(lambda outputs: outputs[name])


@dataclass(frozen=True)
class CountedF1:
    """F1 of what is predicted and what is right, 2 TP / (predicted + right), times 100.

    Computed from sums over examples, whose arrays are named; 0 where nothing is predicted and
    nothing right.
    """

    hits: str  # True positives of each example
    predicted: str
    right: str
    assumed: float = 1.0  # Size of the change that is assumed where no example changed

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample."""
        hits = counts @ outputs[self.hits]
        predicted = counts @ outputs[self.predicted]
        right = counts @ outputs[self.right]
        return np.asarray(200.0 * hits / np.maximum(predicted + right, 1e-300))

    def with_two_more(
        self, outputs: Outputs, are_right: tuple[bool, bool], other: Outputs | None = None
    ) -> Outputs:
        """Add two examples, each right or wrong, as large as those that differ from another model.

        That is the mean over those that were seen and one of the assumed size; a single model gets
        examples of size 1.
        """
        size = 1.0
        names = (self.hits, self.predicted, self.right)
        if other is not None:
            changes = np.max([np.abs(outputs[name] - other[name]) for name in names], axis=0)
            size = float((self.assumed + changes.sum()) / (1 + np.count_nonzero(changes)))
        return {
            self.hits: np.append(outputs[self.hits], size * np.array(are_right)),
            self.predicted: np.append(outputs[self.predicted], (size, size)),
            self.right: np.append(outputs[self.right], (size, size)),
        }


def token_rate(right: str, tokens: str) -> CountedF1:
    """Return the share of tokens that are right, times 100; an example is a sentence of tokens.

    Each token has one prediction, so this share is their F1. A changed sentence is assumed to
    differ in three tokens where no sentence changed: with one the interval covered 76% of 50
    sentences of which 3% changed by 1 to 4 tokens, with three it covers 95% or more.
    """
    return CountedF1(hits=right, predicted=tokens, right=tokens, assumed=3.0)


@dataclass(frozen=True)
class ClassMetric:
    """A metric of how often each class is predicted for each."""

    #: From counts (resamples, label, predicted) to one value per resample
    value_of_table: Callable[[Array], Array]

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample, of weighted counts (resamples, label, predicted)."""
        labels = outputs["label"]
        occurring, codes = np.unique(
            np.concatenate([labels, outputs["predicted"]]), return_inverse=True
        )
        n = len(labels)
        n_classes = len(occurring)
        cells = codes[:n] * n_classes + codes[n:]  # Of a flat table (label, predicted)
        one_hot = np.zeros((n, n_classes**2))
        one_hot[np.arange(n), cells] = 1.0
        tables = np.asarray(counts @ one_hot).reshape(-1, n_classes, n_classes)
        return self.value_of_table(tables)

    def with_two_more(
        self, outputs: Outputs, are_right: tuple[bool, bool], other: Outputs | None = None
    ) -> Outputs:
        """Add two examples of the commonest class; where wrong, the next class is predicted."""
        classes, sizes = np.unique(outputs["label"], return_counts=True)
        order = np.argsort(-sizes, kind="stable")
        commonest = classes[order[0]]
        next_class = classes[order[1]] if len(classes) > 1 else commonest + 1
        predicted = [commonest if is_right else next_class for is_right in are_right]
        return {
            "label": np.append(outputs["label"], (commonest, commonest)),
            "predicted": np.append(outputs["predicted"], predicted),
        }


#: Metrics of right and wrong answers that are no rates of examples.
Counted = CountedF1 | ClassMetric


def _macro_f1(tables: Array) -> Array:
    """Average the F1 of the classes, by tables (resamples, label, predicted)."""
    hits = tables.diagonal(axis1=1, axis2=2)
    total = tables.sum(axis=1) + tables.sum(axis=2)  # 2 TP + FP + FN of each class
    with np.errstate(invalid="ignore"):
        f1 = np.where(total > 0, 2.0 * hits / np.maximum(total, 1e-300), 0.0)
    return np.asarray(100.0 * f1.sum(axis=1) / (total > 0).sum(axis=1))


def _matthews(tables: Array) -> Array:
    """Correlate labels with predictions, by tables (resamples, label, predicted)."""
    n = tables.sum(axis=(1, 2))
    label = tables.sum(axis=2)
    predicted = tables.sum(axis=1)
    agreement = tables.trace(axis1=1, axis2=2) * n - (label * predicted).sum(axis=1)
    spread = (n**2 - (label**2).sum(axis=1)) * (n**2 - (predicted**2).sum(axis=1))
    return np.where(spread > 0, 100.0 * agreement / np.sqrt(np.maximum(spread, 1e-300)), 0.0)


#: Mean over the classes that occur (as label or prediction) of 2 TP / (2 TP + FP + FN), times 100.
#: A class that a resample happens to lack altogether does not count in it.
macro_f1 = ClassMetric(_macro_f1)
#: Matthews correlation of labels and predictions (multi-class), times 100; 0 if either is constant.
#: Gorodkin 2004, Comparing two K-category assignments by a K-category correlation coefficient.
matthews = ClassMetric(_matthews)


def spearman(outputs: Outputs, counts: Array) -> Array:
    """Return Spearman's correlation of ``similarity`` and ``gold``, ties at their mean rank, x100.

    0 where either of them is constant.
    """
    # The mean rank of n values is (n + 1) / 2, ties or not.
    mean_rank = (counts.sum(axis=1)[:, None] + 1) / 2
    x = _ranks(outputs["similarity"], counts) - mean_rank
    y = _ranks(outputs["gold"], counts) - mean_rank
    covariance = (counts * x * y).sum(axis=1)
    spread = (counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1)
    return np.where(spread > 0, 100.0 * covariance / np.sqrt(np.maximum(spread, 1e-300)), 0)


def _ranks(values: Array, counts: Array) -> Array:
    """Return the mean rank of each example's value in every resample: (resamples, n).

    The order of the values is the same in all resamples, so one sort serves them all: a group of
    equal values that was drawn c times after b smaller ones has ranks b + 1 ... b + c. Values are
    equal if they are so to 16 EPS of the largest, on a grid: texts that are equal to the model have
    a cosine of 1 up to rounding, and a model without attention gives all pairs the same one.
    """
    largest = np.abs(values).max(initial=0.0)
    if np.ptp(values) <= ROUNDING * largest:
        values = np.zeros(len(values))
    elif np.isfinite(largest):
        values = np.round(values / (16 * EPS * largest))
    order = np.argsort(values, kind="stable")
    begins_group = np.diff(values[order], prepend=np.nan) != 0
    group_sizes = np.add.reduceat(counts[:, order], np.flatnonzero(begins_group), axis=1)
    mean_ranks = np.cumsum(group_sizes, axis=1) - (group_sizes - 1) / 2
    group_of = np.empty(len(values), dtype=np.int64)
    group_of[order] = np.cumsum(begins_group) - 1
    return np.asarray(mean_ranks)[:, group_of]


def resampled(
    metric: Metric, outputs: Outputs, *, resamples: int = RESAMPLES, seed: int = 0
) -> Array:
    """Return the metric of every resample, (resamples,); the same seed draws the same examples."""
    unit_of = _units(outputs)
    n_units = int(unit_of.max()) + 1
    values = []
    rng = np.random.default_rng(seed)
    most_rows = max(1, _MOST_COUNTS // len(unit_of))
    for start in range(0, resamples, most_rows):
        rows = min(most_rows, resamples - start)
        drawn = rng.integers(0, n_units, size=(rows, n_units))
        cells = drawn + n_units * np.arange(rows)[:, None]  # Of a flat table (resample, unit)
        counts = np.bincount(cells.ravel(), minlength=rows * n_units).reshape(rows, n_units)
        values.append(metric(outputs, counts.astype(float)[:, unit_of]))
    return np.concatenate(values)


def _units(outputs: Outputs) -> Array:
    """Return the unit that each example is drawn with, from 0: its cluster, or itself alone."""
    if CLUSTER not in outputs:
        return np.arange(size_of(outputs))
    _, cluster_numbers = np.unique(outputs[CLUSTER], return_inverse=True)
    return cluster_numbers


def drawn_units(outputs: Outputs) -> int:
    """Return the number of independent units that resamples draw: examples, or clusters."""
    return int(_units(outputs).max()) + 1


def value_of(metric: Metric, outputs: Outputs) -> float:
    """Return the metric with every example counted once."""
    return float(metric(outputs, np.ones((1, size_of(outputs))))[0])


def size_of(outputs: Outputs) -> int:
    """Return the number of examples: every array has one entry of each."""
    return len(next(iter(outputs.values())))
