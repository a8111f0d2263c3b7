"""What ``headscope transfer`` measured, as values.

Small parts first; :class:`TransferResult` at the end holds all of them. A *cell* is one variant
(what was trained), from one kind of weights, with one number of training examples: all of its runs,
which differ in their seed. ``Compare`` and ``Setting`` beside a field say that two results are
compared by it, or have to agree in it to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from headscope.session.measured import Measured
from headscope.stats.compared import Compare, ComparedEstimate, Setting
from headscope.stats.effects import columns
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class CurvePoint:
    """What a run had reached after some steps."""

    step: int  # Batches trained on; 0 is the untrained classifier on the frozen model
    #: Mean cross-entropy in nats: over the batches since the point before (over all training
    #: examples at step 0), and over the validation part. None where it is not finite.
    train_loss: float | None
    validation_loss: float | None
    validation_accuracy: float  # Times 100


@dataclass(frozen=True)
class TransferCase:
    """What was trained, from which weights, with how many examples: begins most rows below."""

    #: What was trained with the classifier: ``head`` (nothing), ``layernorm``, ``biases``,
    #: ``weights``, ``lora``, ``all_biases``, ``attention`` or ``all``.
    variant: str
    weights: str  # ``pretrained`` or ``random``: what the model started from
    size: int  # Training examples

    @property
    def name(self) -> str:
        """Such as ``lora, pretrained, 1000 examples``."""
        return f"{self.variant}, {self.weights}, {self.size} examples"


@dataclass(frozen=True)
class TransferRun(TransferCase):
    """One fine-tuning."""

    #: Draws the training examples and their order, the classifier's first weights, parameters
    #: where a variant trains random ones, and the model's weights where these are random.
    seed: int
    #: Its learning rate in units of its cell's best one: 1, or 3 or 10 for runs of which only
    #: counts whether they diverged. Every factor has different seeds.
    factor: float
    rate: float  # Learning rate
    #: On the test part, times 100, at the step with the lowest validation loss; the interval is
    #: over the test examples.
    accuracy: Estimate
    kept_step: int  # The step that the accuracy is of
    steps: int  # The last step that was trained
    #: A loss was not finite, or the training loss ended more than a tenth above its start.
    diverged: bool
    failed: bool  # The accuracy is no higher than that of the most frequent training class
    curve: tuple[CurvePoint, ...]  # By step


@dataclass(frozen=True)
class TransferDivergence(TransferCase):
    """How many runs diverged at a multiple of a variant's best rate.

    As many runs are counted at every multiple, and of every variant.
    """

    factor: float  # 1, 3 or 10
    runs: int  # Runs that were counted
    #: How many of them diverged
    diverged: Annotated[int, Compare(words="{0.diverged} of {0.runs}")]

    @property
    def name(self) -> str:
        """Such as ``lora, 1000 examples, 3 times its best rate``."""
        return f"{self.variant}, {self.size} examples, {self.factor:g} times its best rate"


@dataclass(frozen=True)
class TransferTry(TransferCase):
    """One learning rate that the search for a cell's best one tried, in a run of the first seed."""

    rate: float
    validation_loss: float | None  # Lowest of that run; None where no loss was finite
    chosen: bool  # Whether it is the best one, which all seeds use


@dataclass(frozen=True)
class TransferCell(TransferCase):
    """All runs of one variant, from one kind of weights, with one number of examples."""

    parameters: int  # Trained numbers, without the classifier's
    rate: float  # Learning rate of all runs
    seeds: int  # How many runs
    #: Mean over seeds, times 100; interval over seeds and test examples, unknown for one seed.
    accuracy: ComparedEstimate
    spread: float | None  # Standard deviation of the accuracy over seeds
    #: Runs that diverged, and that failed, as :class:`TransferRun` says
    diverged: Annotated[
        int, Compare("diverged or failed", words="{0.diverged}, {0.failed} of {0.seeds}")
    ]
    failed: int
    #: Where the rate lies among those that were tried: ``inside``; ``lowest``, where lower ones
    #: would train the classifier alone; at the ``edge``, so that a better one may lie beyond; or
    #: ``not searched``.
    optimum: Annotated[str, Compare("best rate")] = "not searched"


@dataclass(frozen=True)
class TransferBaseline:
    """The accuracy of a classifier that needs no model."""

    #: ``majority``: the most frequent training class. ``words``: naive Bayes on the words.
    name: str
    size: int  # Training examples
    #: On the test part, times 100; mean over seeds, which draw the training examples. Its interval
    #: is over seeds and test examples.
    accuracy: ComparedEstimate


@dataclass(frozen=True)
class TransferDifference:
    """Accuracy of one cell minus another's, seed by seed and example by example."""

    variant: str  # Of the first cell
    weights: str
    other: str  # Variant of the cell whose accuracy is subtracted
    other_weights: str
    size: int  # Training examples of both
    seeds: int  # Seeds of which both have a run
    points: Estimate  # Accuracy times 100; interval over seeds and test examples


