r"""Optimal Brain Surgeon on whole heads: an order of removal, and the refit that belongs to it.

Unlike gates, which can only turn a head up, W_O as a whole may change: the other heads write
what a removed head wrote, as far as their outputs allow
(:mod:`headscope.pruning.block_elimination` has the equations). The method removes an eighth of the
heads at a time; after each step the refitted model is run again, and *all* heads are ranked anew.
It goes only as far as the sets that are asked for: a search that ends early pays for no more. The
repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. A set chosen on the way needs no pass: its second moments are interpolated linearly, in the
number of heads gone, between the two measured sizes around it. Any other set is refitted to what
passes through the whole model, and once more to what passes through the model that this gives. No
labels are used, and no weight outside W_O and b_O changes.

Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.models.surgery.output_maps import OutputMap
from headscope.pruning.block_elimination import Elimination
from headscope.pruning.ranking import Context, Ranking
from headscope.pruning.refitted_model import RefittedModel
from headscope.pruning.repair import Repaired
from headscope.pruning.sublayers import Sublayer

PARTS = 8  # Steps from all heads to none
_WALK = "surgeon's walk"


def surgeon(context: Context) -> Ranking:
    """Rank heads by removing them step by step."""
    return context.remember(_WALK, lambda: SurgeonRanking(context))


class SurgeonRanking(Ranking):
    """The units to remove for each count, from the moments measured nearest below that count.

    A unit's score is the share of units in the smallest set that removes it, as known so far.
    """

    def __init__(self, context: Context) -> None:
        self._model = model = _refitted(context)
        self._units = _units_of(context, model.layers)
        n = len(context.units)
        self._layers, sizes = model.layers, sorted({n * i // PARTS for i in range(PARTS)})
        #: Sizes at which moments may be measured: no set is larger than the context's largest.
        self._sizes = sizes[: bisect_left(sizes, context.largest or n) + 1]
        self._paths: list[list[Elimination]] = []
        #: A of every layer at each size, (n_heads * d_head + 1, same); float32 is enough to keep.
        self._inputs: list[list[Tensor]] = []

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,)."""
        values, seen = torch.zeros(sum(map(len, self._units.values()))).double(), set[int]()
        for count in range(1, len(values) + 1):
            new = set(self._remove(count)) - seen
            seen |= new
            values[sorted(new)] = count / len(values)
        return values

    @property
    def passes(self) -> dict[str, int]:  # type: ignore[override]
        """Passes over the calibration data until now."""
        return {"forward": len(self._paths), "backward": 2 * len(self._paths)}

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; sets of different sizes need not be nested."""
        self._look(bisect_left(self._sizes, count))
        return self._remove(count)

    def _look(self, times: int) -> None:
        """Measure the model at each of the first sizes, where that was not done before."""
        for i in range(len(self._paths), min(max(times, 1), len(self._sizes))):
            if i > 0:
                chosen = exactly(self._layers, self._paths[-1], self._sizes[i])
                self._model.set_counts(self._paths[-1], chosen)
            self._paths.append(self._model.paths())
            self._inputs.append([own.A.float() for own in self._model.found])

    def _remove(self, count: int) -> tuple[int, ...]:
        self._look(1)
        known = range(len(self._paths))
        place = max((i for i in known if self._sizes[i] < count), default=0)
        paths = self._paths[place]
        gone = []
        for item, path, left in zip(
            self._layers, paths, exactly(self._layers, paths, count), strict=True
        ):
            units = self._units[item.name]
            kept = set(path.kept(left, item.n_units))
            gone += [units[i] for i in range(item.n_units) if i not in kept]
        return tuple(sorted(gone))

    def inputs(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units gone, interpolated between two sizes."""
        self._look(bisect_left(self._sizes, count) + 1)
        sizes = self._sizes[: len(self._inputs)]
        after = min(bisect_left(sizes, count), len(sizes) - 1)
        before = max(after - 1, 0)
        share = min((count - sizes[before]) / max(sizes[after] - sizes[before], 1), 1.0)
        both = zip(self._inputs[before], self._inputs[after], strict=True)
        return [torch.lerp(old.double(), new.double(), share) for old, new in both]


def exactly(layers: Sequence[Sublayer], paths: Sequence[Elimination], count: int) -> list[int]:
    """Return how many units each sublayer keeps if ``count`` go at the least total cost.

    By dynamic programming over the layers; exact for the sum of the layers' curves.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for item, path in zip(layers, paths, strict=True):
        now: dict[int, tuple[float, tuple[int, ...]]] = {}
        for gone, (cost, chosen) in best.items():
            for left, more in zip(path.counts, path.costs, strict=True):
                total = gone + item.n_units - left
                if total <= count and (total not in now or cost + more < now[total][0]):
                    now[total] = cost + more, (*chosen, left)
        best = now
    return list(best[count][1])


def refitted_maps(context: Context, removed: Sequence[int]) -> Repaired:
    """Refit W_O and b_O of every layer to what all heads put out, on calibration text."""
    walk, inputs = context.memo.get(_WALK), None
    if isinstance(walk, SurgeonRanking) and walk.remove(len(removed)) == tuple(removed):
        inputs = walk.inputs(len(removed))
    model = _refitted(context)  # after the ranking, which leaves the model at its last step
    units = _units_of(context, model.layers)
    gone = set(removed)
    kept = [
        tuple(i for i in range(item.n_units) if units[item.name][i] not in gone)
        for item in model.layers
    ]
    if inputs is not None:
        choices = model.keep(kept, inputs)
    else:
        model.keep(kept)  # by what passes through the whole model
        model.refit()  # and once more by what passes through the model as it then stands
        choices = model.choices()
    loaded = context.calibration.loaded
    rows = {site.name: site.row for site in reversed(loaded.sites)}
    maps = {}
    for choice in choices:
        if len(choice.kept) < choice.item.n_units:
            weight = loaded.sites[rows[choice.item.name]].projections.out.weight
            W, b = choice.W[:-1].to(weight), choice.W[-1].to(weight)
            maps[rows[choice.item.name]] = OutputMap(W, b)
    return Repaired(tuple(removed), context.units.expand(context.units.gates(removed)), maps)


def _refitted(context: Context) -> RefittedModel:
    """Return the whole model with its moments; made once."""
    calibration = context.calibration

    def make() -> RefittedModel:
        return RefittedModel(calibration.loaded, calibration.task, seed=context.seed)

    return context.remember("surgeon", make).whole()


def _units_of(context: Context, layers: Sequence[Sublayer]) -> dict[str, list[int]]:
    """Return the units of each sublayer's heads, in their order."""
    rows = {site.name: site.row for site in reversed(context.calibration.loaded.sites)}
    return {
        item.name: [context.units.unit((rows[item.name], i)) for i in range(item.n_units)]
        for item in layers
    }
