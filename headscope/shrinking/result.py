"""What ``headscope shrink`` found: every model that was measured, and the one that was chosen.

The *whole model* is the one that was given, in torch; everything is compared with it. Small parts
first; :class:`ShrinkResult` at the end holds all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.models.certificate.validation import ValidationSummary
from headscope.stats.effects import estimated_columns
from headscope.stats.estimate import UNKNOWN, Estimate

if TYPE_CHECKING:
    import pandas


#: The whole model may take so many times as long while one form is timed as while another is;
#: beyond that, no speed of the run is confirmed.
MOVED = 1.10
#: Cores that other programs take from a run, from which its speeds come with a warning.
NOTICEABLE = 0.25


@dataclass(frozen=True)
class Elsewhere:
    """How near a model's outputs stay to the whole one's on text of another kind."""

    text: str  # Name of the text
    texts: int  # How many texts it has: sentences, mostly
    of: str  # What is compared: ``cosine``, ``classes``, ``labels`` or ``scores``
    #: Mean cosine of embeddings, the share of texts with an equal class or an equal set of labels,
    #: or Spearman's correlation of scores.
    nearness: Estimate
    #: Share of the ten nearest neighbours among these texts that the whole model finds too; the
    #: interval is of a mean over the texts that ask.
    neighbours: Estimate


@dataclass(frozen=True)
class BatchEffect:
    """How a form's outputs depend on the texts that share a batch."""

    #: Largest difference of a text's last states, read alone and in a batch, as a share of the
    #: largest state
    difference: float
    values: tuple[float, ...]  # The metric, in one order of the texts after the other


@dataclass(frozen=True)
class Training:
    """How a smaller model was distilled."""

    minutes: float  # How long it took, with the short training of every set of layers tried
    steps: int
    texts: int  # How many texts it was trained on
    before: float  # Loss on held-out text before training
    after: float  # And after
    ended: str  # ``time`` was over, or the loss came ``no nearer`` to 0
    arithmetic: str  # ``float32``, or ``bfloat16`` where the processor is faster in it


@dataclass(frozen=True)
class Target:
    """What was asked for."""

    name: str  # ``speed``, ``ms`` or ``mb``
    value: float

    def __str__(self) -> str:
        unit = {"speed": "times the speed", "ms": "ms a text", "mb": "MB"}[self.name]
        return f"{self.value:g} {unit}"

    def reached_by(self, speed: Estimate, ms: Estimate, megabytes: float) -> bool:
        """Whether a model is as fast, or as small, as was asked: an interval's bad end counts."""
        if self.name == "speed":
            return speed.low is not None and speed.low >= self.value
        if self.name == "ms":
            return ms.high is not None and ms.high <= self.value
        return megabytes <= self.value

    def missed_by_interval(self, speed: Estimate, ms: Estimate) -> bool:
        """Whether the medians reach a target in time, but not the intervals' bad ends."""
        any_size = math.inf  # which reaches no target in megabytes
        by_medians = self.reached_by(_without_width(speed), _without_width(ms), any_size)
        return by_medians and not self.reached_by(speed, ms, any_size)


def _without_width(estimate: Estimate) -> Estimate:
    """Return an estimate whose interval is its value alone."""
    return Estimate(estimate.value, estimate.value, estimate.value)


@dataclass(frozen=True)
class MeasuredModel:
    """One model in one runtime and precision."""

    layers: tuple[Any, ...]  # The layers that are left, by their original names
    neurons: int  # Of each feed-forward network; 0 where they differ or cannot be cut
    runtime: str
    precision: str
    megabytes: float  # Of its file, or of the weights in torch (1e6 bytes)
    ms: Estimate  # Milliseconds a text, on this machine in this run
    speed: Estimate  # Time of the whole model in torch / its time, run in turns
    value: Estimate  # The task's metric
    change: Estimate  # Value minus the whole model's, paired over examples
    #: The most that is lost of the metric: the bad end of the change's interval. None where it is
    #: unknown: of fewer than FEWEST_TESTED examples, of an interval without width, or where the
    #: whole model's values mean nothing
    most_lost: float | None
    metrics: dict[str, float]  # All metrics of the task by name; rates are times 100
    elsewhere: tuple[Elsewhere, ...] = ()
    training: Training | None = None
    #: Only of a form whose outputs depend on the batch; value and change are then over all orders
    batch_effect: BatchEffect | None = None
    #: Milliseconds a text of the whole model in torch, in the rounds in which this one was timed
    ms_of_whole: Estimate = UNKNOWN
    with_tokenising: Estimate = UNKNOWN  # ``speed`` where both tokenise the texts first
    one_text: Estimate = UNKNOWN  # ``speed`` with one text at a time
    competitors: float | None = None  # Cores that other programs used while it was timed

    @property
    def form(self) -> str:
        """Runtime and precision."""
        return f"{self.runtime} {self.precision}"

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole model in torch, which everything is compared with."""
        return self.speed == Estimate(1.0)  # timed against itself: exactly 1, without interval

    def size(self, full_model: MeasuredModel) -> str:
        """Say what is left of it: ``3 of 6 layers, 1,024 of 1,536 neurons in each layer``."""
        words: list[str] = []
        if len(self.layers) < len(full_model.layers):
            words.append(f"{len(self.layers)} of {len(full_model.layers)} layers")
        if self.neurons < full_model.neurons:
            words.append(f"{self.neurons:,} of {full_model.neurons:,} neurons in each layer")
        return ", ".join(words) or "the whole model"

    def reaches(self, target: Target | None) -> bool:
        """Whether it reaches a target, if there is one."""
        return target is None or target.reached_by(self.speed, self.ms, self.megabytes)

    def keeps(self, max_drop: float | None) -> bool:
        """Whether it is confirmed to lose at most ``max_drop``."""
        if max_drop is None or self.is_whole:
            return True
        return self.most_lost is not None and self.most_lost <= max_drop

    def excess(self, metric: str, max_drop: float | None) -> str:
        """Say that it may lose more than ``max_drop``, or that its loss is not known."""
        if self.most_lost is None:
            return f"what it loses of {metric} at most is not known"
        return f"it may lose {self.most_lost:.2f} of {metric}, more than {max_drop:g}"

    @property
    def extent(self) -> str:
        """How fast and how large it is, in words."""
        times = "" if self.speed.low is None else f" (at least {self.speed.low:.2f})"
        return (
            f"{self.speed.value:.2f} times the speed{times}, {self.ms.value:.2f} ms a text, "
            f"{self.megabytes:.1f} MB"
        )


@dataclass(frozen=True)
class Lead:
    """The two fastest forms of the whole model, timed in turns with each other."""

    first: str
    second: str
    speed: Estimate  # How many times as fast the first is as the second

    @property
    def known(self) -> bool:
        """Whether the first is faster by more than the interval's width."""
        return self.speed.low is not None and self.speed.low > 1


