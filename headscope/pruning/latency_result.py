"""What a layer's units cost in milliseconds, and how many times as fast a cut model is: values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.files import write_atomically
from headscope.core.serialise import from_dict, to_json
from headscope.stats.estimate import Estimate

#: Units of one kind (``heads`` or ``neurons``) in one stack.
Group = tuple[str, str]
#: How many units of a group every layer has; a shared layer counts as often as it runs.
Counts = Mapping[Group, Sequence[int]]


@dataclass(frozen=True)
class Shape:
    """One batch that was timed."""

    batch: int  # Texts
    length: int  # Tokens of the longest one
    target_length: int | None  # Tokens that a decoder reads of the longest target; None without one
    share: float  # Of all texts, those that are taken to come in such a batch


@dataclass(frozen=True)
class UnitTimes:
    """What the units of one kind cost in one layer of a stack."""

    kind: str  # ``heads`` or ``neurons``
    stack: str  # ``encoder``, ``decoder`` or ``cross``
    layers: int  # That were timed together
    counts: tuple[int, ...]  # Units that a layer keeps, ascending; the last is the whole layer.
    #: Milliseconds a text of one layer with so many units, beyond one with the fewest; never less
    #: for more units.
    ms: tuple[float, ...]


@dataclass(frozen=True)
class LatencyTable:
    """Times of a text, measured on one machine: of a layer's units, and of all the rest.

    A model's time is ``rest`` plus, for each layer, the times of the units it keeps. Milliseconds
    are those of one text: of each shape the time of a pass by its texts, weighted by its share.
    """

    runtime: str  # ``torch`` or ``onnxruntime``
    precision: str  # ``int8``, or the floating-point type of the weights
    device: str
    threads: int
    shapes: tuple[Shape, ...]
    repeats: int  # Rounds in which every model ran once
    units: tuple[UnitTimes, ...]
    #: Everything else: embeddings, norms, pooling, overheads, and layers with their fewest units.
    rest: float
    whole: float  # The whole model, measured; the sum of the table is the same.
    #: A model that had no say in the table, about 0.45 of all units in every layer: measured, and
    #: by the table.
    checked: float
    checked_predicted: float

    @property
    def table(self) -> dict[Group, tuple[tuple[int, float], ...]]:
        """(units kept, milliseconds a layer), ascending, by kind and stack."""
        return {
            (item.kind, item.stack): tuple(zip(item.counts, item.ms, strict=True))
            for item in self.units
        }

    @property
    def error(self) -> float:
        """By which share the table was wrong about the model that had no say in it."""
        return self.checked_predicted / self.checked - 1

    def predicted(self, counts: Counts) -> float:
        """Return the milliseconds of a model with so many units in each layer."""
        import numpy as np

        return self.rest + sum(
            float(np.interp(counts[item.kind, item.stack], item.counts, item.ms).sum())
            for item in self.units
        )

    def write(self, path: Path) -> None:
        """Store the table as JSON."""
        write_atomically(path, to_json(self).encode())

    @classmethod
    def read(cls, path: Path) -> LatencyTable:
        """Read a table that :meth:`write` stored.

        Raises
        ------
        InputError
            If the file holds none.
        """
        try:
            return from_dict(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{path} holds no table of measured times ({error}); measure it again."
            ) from error


@dataclass(frozen=True)
class Confirmed:
    """How many times as fast a cut model is, from runs that had no say in the choice."""

    ratio: float  # Median over adjacent runs of whole / cut
    #: Its 95% interval; None where it is unknown.
    low: float | None
    high: float | None
    ms_whole: float  # Medians: milliseconds of one run.
    ms_cut: float
    target: float | None  # The ratio that was asked for
    reached: bool  # Whether the interval's lower end is at least that; False without a target
    runs: int  # Pairs of runs
    threads: int
    #: 95% interval of ``ms_cut``, from the cut model's own times; None where it is unknown. It
    #: holds for the machine's pace during these runs.
    ms_low: float | None = None
    ms_high: float | None = None

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval."""
        return Estimate(self.ratio, self.low, self.high)
