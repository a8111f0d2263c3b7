"""Sum up runs with several seeds on the same examples: cells, differences, stability, baselines.

A :class:`~headscope.analyses.transfer.plan.Cell` is one *variant* (what is trained: ``layernorm``,
``attention``, ``all``, or ``head``, the classifier alone), from pretrained or random weights, with
one number of training examples (its *size*); its runs differ in their seed. The learning rate that
a search found best for a cell is its best rate; ``factor`` is a run's rate as a multiple of it. A
run has *diverged* if its loss ended well above its start or was not finite; it has *failed* if its
accuracy is no higher than that of always answering the most frequent class. All accuracies are
times 100.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.analyses.transfer.fine_tuning import Outcome
from headscope.analyses.transfer.intervals import crossed, share_difference, spread_ratio
from headscope.analyses.transfer.labelled import Labelled, subset
from headscope.analyses.transfer.plan import EQUAL, FACTORS, STABILITY, Cell
from headscope.analyses.transfer.result import (
    TransferBaseline,
    TransferCell,
    TransferDifference,
    TransferDivergence,
    TransferRun,
    TransferSpread,
)
from headscope.core.accumulator import Array
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import accuracy
from headscope.stats.paired_change import interval_of

#: What LayerNorm alone is compared with, both from pretrained weights. EQUAL are the variants that
#: train as many numbers as LayerNorm has: some weights, some biases, LoRA.
_COMPARED = ("head", *EQUAL, "all_biases", "attention", "all")


@dataclass(frozen=True)
class MeasuredRun:
    """A run, and which test examples it classified rightly."""

    row: TransferRun  # The run's row in the result
    hits: Array  # (test,): 1 for an example that it classified rightly, else 0

    @property
    def accuracy(self) -> float:
        """Share of the test examples that it classified rightly, times 100."""
        return float(100 * self.hits.mean())


Runs = Mapping[Cell, Sequence[MeasuredRun]]  # Runs of each cell at its best rate, seed by seed


def measured_run(
    cell: Cell, *, seed: int, factor: float, rate: float, outcome: Outcome, data: Labelled
) -> MeasuredRun:
    """Classify the test part by the model of a run, and describe the run."""
    labels = data.test.labels.numpy()
    predicted = outcome.predict(data.test)
    measured = interval_of(accuracy, {"predicted": predicted, "label": labels})
    majority = 100 * float(_majority(data, cell.size, seed).mean())
    row = TransferRun(
        variant=cell.variant,
        weights=cell.weights,
        size=cell.size,
        seed=seed,
        factor=factor,
        rate=rate,
        accuracy=measured,
        kept_step=outcome.kept_step,
        steps=outcome.curve[-1].step,
        diverged=outcome.diverged,
        failed=float(measured) <= majority,  # no better than the most frequent training class
        curve=outcome.curve,
    )
    return MeasuredRun(row, (predicted == labels).astype(float))


def cell_row(
    cell: Cell, runs: Sequence[MeasuredRun], *, parameters: int, optimum: str
) -> TransferCell:
    """Sum up the runs of a cell.

    ``parameters`` says how many numbers were trained, ``optimum`` where the best rate lies among
    the rates that were tried.
    """
    accuracies = [run.accuracy for run in runs]
    return TransferCell(
        variant=cell.variant,
        weights=cell.weights,
        size=cell.size,
        parameters=parameters,
        rate=runs[0].row.rate,
        seeds=len(runs),
        accuracy=_accuracy([run.hits for run in runs]),
        spread=float(np.std(accuracies, ddof=1)) if len(runs) > 1 else None,
        diverged=sum(run.row.diverged for run in runs),
        failed=sum(run.row.failed for run in runs),
        optimum=optimum,
    )


def differences(runs: Runs) -> Iterator[TransferDifference]:
    """Yield the accuracy of one cell minus that of another of the same size.

    LayerNorm minus every other variant, every variant minus ``head``, which trains the classifier
    alone; and each variant from pretrained weights minus the same one from random weights.
    """
    for cell, other in itertools.product(runs, runs):
        if not _are_compared(cell, other):
            continue
        # Runs of the same seeds, which draw the same examples. Where a time budget left one of the
        # cells fewer runs, the other's last ones have no partner.
        pairs = list(zip(runs[cell], runs[other], strict=False))
        yield TransferDifference(
            variant=cell.variant,
            weights=cell.weights,
            other=other.variant,
            other_weights=other.weights,
            size=cell.size,
            seeds=len(pairs),
            points=_points(np.stack([run.hits - other_run.hits for run, other_run in pairs])),
        )


def _are_compared(cell: Cell, other: Cell) -> bool:
    """Whether :func:`differences` subtracts the accuracy of the other cell from this one's."""
    if cell.size != other.size or cell.weights == "random":
        return False
    if other.weights == "random":  # what pretraining adds
        return cell.variant == other.variant
    if cell.variant == "layernorm":  # LayerNorm against every other variant
        return other.variant in _COMPARED
    # what training the variant adds to training the classifier alone
    return other.variant == "head" and cell.variant != "head"


