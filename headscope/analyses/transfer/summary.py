"""Sum up runs with several seeds on the same examples, with intervals.

References
----------
Satterthwaite 1946, Biometrics Bulletin 2 (degrees of freedom of a sum of variances); Scheffé 1959,
The Analysis of Variance, chapter 7 (two crossed random factors); Brown & Forsythe 1974, JASA 69
(distances from the median); Newcombe 1998, Statistics in
Medicine 17 (difference of two shares, method 10).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from headscope.analyses.transfer.fine_tuning import Outcome
from headscope.analyses.transfer.labelled import Labelled, subset
from headscope.analyses.transfer.result import (
    TransferBaseline,
    TransferCase,
    TransferCell,
    TransferDifference,
    TransferDivergence,
    TransferRun,
    TransferSpread,
)
from headscope.core.accumulator import Array
from headscope.core.rounding import above
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import accuracy
from headscope.stats.paired_change import interval_of
from headscope.stats.statistics import wilson

#: Variants whose spread over seeds and divergence are compared at the smallest size.
SPREAD = ("attention", "layernorm")
FACTORS = (3.0, 10.0)  # Multiples of the best rate at which divergence is counted as well.
#: Variants that are compared with LayerNorm as equally large ones.
EQUAL = ("weights", "biases", "lora")


@dataclass(frozen=True)
class Cell(TransferCase):
    """Runs that differ in their seed alone."""

    seeds: int  # wanted runs


def crossed(values: Array, floor: float = 1.0) -> Estimate:
    """Return a mean over seeds and examples; its interval covers new seeds and new examples.

    Shapes: ``values`` (seeds, examples).
    """
    seeds, examples = values.shape
    mean = float(values.mean())
    if seeds < 2 or examples < 2:
        return Estimate(mean)
    by_seed = values.mean(axis=1)
    by_example = values.mean(axis=0)
    rest = values - by_seed[:, None] - by_example + mean
    free = np.array([seeds - 1, examples - 1, (seeds - 1) * (examples - 1)])
    squares = np.array(
        [
            examples * np.square(by_seed - mean).sum(),
            seeds * np.square(by_example - mean).sum(),
            np.square(rest).sum(),
        ]
    )
    means = squares / free / values.size
    variance = max(means[0] + means[1] - means[2], means[0], means[1])
    spread = float((np.square(means) / free).sum())
    free_of_sum = variance**2 / spread if spread > 0 else float(seeds - 1)
    error = max(float(np.sqrt(variance)), floor / examples)
    half = float(stdtrit(max(free_of_sum, 1.0), 0.975)) * error
    return Estimate.around(mean, half)


#: Ratios of two spreads that are tried, from a thousandth to a thousand times, in steps of 2%.
_RATIOS = np.geomspace(1e-3, 1e3, 699)
_TINY = 1e-12  # A variance below this is none: runs that are equal.
_EQUAL = 1e-9  # Logarithms of ratios that are equal but for rounding.
_DEALS = 2000  # Ways of dealing runs to two variants that are tried, at most.


def spread_ratio(ours: ArrayLike, theirs: ArrayLike, floor: float = 0.0) -> Estimate:
    """Return the ratio of two standard deviations over seeds, with a permutation interval.

    What is dealt are the runs' squared distances from their variant's median (Brown & Forsythe
    1974), ours divided by the square of a ratio. That ratio lies inside where more than 2.5% of the
    deals have as much for us, and more than 2.5% as little. Unlike the F interval it asks for no
    normal values, which accuracies of diverged runs are not. Unknown where either has fewer than
    two values or no spread; the interval is unknown where there are too few deals for it (three
    seeds of each). It is looked for between a thousandth and a thousand.

    No deviation is taken to be below ``floor``, what one example more would add: runs that agree on
    all examples that were seen may differ on others.
    """
    a = np.asarray(ours, dtype=float)
    b = np.asarray(theirs, dtype=float)
    if min(len(a), len(b)) < 2:
        return UNKNOWN
    # A spread that is only rounding counts as none.
    spreads = (float(x.std(ddof=1)) if above(x.max(), x.min()) else 0.0 for x in (a, b))
    mine, other = (max(spread, floor) for spread in spreads)
    if not mine or not other:
        return UNKNOWN
    ours_square, theirs_square = map(_from_median, (a, b))
    dealt = _deals(len(ours_square), len(theirs_square))
    inside = []
    if len(dealt) * 0.025 <= 1:  # not even the observed deal alone is rare enough
        return Estimate(mine / other)
    for ratio in _RATIOS:
        squares = np.concatenate([ours_square / ratio**2, theirs_square])
        first = dealt @ squares / len(ours_square)
        second = ~dealt @ squares / len(theirs_square)
        gained = np.log(np.maximum(first, floor**2 + _TINY) / np.maximum(second, floor**2 + _TINY))
        as_large = float((gained >= gained[0] - _EQUAL).mean())
        as_small = float((gained <= gained[0] + _EQUAL).mean())
        inside.append(min(as_large, as_small) > 0.025)
    if not any(inside):
        return Estimate(mine / other)
    low, high = _RATIOS[np.flatnonzero(inside)[[0, -1]]].tolist()
    return Estimate(mine / other, min(low, mine / other), max(high, mine / other))


def _from_median(values: Array) -> Array:
    """Return squared distances from the median, without that of the median itself (always 0)."""
    squares = np.sort(np.square(values - np.median(values)))
    return squares[len(values) % 2 :]


def _deals(ours: int, theirs: int) -> Array:
    """Return which runs each deal gives to the first variant, bool, (deals, runs).

    The first is that which was observed; the others are all there are, or random ones.
    """
    runs = ours + theirs
    if math.comb(runs, ours) <= _DEALS:
        chosen = np.array(list(itertools.combinations(range(runs), ours)))
    else:
        rng = np.random.default_rng(0)
        chosen = rng.random((_DEALS - 1, runs)).argsort(axis=1)[:, :ours]
        chosen = np.concatenate([[np.arange(ours)], chosen])
    dealt = np.zeros((len(chosen), runs), dtype=bool)
    np.put_along_axis(dealt, chosen, True, axis=1)
    return dealt


def share_difference(hits: int, trials: int, others: int, other_trials: int) -> Estimate:
    """Return hits / trials - others / other_trials with Newcombe's interval from Wilson's."""
    p = hits / trials
    q = others / other_trials
    p_low, p_high = map(float, wilson(hits, trials))
    q_low, q_high = map(float, wilson(others, other_trials))
    low = np.hypot(p - p_low, q_high - q)
    high = np.hypot(p_high - p, q - q_low)
    return Estimate(p - q, float(p - q - low), float(p - q + high))


def naive_bayes(
    train: Sequence[Sequence[str]], labels: Sequence[int], test: Sequence[Sequence[str]]
) -> Array:
    """Predict classes from the words that a text holds, by multinomial naive Bayes.

    Manning, Raghavan & Schütze 2008, Introduction to Information Retrieval, section 13.2.

    Shapes: returns (test,).
    """
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(itertools.chain(*train)))}
    table = np.ones((max(labels) + 1, len(vocabulary)))
    for words, label in zip(train, labels, strict=True):
        for word in words:
            table[label, vocabulary[word]] += 1
    log_likelihood = np.log(table / table.sum(axis=1, keepdims=True))
    shares = np.bincount(labels) / len(labels)
    with np.errstate(divide="ignore"):
        prior = np.log(shares)  # a class that was never seen is never predicted
    columns = ([vocabulary[word] for word in words if word in vocabulary] for words in test)
    return np.array([np.argmax(prior + log_likelihood[:, c].sum(axis=1)) for c in columns])


#: What LayerNorm alone is compared with, both from pretrained weights.
_COMPARED = ("head", *EQUAL, "all_biases", "attention", "all")


@dataclass(frozen=True)
class Done:
    """A run, and which test examples it classified rightly."""

    row: TransferRun
    hits: Array  # (test,): 1 where it did


Runs = Mapping[Cell, Sequence[Done]]  # Runs of each cell at its best rate, seed by seed.


def run_of(cell: Cell, seed: int, factor: float, rate: float, out: Outcome, data: Labelled) -> Done:
    """Classify the test part, and describe the run."""
    outputs = {"predicted": out.predict(data.test), "label": data.test.labels.numpy()}
    measured = interval_of(accuracy, outputs)
    majority = 100 * float(_majority(data, cell.size, seed).mean())
    row = TransferRun(
        cell.variant,
        cell.weights,
        cell.size,
        seed,
        factor,
        rate,
        accuracy=measured,
        kept_step=out.kept_step,
        steps=out.curve[-1].step,
        diverged=out.diverged,
        failed=float(measured) <= majority,
        curve=out.curve,
    )
    return Done(row, (outputs["predicted"] == outputs["label"]).astype(float))


def cell_row(cell: Cell, done: Sequence[Done], parameters: int, optimum: str) -> TransferCell:
    """Sum up the runs of a cell."""
    accuracies = [100 * d.hits.mean() for d in done]
    return TransferCell(
        cell.variant,
        cell.weights,
        cell.size,
        parameters,
        rate=done[0].row.rate,
        seeds=len(done),
        accuracy=_accuracy([d.hits for d in done]),
        spread=float(np.std(accuracies, ddof=1)) if len(done) > 1 else None,
        diverged=sum(d.row.diverged for d in done),
        failed=sum(d.row.failed for d in done),
        optimum=optimum,
    )


def differences(runs: Runs) -> Iterator[TransferDifference]:
    """Yield LayerNorm minus every other variant, at each size, and minus itself on random weights.

    Also everything minus the head alone, and each variant minus itself on random weights.
    """
    for ours, theirs in itertools.product(runs, runs):
        if ours.size != theirs.size or ours.weights == "random":
            continue
        if theirs.weights == "random":
            compared = ours.variant == theirs.variant
        elif ours.variant == "layernorm":
            compared = theirs.variant in _COMPARED
        else:
            compared = theirs.variant == "head" != ours.variant
        if not compared:
            continue
        a = runs[ours]
        b = runs[theirs]
        both = min(len(a), len(b))
        pairs = zip(a[:both], b[:both], strict=True)
        yield TransferDifference(
            variant=ours.variant,
            weights=ours.weights,
            other=theirs.variant,
            other_weights=theirs.weights,
            size=ours.size,
            seeds=both,
            points=_points(np.stack([x.hits - y.hits for x, y in pairs])),
        )


def _points(values: Array) -> Estimate:
    return crossed(100 * values, floor=100.0)


def _accuracy(hits: Sequence[Array]) -> Estimate:
    mean = _points(np.stack(hits))
    if mean.low is not None and mean.high is not None:
        mean = Estimate(mean.value, max(mean.low, 0.0), min(mean.high, 100.0))
    return mean


def divergence(runs: Iterable[TransferRun], smallest: int) -> Iterator[TransferDivergence]:
    """Yield how many runs of attention and LayerNorm diverged, as many runs of each factor."""
    by_case: dict[tuple[str, float], list[bool]] = {}
    for run in runs:
        if (run.weights, run.size) == ("pretrained", smallest):
            by_case.setdefault((run.variant, run.factor), []).append(run.diverged)
    cases = [(name, factor) for name in SPREAD for factor in (1.0, *FACTORS)]
    n = min(len(by_case.get(case, ())) for case in cases)
    if n:
        for name, factor in cases:
            bad = sum(by_case[name, factor][:n])
            yield TransferDivergence(name, "pretrained", smallest, factor, n, bad)


def spreads(
    runs: Runs, counts: Sequence[TransferDivergence], majority: float, smallest: int
) -> Iterator[TransferSpread]:
    """Yield how attention and LayerNorm vary over seeds at the smallest size.

    ``majority`` is the accuracy of the most frequent class there.
    """
    cells = [cell for cell in runs if (cell.weights, cell.size) == ("pretrained", smallest)]
    by_name = {cell.variant: runs[cell] for cell in cells}
    if not set(SPREAD) <= by_name.keys():
        return
    ours, theirs = (by_name[name] for name in SPREAD)
    accuracies, others = ([100 * done.hits.mean() for done in side] for side in (ours, theirs))
    bad, other_bad = (sum(c.diverged for c in counts if c.variant == name) for name in SPREAD)
    tries = sum(c.runs for c in counts if c.variant == SPREAD[0])
    several = tries > len(counts) // 2
    # Twice the interval, since the best of several runs at chance may exceed it once.
    lows = (done.row.accuracy.low or 0.0 for done in ours)
    yield TransferSpread(
        variant=SPREAD[0],
        other=SPREAD[1],
        size=smallest,
        seeds=len(ours),
        other_seeds=len(theirs),
        ratio=spread_ratio(accuracies, others, 100 / len(ours[0].hits)),
        bad=bad,
        other_bad=other_bad,
        more_bad=share_difference(bad, tries, other_bad, tries) if several else UNKNOWN,
        tries=tries,
        learned=any(2 * a - b > majority for a, b in zip(lows, accuracies, strict=True)),
    )


def baselines(
    data: Labelled, sizes: Sequence[int], seeds: Sequence[int]
) -> Iterator[TransferBaseline]:
    """Yield what the majority class and the words alone earn with the same training examples."""
    gold = data.test.labels.numpy()
    for size in sizes:
        majority = []
        words = []
        for seed in seeds:
            train = subset(data.train, size, seed)
            predicted = naive_bayes(train.words, train.labels.tolist(), data.test.words)
            words.append((predicted == gold).astype(float))
            majority.append(_majority(data, size, seed).astype(float))
        yield TransferBaseline("majority", size, _accuracy(majority))
        yield TransferBaseline("words", size, _accuracy(words))


def _majority(data: Labelled, size: int, seed: int) -> Array:
    """Return which test examples are of the most frequent training class."""
    train = subset(data.train, size, seed)
    most = int(np.bincount(train.labels.numpy()).argmax())
    return np.asarray(data.test.labels.numpy() == most)
