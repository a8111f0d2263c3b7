r"""Metrics of a task over weighted examples, and their values in bootstrap resamples.

A bootstrap resample draws n examples with replacement; all that a metric needs of it is how often
each example was drawn. Every metric here therefore takes counts (resamples, n) and gives one value
per resample, without ever copying examples: of three examples the counts [[1, 1, 1], [2, 0, 1]]
give the metric itself, and that of a resample with the first example twice and the second not. The
counts depend on the seed and n alone, so that two models are always compared on the same resamples.
Outputs may have an array :data:`CLUSTER`: examples with the same number (questions on one
paragraph) are not independent, and are drawn together.

The class of a metric says which interval it has (:mod:`headscope.stats.paired_change`):
:class:`Rate`, the share of examples that are right; :data:`Counted`, where right answers are
counted some other way; any other function has continuous values. At the end, :func:`resampled`
draws the resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS, ROUNDING

#: What a task measured, as arrays by name whose first axis is the example: {"predicted": (n,),
#: "label": (n,)}, say.
Outputs = Mapping[str, Array]
#: A metric: (outputs, counts (resamples, n)) -> one value per resample.
Metric = Callable[[Outputs, Array], Array]

CLUSTER = "cluster"  # Name of the array that says which examples belong together.
RESAMPLES = 1000  # Resamples of a bootstrap.
_MOST_COUNTS = 1 << 20  # Counts (resamples, n) held at a time: about ten arrays of 8 MiB.
_TINY = 1e-300  # In place of a divisor of 0


def mean_of(name: str, scale: float = 1.0) -> Metric:
    """Return the metric that is the mean of one per-example array, times ``scale``."""

    def mean(outputs: Outputs, counts: Array) -> Array:
        return np.asarray(scale * (counts @ outputs[name]) / counts.sum(axis=1))

    return mean


def ratio_of(total: str, size: str, scale: float = 1.0) -> Metric:
    """Return the metric that is the sum of one array over that of another, times ``scale``.

    It is a mean over parts of examples: ``ratio_of("loss", "tokens")`` is the loss of a token.
    """

    def ratio(outputs: Outputs, counts: Array) -> Array:
        sizes = np.maximum(counts @ outputs[size], _TINY)
        return np.asarray(scale * (counts @ outputs[total]) / sizes)

    return ratio


@dataclass(frozen=True)
class Rate:
    """Share of examples that are right, times 100."""

    right: Callable[[Outputs], Array]  # From outputs to an array of bool or of 0 and 1, (n,)

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample."""
        return np.asarray(100.0 * (counts @ self.right(outputs)) / counts.sum(axis=1))


def _predicted_right(outputs: Outputs) -> Array:
    """Return 1 for each example whose prediction is its label, else 0."""
    return np.asarray(outputs["predicted"] == outputs["label"], dtype=float)


#: Share of examples whose ``predicted`` is their ``label``, times 100.
accuracy = Rate(_predicted_right)


def rate_of(name: str) -> Rate:
    """Return the rate of one per-example array of 0 and 1."""
    return Rate(lambda outputs: outputs[name])


