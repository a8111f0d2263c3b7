"""What a unit costs: multiplications, megabytes, or milliseconds of a measured table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headscope.models.feed_forward import feed_forwards
from headscope.models.loaded import LoadedModel
from headscope.pruning.mix.sublayers import HEADS, Sublayer


class Costs(Protocol):
    """What sublayers cost, and the rest of the model beside them."""

    def of(self, item: Sublayer, count: int) -> float:
        """Return the cost of a sublayer that keeps ``count`` units."""
        ...

    def total(self, layers: Sequence[Sublayer], counts: Sequence[int]) -> float:
        """Return the cost of the whole model."""
        ...


@dataclass(frozen=True)
class PerUnit:
    """Every unit of a sublayer costs the same."""

    unit: dict[str, float]  # By the name of the sublayer
    rest: float = 0.0

    def of(self, item: Sublayer, count: int) -> float:
        """Return the cost of some units."""
        return self.unit[item.name] * count

    def total(self, layers: Sequence[Sublayer], counts: Sequence[int]) -> float:
        """Return the cost of the whole model."""
        return self.rest + sum(self.of(*pair) for pair in zip(layers, counts, strict=True))


@dataclass(frozen=True)
class Milliseconds:
    """Measured times, interpolated: (units kept, milliseconds) by kind and stack."""

    table: dict[tuple[str, str], tuple[tuple[int, float], ...]]  # counts ascending
    rest: float  # Everything else

    def of(self, item: Sublayer, count: int) -> float:
        """Return the time of all uses of a sublayer."""
        points = self.table[item.kind, item.stack]
        counts, times = zip(*points, strict=True)
        return item.uses * float(np.interp(count, counts, times))

    def total(self, layers: Sequence[Sublayer], counts: Sequence[int]) -> float:
        """Return the time of the whole model."""
        return self.rest + sum(self.of(*pair) for pair in zip(layers, counts, strict=True))


def multiplications(loaded: LoadedModel, layers: Sequence[Sublayer], length: float) -> PerUnit:
    """Count multiplications a token, at texts of ``length`` tokens; the rest counts nothing."""
    maps, numbers = {site.name: site for site in loaded.sites}, _numbers(loaded, layers)
    unit = {}
    for item in layers:
        if item.kind == HEADS:
            p, own = maps[item.name].projections, maps[item.name].n_heads
            widths = sum(m.in_features * m.out_features for m in (p.q, p.k, p.v, p.out)) / own
            unit[item.name] = item.uses * (widths + 2 * length * maps[item.name].d_head)
        else:
            unit[item.name] = item.uses * float(numbers[item.name])
    return PerUnit(unit)


def megabytes(
    loaded: LoadedModel, layers: Sequence[Sublayer], whole: float, bytes_per_number: float = 4.0
) -> PerUnit:
    """Count the bytes of the numbers that units own, of a file of ``whole`` MB (1e6 bytes)."""
    maps, numbers = {site.name: site for site in loaded.sites}, _numbers(loaded, layers)
    unit = {}
    for item in layers:
        if item.kind == HEADS:
            stored = [(rows, rows.tensor) for rows in dict.fromkeys(maps[item.name].stored())]
            own = sum(
                rows.width * rows.parts * t.numel() // t.shape[rows.axis]
                for rows, t in stored
                if t is not None
            )
        else:
            own = numbers[item.name]
        unit[item.name] = own * bytes_per_number / 1e6
    rest = whole - sum(unit[item.name] * item.n_units for item in layers)
    return PerUnit(unit, rest)


def _numbers(loaded: LoadedModel, layers: Sequence[Sublayer]) -> dict[str, int]:
    if all(item.kind == HEADS for item in layers):
        return {}
    return {item.name: item.numbers_per_neuron for item in feed_forwards(loaded)}
