"""What a layer's units cost in milliseconds, and how many times as fast a cut model is: values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.files import write_atomically
from headscope.core.serialise import from_dict, to_json
from headscope.stats.estimate import Estimate

#: Units of one kind (``heads`` or ``neurons``) in one stack.
Group = tuple[str, str]
#: How many units of a group every layer has; a shared layer counts as often as it runs.
Counts = Mapping[Group, Sequence[int]]

_ANCHOR = 100.0  # How much more the whole model's time weighs than another's: it is met.


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

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval."""
        return Estimate(self.ratio, self.low, self.high)


def fit_times(
    knots: Mapping[Group, Sequence[int]], counts: Sequence[Counts], times: Sequence[float]
) -> tuple[float, dict[Group, tuple[float, ...]]]:
    """Split the times of whole models into a rest and a curve for each group.

    A curve is linear between its knots, zero at the first, and never falls. What it rises by from
    knot to knot, and the rest, are what fits the measured times best, in relative terms, among
    numbers that are not negative (isotonic regression of all curves together).

    Parameters
    ----------
    knots : mapping of group to sequence of int
        Counts of units at which a curve may bend, ascending.
    counts : sequence of Counts
        Units in the layers of each model; the first is the whole model, whose time is met.
    times : sequence of float
        Of each model, in any unit.

    Returns
    -------
    rest, curves : float, dict
        Values of each curve at its knots, in the same unit.
    """
    rows = []
    for own, time in zip(counts, times, strict=True):
        rises = [_rises(points, own[group]) for group, points in knots.items()]
        rows.append(np.concatenate([[1.0], *rises]) / time)
    weights = np.ones(len(rows))
    weights[0] = _ANCHOR
    (rest, *steps), _ = nnls(np.array(rows) * weights[:, None], weights)
    curves, start = {}, 0
    for group, points in knots.items():
        own_steps = steps[start : start + len(points) - 1]
        curves[group] = tuple(np.cumsum([0.0, *own_steps]).tolist())
        start += len(own_steps)
    return float(rest), curves


def _rises(knots: Sequence[int], counts: Sequence[int]) -> Array:
    """Return how much of the rise between two knots all layers together have, (knots - 1,)."""
    low, high = np.array(knots[:-1]), np.array(knots[1:])
    shares = (np.array(counts)[:, None] - low) / (high - low)
    return np.asarray(np.clip(shares, 0.0, 1.0).sum(axis=0))