@dataclass(frozen=True)
class CountedF1:
    """F1 of predicted and right items (entities, tokens), 2 hits / (predicted + right), times 100.

    0 where nothing is predicted and nothing right. The first three fields are the names of arrays
    that count the items of each example.
    """

    hits: str  # Predicted items that are right
    predicted: str
    right: str  # Items that are to be predicted
    assumed: float = 1.0  # Items by which an example is assumed to change where none was seen to

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample."""
        hits = counts @ outputs[self.hits]
        predicted = counts @ outputs[self.predicted]
        right = counts @ outputs[self.right]
        return np.asarray(200.0 * hits / np.maximum(predicted + right, _TINY))

    def with_two_more(
        self, outputs: Outputs, are_right: tuple[bool, bool], other: Outputs | None = None
    ) -> Outputs:
        """Add two examples, each right or wrong, to outputs, for the interval of a metric.

        ``other`` are the outputs of the model that these are compared with. The two have as many
        items as change in an example that differs between both models: the mean over the examples
        that do, and one of the assumed size. Without another model they have one item.
        """
        size = 1.0
        names = (self.hits, self.predicted, self.right)
        if other is not None:
            changes = np.max([np.abs(outputs[name] - other[name]) for name in names], axis=0)
            n_changed = np.count_nonzero(changes)
            size = float((self.assumed + changes.sum()) / (1 + n_changed))
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
    """A metric of a confusion table: how often each class is predicted for each label."""

    #: From confusion tables (resamples, labels, predicted) to one value per resample
    value_of_table: Callable[[Array], Array]

    def __call__(self, outputs: Outputs, counts: Array) -> Array:
        """Give one value per resample."""
        # Number the classes that occur from 0.
        labels = outputs["label"]
        n = len(labels)
        labels_and_predicted = np.concatenate([labels, outputs["predicted"]])
        classes, numbers = np.unique(labels_and_predicted, return_inverse=True)
        n_classes = len(classes)

        # Count the examples in each cell of the table, as a product with the counts.
        cells = numbers[:n] * n_classes + numbers[n:]  # of each example, in a flattened table
        is_in_cell = np.zeros((n, n_classes**2))
        is_in_cell[np.arange(n), cells] = 1.0
        tables = np.asarray(counts @ is_in_cell).reshape(-1, n_classes, n_classes)
        return self.value_of_table(tables)

    def with_two_more(
        self, outputs: Outputs, are_right: tuple[bool, bool], other: Outputs | None = None
    ) -> Outputs:
        """Add two examples of the commonest class, each predicted right or as the next class.

        ``other``, the outputs of another model, makes no difference.
        """
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
    hits = tables.diagonal(axis1=1, axis2=2)  # [resamples, classes]
    total = tables.sum(axis=1) + tables.sum(axis=2)  # 2 TP + FP + FN of each class
    with np.errstate(invalid="ignore"):
        f1 = np.where(total > 0, 2.0 * hits / np.maximum(total, _TINY), 0.0)
    return np.asarray(100.0 * f1.sum(axis=1) / (total > 0).sum(axis=1))


def _matthews(tables: Array) -> Array:
    """Correlate labels with predictions, by tables (resamples, label, predicted)."""
    n = tables.sum(axis=(1, 2))
    label = tables.sum(axis=2)
    predicted = tables.sum(axis=1)
    agreement = tables.trace(axis1=1, axis2=2) * n - (label * predicted).sum(axis=1)
    variances = (n**2 - (label**2).sum(axis=1)) * (n**2 - (predicted**2).sum(axis=1))
    scale = np.sqrt(np.maximum(variances, _TINY))
    return np.where(variances > 0, 100.0 * agreement / scale, 0.0)


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
    variances = (counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1)
    scale = np.sqrt(np.maximum(variances, _TINY))
    return np.where(variances > 0, 100.0 * covariance / scale, 0)


def _ranks(values: Array, counts: Array) -> Array:
    """Return the mean rank of each example's value in every resample: (resamples, n).

    The order of the values is the same in all resamples, so one sort serves them all: a group of
    equal values that was drawn c times after b smaller ones has ranks b + 1 ... b + c. Values that
    differ by rounding count as equal: texts that are equal to the model have a cosine of 1 up to
    rounding, and a model without attention gives all pairs the same one.
    """
    # Round values to a grid of 16 EPS of the largest.
    largest = np.abs(values).max(initial=0.0)
    if np.ptp(values) <= ROUNDING * largest:
        values = np.zeros(len(values))
    elif np.isfinite(largest):
        values = np.round(values / (16 * EPS * largest))

    # Equal values are neighbours in order, and make a group.
    order = np.argsort(values, kind="stable")
    begins_group = np.diff(values[order], prepend=np.nan) != 0  # the first one always does
    group_of = np.empty(len(values), dtype=np.int64)
    group_of[order] = np.cumsum(begins_group) - 1

    # Of ranks b + 1 ... b + c the mean is (b + c) - (c - 1) / 2.
    group_sizes = np.add.reduceat(counts[:, order], np.flatnonzero(begins_group), axis=1)
    mean_ranks = np.cumsum(group_sizes, axis=1) - (group_sizes - 1) / 2  # [resamples, groups]
    return np.asarray(mean_ranks)[:, group_of]


def resampled(
    metric: Metric, outputs: Outputs, *, resamples: int = RESAMPLES, seed: int = 0
) -> Array:
    """Return the metric of every resample, (resamples,); the same seed draws the same examples."""
    unit_of = _units(outputs)  # [n]
    n_units = int(unit_of.max()) + 1
    values = []
    rng = np.random.default_rng(seed)
    most_at_a_time = max(1, _MOST_COUNTS // len(unit_of))
    for start in range(0, resamples, most_at_a_time):
        n_resamples = min(most_at_a_time, resamples - start)
        drawn = rng.integers(0, n_units, size=(n_resamples, n_units))
        # How often each unit was drawn: one count over all cells of a table (resample, unit).
        cells = drawn + n_units * np.arange(n_resamples)[:, None]
        flat_counts = np.bincount(cells.ravel(), minlength=n_resamples * n_units)
        counts_of_units = flat_counts.reshape(n_resamples, n_units).astype(float)
        counts = counts_of_units[:, unit_of]  # [n_resamples, n]
        values.append(metric(outputs, counts))
    return np.concatenate(values)


def _units(outputs: Outputs) -> Array:
    """Return the number of the unit that each example belongs to, from 0.

    A unit is drawn as one: a cluster of examples, or an example of its own.
    """
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