def unsteady(models: Sequence[MeasuredModel]) -> str:
    """Say that the machine's pace changed between models; empty where it did not, or none knows.

    The sign is torch's own time: it is the same model in every pair.
    """
    paces = [model.ms_of_whole.value for model in models if not model.is_whole]
    known = [pace for pace in paces if pace is not None]
    if not known or max(known) <= MOVED * min(known):
        return ""
    return (
        f"torch itself took {min(known):.2f} to {max(known):.2f} ms a text while others were timed "
        "beside it: something else used the machine for a part of the run, so no speed is confirmed"
    )


@dataclass(frozen=True)
class Saved:
    """A folder that was written and opened again."""

    folder: str
    file: str  # The file of the model that the headline speaks of
    measured: float  # The metric of that file, opened from the folder
    opens: str  # What opens ``model.safetensors``
    code: str = ""  # Python that opens that file
    megabytes: float | None = None  # Of all files of the folder (1e6 bytes)


@dataclass(frozen=True)
class ShrinkResult:
    """Every model that was measured, in the order of the ladder; the first is the whole one."""

    schema: int
    provenance: dict[str, Any]
    validation: ValidationSummary
    task: str
    metric: str
    higher_is_better: bool
    examples: int
    data: str  # Name of the evaluation data
    batch_size: int  # Texts that were timed together
    threads: int
    target: Target | None
    max_drop: float | None
    text: tuple[str, ...]  # Names of the training text, which also calibrates 8 bits
    sentences: int  # How many sentences it has
    dropped: int  # Sentences of it that were left out, since the evaluation data have them
    models: tuple[MeasuredModel, ...]
    refused: tuple[str, ...] = ()  # Sentences about forms that a runtime refused
    chosen: int | None = None  # Index in ``models``
    reached: bool = False  # Whether the chosen model is as was asked
    stopped: str = ""  # Where the search for smaller models ended, and why: a sentence
    saved: Saved | None = None
    checked: str = ""  # The folder that was checked; empty where none was
    warnings: tuple[str, ...] = ()
    lead: Lead | None = None  # None with fewer than two forms besides torch
    cores: int = 0  # Of the machine; 0 in results of older versions

    @property
    def whole(self) -> MeasuredModel:
        """The whole model in torch."""
        return self.models[0]

    @property
    def complaint(self) -> str | None:
        """Why the command fails: a checked folder falls short. None where it does not fail."""
        if not self.checked or self.reached:
            return None
        return f"{self.checked} falls short: {self.stopped}"

    @property
    def unsteady(self) -> str:
        """Why no speed is confirmed: a clause; empty where the machine kept its pace."""
        return unsteady(self.models)

    @property
    def competitors(self) -> float | None:
        """How many cores other programs used while one model was timed, at most."""
        known = [model.competitors for model in self.models if model.competitors is not None]
        return max(known, default=None)

    @property
    def contended(self) -> bool:
        """Whether other programs took cores that the run has threads for while it timed models."""
        if self.competitors is None:
            return False
        spare_cores = max(0, self.cores - self.threads)
        return self.competitors - spare_cores >= NOTICEABLE

    @property
    def speeds_confirmed(self) -> bool:
        """Whether nothing else is known to have slowed torch while models were timed."""
        return not self.unsteady and not self.contended

    @property
    def best(self) -> MeasuredModel | None:
        """The model that was chosen."""
        return None if self.chosen is None else self.models[self.chosen]

    def to_frame(self) -> pandas.DataFrame:
        """Return a row for each model."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "layers": len(model.layers),
                    "neurons": model.neurons,
                    "runtime": model.runtime,
                    "precision": model.precision,
                    "megabytes": model.megabytes,
                    **estimated_columns("ms", model.ms),
                    **estimated_columns("ms_of_whole", model.ms_of_whole),
                    **estimated_columns("speed", model.speed),
                    **estimated_columns("with_tokenising", model.with_tokenising),
                    **estimated_columns("one_text", model.one_text),
                    **estimated_columns(self.metric, model.value),
                    **estimated_columns("change", model.change),
                    **{f"nearness {other.text}": other.nearness.value for other in model.elsewhere},
                    **{
                        f"neighbours {other.text}": other.neighbours.value
                        for other in model.elsewhere
                    },
                    "chosen": index == self.chosen,
                }
                for index, model in enumerate(self.models)
            ]
        )