@dataclass(frozen=True)
class TransferSpread:
    """How much more one variant's accuracy varies over seeds than another's, and diverges.

    From pretrained weights.
    """

    variant: str  # The first variant
    other: str  # The variant that it is compared with
    size: int  # Training examples
    seeds: int  # Runs of the first variant at its best rate
    other_seeds: int  # Runs of the other at its best rate
    #: Standard deviation of the accuracy over seeds, divided by the other's, with its permutation
    #: interval, no deviation taken to be below one test example; unknown for a single run.
    ratio: Estimate
    bad: int  # Runs of the first that diverged, at 1, 3 and 10 times its best rate
    other_bad: int  # Runs of the other that diverged, at the same multiples
    #: Share of the first's runs that diverged minus the other's, with Newcombe's interval; unknown
    #: from a single run at each multiple.
    more_bad: Estimate
    tries: int  # How many runs of each variant are counted in ``bad`` and ``other_bad``
    #: Whether a run of the first variant lies above the majority class by twice its interval; if
    #: none does, its runs may differ by chance alone.
    learned: bool


@dataclass(frozen=True)
class TransferMissed(TransferCase):
    """A run that the time budget did not reach."""

    seed: int  # Of the run
    factor: float = 1.0  # Times the best rate


@dataclass(frozen=True, repr=False)
class TransferResult(Measured):
    """What fine-tuning some of a model's parameters gives on a labelled task."""

    task: Annotated[str, Setting()]  # What is classified
    classes: tuple[str, ...]  # In the order of their numbers
    sizes: Annotated[tuple[int, ...], Setting()]  # Training examples of the runs, ascending
    validation_examples: int  # Examples by which step and rate are chosen
    test_examples: Annotated[int, Setting()]  # Examples on which accuracy is measured
    #: Training examples left out: in the test part too, or longer than the model's limit.
    dropped: int
    seeds: int  # Runs of a cell that were asked for
    spread_seeds: int  # The same, of ``attention`` and ``layernorm`` at the smallest size
    steps: Annotated[int, Setting()]  # Most steps of a run
    batch: Annotated[int, Setting()]  # Examples of a step
    budget: float  # Seconds that all runs together may take
    #: By size, kind of weights and variant.
    cells: Annotated[tuple[TransferCell, ...], Compare(where="{0.name}")]
    #: At every size.
    baselines: Annotated[tuple[TransferBaseline, ...], Compare(where="{0.name}, {0.size} examples")]
    differences: tuple[TransferDifference, ...]  # Cells minus others, as the claims compare them
    #: Attention compared with LayerNorm at the smallest size; empty if one of them was not reached.
    spreads: tuple[TransferSpread, ...]
    runs: tuple[TransferRun, ...]  # By cell and factor
    searched: tuple[TransferTry, ...]  # Every rate that a search tried
    missed: tuple[TransferMissed, ...]  # Runs that the budget did not reach
    not_possible: dict[str, str]  # Why this model lacks what a variant trains, by variant
    #: The diverged runs that ``spreads`` count, by variant and factor.
    divergence: Annotated[tuple[TransferDivergence, ...], Compare(where="{0.name}")] = ()

    def cell(self, variant: str, weights: str, size: int) -> TransferCell | None:
        """Return a cell; None where no run of it was reached."""
        for cell in self.cells:
            if (cell.variant, cell.weights, cell.size) == (variant, weights, size):
                return cell
        return None

    def difference(
        self, variant: str, other: str, *, other_weights: str = "pretrained"
    ) -> TransferDifference | None:
        """Return the difference of two variants at the largest size, if it was measured.

        The first variant is trained from pretrained weights.
        """
        sought = (variant, other, other_weights, self.sizes[-1])
        for row in self.differences:
            if (row.variant, row.other, row.other_weights, row.size) == sought:
                return row
        return None

    def to_frame(self) -> pandas.DataFrame:
        """One row per cell and baseline (pandas)."""
        import pandas as pd

        cells = [_all_columns(cell) for cell in self.cells]
        baselines = [{"variant": b.name, **columns(b, "size", "accuracy")} for b in self.baselines]
        return pd.DataFrame([*cells, *baselines]).convert_dtypes()

    def runs_frame(self) -> pandas.DataFrame:
        """One row per run (pandas)."""
        return _frame(self.runs).drop(columns="curve", errors="ignore")

    def curves_frame(self) -> pandas.DataFrame:
        """One row per run and point of its curve (pandas)."""
        import pandas as pd

        names = ("variant", "weights", "size", "seed", "factor")
        rows: list[dict[str, Any]] = []
        for run in self.runs:
            rows += [{**columns(run, *names), **_all_columns(point)} for point in run.curve]
        return pd.DataFrame(rows)

    def differences_frame(self) -> pandas.DataFrame:
        """One row per compared pair (pandas)."""
        return _frame(self.differences)

    def searched_frame(self) -> pandas.DataFrame:
        """One row per tried learning rate (pandas)."""
        return _frame(self.searched)


def _frame(rows: Iterable[Any]) -> pandas.DataFrame:
    """Make a table of all fields of some rows."""
    import pandas as pd

    return pd.DataFrame([_all_columns(row) for row in rows])


def _all_columns(row: Any) -> dict[str, Any]:
    """Return a row's fields by name; an estimate becomes columns for its value, low and high."""
    return columns(row, *(field.name for field in fields(row)))