def _points(values: Array) -> Estimate:
    """Return 100 times the mean of hits, or of differences of hits, (seeds, examples).

    Its interval covers new seeds and new examples.
    """
    # ``floor``, in points of a single example: one example more or less counts 100. The standard
    # error is taken to be no less than 100 / examples.
    return crossed(100 * values, floor=100.0)


def _accuracy(hits: Sequence[Array]) -> Estimate:
    """Return the share of hits times 100; its interval stays between 0 and 100."""
    mean = _points(np.stack(hits))
    if mean.low is not None and mean.high is not None:
        mean = Estimate(mean.value, max(mean.low, 0.0), min(mean.high, 100.0))
    return mean


def divergence(runs: Iterable[TransferRun], smallest: int) -> Iterator[TransferDivergence]:
    """Yield how many runs of attention and LayerNorm diverged at each multiple of their best rate.

    The multiples are 1, 3 and 10, from pretrained weights with ``smallest`` training examples. As
    many runs are counted of each variant and multiple: the fewest that there are of any.
    """
    diverged: dict[tuple[str, float], list[bool]] = {}  # one entry for each run
    for run in runs:
        if (run.weights, run.size) == ("pretrained", smallest):
            diverged.setdefault((run.variant, run.factor), []).append(run.diverged)
    # STABILITY is ("attention", "layernorm"), FACTORS are the multiples beside 1: (3, 10)
    cases = list(itertools.product(STABILITY, (1.0, *FACTORS)))
    n_counted = min(len(diverged.get(case, ())) for case in cases)
    if n_counted == 0:
        return
    for variant, factor in cases:
        yield TransferDivergence(
            variant=variant,
            weights="pretrained",
            size=smallest,
            factor=factor,
            runs=n_counted,
            diverged=sum(diverged[variant, factor][:n_counted]),
        )


def spreads(
    runs: Runs, counts: Sequence[TransferDivergence], majority: float, smallest: int
) -> Iterator[TransferSpread]:
    """Yield how much more attention varies over seeds than LayerNorm; nothing if one is missing.

    Both from pretrained weights, with ``smallest`` training examples. ``majority`` is the accuracy
    of always answering the most frequent class; ``counts`` are the results of :func:`divergence`.
    """
    cells = [cell for cell in runs if (cell.weights, cell.size) == ("pretrained", smallest)]
    by_name = {cell.variant: runs[cell] for cell in cells}
    if not set(STABILITY) <= by_name.keys():
        return
    attention, layernorm = STABILITY

    # Runs at the best rate: the ratio of the standard deviations of their accuracies
    attention_runs = by_name[attention]
    layernorm_runs = by_name[layernorm]
    n_examples = len(attention_runs[0].hits)
    ratio = spread_ratio(
        [run.accuracy for run in attention_runs],
        [run.accuracy for run in layernorm_runs],
        floor=100 / n_examples,  # one example more, in points of accuracy: over all examples
    )

    # Runs at all multiples of the best rate: the difference of the shares that diverged
    attention_counts = [count for count in counts if count.variant == attention]
    layernorm_counts = [count for count in counts if count.variant == layernorm]
    attention_diverged = sum(count.diverged for count in attention_counts)
    layernorm_diverged = sum(count.diverged for count in layernorm_counts)
    tries = sum(count.runs for count in attention_counts)  # as many as of LayerNorm
    more_diverged = UNKNOWN
    if tries > len(attention_counts):  # several runs of each factor, not a single one
        more_diverged = share_difference(attention_diverged, tries, layernorm_diverged, tries)

    yield TransferSpread(
        variant=attention,
        other=layernorm,
        size=smallest,
        seeds=len(attention_runs),
        other_seeds=len(layernorm_runs),
        ratio=ratio,
        # The result calls diverged runs bad.
        bad=attention_diverged,
        other_bad=layernorm_diverged,
        more_bad=more_diverged,
        tries=tries,
        learned=any(_is_above(majority, run) for run in attention_runs),
    )


def _is_above(majority: float, run: MeasuredRun) -> bool:
    """Whether a run's accuracy lies above that of the majority class by twice its interval.

    Twice, since the best of several runs at chance may well exceed it once: with an accuracy of 70
    and an interval from 60, the majority class must lie below 50.
    """
    low = run.row.accuracy.low or 0.0
    lowest = 2 * low - run.accuracy  # accuracy - 2 * (accuracy - low)
    return lowest > majority


def baselines(
    data: Labelled, sizes: Sequence[int], seeds: Sequence[int]
) -> Iterator[TransferBaseline]:
    """Yield the accuracies of two classifiers that need no model, with the same training examples.

    One always answers with the most frequent class, the other one goes by the words alone.
    """
    labels = data.test.labels.numpy()
    for size in sizes:
        hits_of_majority = [_majority(data, size, seed).astype(float) for seed in seeds]
        yield TransferBaseline("majority", size, _accuracy(hits_of_majority))
        hits_of_words: list[Array] = []
        for seed in seeds:
            train = subset(data.train, size, seed)
            predicted = naive_bayes(train.words, train.labels.tolist(), data.test.words)
            hits_of_words.append((predicted == labels).astype(float))
        yield TransferBaseline("words", size, _accuracy(hits_of_words))


def _majority(data: Labelled, size: int, seed: int) -> Array:
    """Return which test examples are of the most frequent training class, (test,) bool."""
    train = subset(data.train, size, seed)
    most_frequent = int(np.bincount(train.labels.numpy()).argmax())
    return np.asarray(data.test.labels.numpy() == most_frequent)


def naive_bayes(
    train: Sequence[Sequence[str]], labels: Sequence[int], test: Sequence[Sequence[str]]
) -> Array:
    """Predict classes from the words that a text holds, by multinomial naive Bayes.

    Manning, Raghavan & Schütze 2008, Introduction to Information Retrieval, section 13.2.

    Shapes: returns (test,).
    """
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(itertools.chain(*train)))}
    # how often each word occurs in each class, (classes, words); one more, so that none is 0
    table = np.ones((max(labels) + 1, len(vocabulary)))
    for words, label in zip(train, labels, strict=True):
        for word in words:
            table[label, vocabulary[word]] += 1
    log_likelihood = np.log(table / table.sum(axis=1, keepdims=True))
    shares = np.bincount(labels) / len(labels)
    with np.errstate(divide="ignore"):
        prior = np.log(shares)  # a class that was never seen is never predicted
    predicted: list[int] = []
    for words in test:
        columns = [vocabulary[word] for word in words if word in vocabulary]
        predicted.append(int(np.argmax(prior + log_likelihood[:, columns].sum(axis=1))))
    return np.array(predicted)
