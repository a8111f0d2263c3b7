r"""Optimal Brain Surgeon on whole heads: an order of removal, and the refit that belongs to it.

Unlike gates, which can only turn a head up, W_O as a whole may change: the other heads write what a
removed head wrote, as far as their outputs allow. If heads with rows R go and the rows K that stay
may change, the best new map and what it costs are, with ``H = A^-1`` (A and C as in
:mod:`headscope.pruning.sublayers`)::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same map whatever C is. At each step the head goes whose own cost, with all that went before, is
least. The row of ones stays: it keeps the mean of what goes in the bias.

The method removes an eighth of the heads at a time; after each step the refitted model, which keeps
its whole shape with zeros for heads that went, is run again, and *all* heads are ranked anew. It
goes only as far as the sets that are asked for: a search that ends early pays for no more. The
repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. A set chosen on the way needs no pass: its second moments are interpolated linearly, in the
number of heads gone, between the two measured sizes around it. Any other set is refitted to what
passes through the whole model, and once more to what passes through the model that this gives. No
labels are used, and no weight outside W_O and b_O changes.

Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap
from headscope.pruning.ranking import Context, Ranking, Repaired
from headscope.pruning.sublayers import Moments, Sublayer, copied, moments, sublayers
from headscope.tasks.base import Task

PARTS = 8  # Steps from all heads to none
DIRECTIONS = 2  # Random directions of the output for each batch
RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


# --- one layer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elimination:
    """The path of one layer from all of its heads to none."""

    order: tuple[int, ...]  # Indices of its heads in the order in which they go
    costs: tuple[float, ...]  # Squared change of the model's output with 0, 1, ... heads gone

    def left(self, removed: int) -> set[int]:
        """Return the indices of the heads that are left once ``removed`` are gone."""
        return set(self.order[removed:])


def eliminate(item: Sublayer, W: Tensor, at: Moments) -> Elimination:
    """Let the heads of a layer go one at a time, the cheapest first.

    ``W`` (n_units * size + 1, d_model) is the map of the whole model.
    """
    values, vectors = torch.linalg.eigh(at.C)
    # With C = L L^T, tr(X^T Q X C) is the square of Q^(1/2) X L.
    V = (W @ (vectors * values.clamp(min=0).sqrt())).float()
    H = torch.linalg.inv(_ridged(at.A)).float()  # this only ranks; maps are solved in float64
    left, order, costs = list(range(item.n_units)), list[int](), [0.0]
    rows_of = {head: slice(head * item.size, (head + 1) * item.size) for head in left}
    while left:
        solved = {i: torch.linalg.solve(H[rows_of[i], rows_of[i]], V[rows_of[i]]) for i in left}
        prices = {i: float((V[rows_of[i]] * solved[i]).sum()) for i in left}
        best = min(left, key=prices.__getitem__)
        rows = rows_of[best]
        columns = H[:, rows].clone()
        V = V - columns @ solved[best]
        H = H - columns @ torch.linalg.solve(H[rows, rows], columns.t())
        left.remove(best)
        order.append(best)
        costs.append(costs[-1] + max(prices[best], 0.0))
    return Elimination(tuple(order), tuple(costs))


def refitted(item: Sublayer, W: Tensor, A: Tensor, left: Collection[int]) -> Tensor:
    """Return the best map whose rows are zero but for those of the heads ``left``, and the bias."""
    heads = torch.tensor([head in left for head in range(item.n_units)])
    rows = torch.cat([heads.repeat_interleave(item.size), torch.ones(1, dtype=torch.bool)])
    if rows.all():
        return W.clone()
    A, new = _ridged(A), torch.zeros_like(W)
    new[rows] = W[rows] + torch.linalg.solve(A[rows][:, rows], A[rows][:, ~rows] @ W[~rows])
    return new


def _ridged(A: Tensor) -> Tensor:
    """Add to the diagonal; the row of ones, which belongs to no head, stays as it is."""
    extra = torch.full((len(A),), float(A.diagonal()[:-1].mean() * RIDGE + 1e-12), dtype=A.dtype)
    extra[-1] = 1e-9
    return A + torch.diag(extra)


# --- the whole model ------------------------------------------------------------------------------


class RefittedModel:
    """A copy of a model whose output maps are refitted to the heads that are left."""

    def __init__(self, loaded: LoadedModel, task: Task, seed: int) -> None:
        self._model, self._task, self._seed = copied(loaded), task, seed
        self.layers = sublayers(self._model)
        self.whole = [item.weights() for item in self.layers]
        self._at_whole: list[Moments] = []

    @classmethod
    def of(cls, context: Context) -> RefittedModel:
        """Return the copy that a context's methods and repairs share."""
        data = context.calibration
        return context.remember("surgeon", lambda: cls(data.loaded, data.task, context.seed))

    def at_whole(self) -> list[Moments]:
        """Return the moments of every layer of the whole model; measured only once."""
        if not self._at_whole:
            self.write([range(item.n_units) for item in self.layers], self.whole)
            self._at_whole = self.measured(0)
        return self._at_whole

    def write(self, left: Sequence[Collection[int]], inputs: Sequence[Tensor]) -> None:
        """Refit every map to the second moments of its inputs, with these heads left."""
        for item, W, A, heads in zip(self.layers, self.whole, inputs, left, strict=True):
            item.write(refitted(item, W, A, heads))

    def measured(self, step: int) -> list[Moments]:
        """Measure the moments of every layer in the model's current state."""
        seed = self._seed + 1 + step
        return moments(self._task, self._model, self.layers, directions=DIRECTIONS, seed=seed)

    def units(self, context: Context) -> list[list[int]]:
        """Return the units of each layer's heads, in their order."""
        rows = {site.name: site.row for site in reversed(context.calibration.loaded.sites)}
        return [
            [context.units.unit((rows[item.name], head)) for head in range(item.n_units)]
            for item in self.layers
        ]


def surgeon(context: Context) -> Ranking:
    """Rank heads by removing them step by step."""
    return context.remember("surgeon's ranking", lambda: SurgeonRanking(context))


class SurgeonRanking(Ranking):
    """The units to remove for each count, from the moments measured nearest below that count.

    A unit's score is the share of units in the smallest set that removes it, as known so far.
    """

    def __init__(self, context: Context) -> None:
        self._model = RefittedModel.of(context)
        self._units = self._model.units(context)
        n = len(context.units)
        sizes = sorted({n * i // PARTS for i in range(PARTS)})
        #: Sizes at which moments may be measured: no set is larger than the context's largest.
        self._sizes = sizes[: bisect_left(sizes, context.largest or n) + 1]
        self._paths: list[list[Elimination]] = []
        self._last: list[Moments] = []  # At the last of these sizes
        #: A of every layer at each size, (n_heads * d_head + 1, same); float32 is enough to keep.
        self._inputs: list[list[Tensor]] = []

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,)."""
        values, seen = torch.zeros(sum(map(len, self._units))).double(), set[int]()
        for count in range(1, len(values) + 1):
            new = set(self._removed(count)) - seen
            seen |= new
            values[sorted(new)] = count / len(values)
        return values

    @property
    def passes(self) -> dict[str, int]:  # type: ignore[override]
        """Passes over the calibration data until now."""
        return {"forward": len(self._paths), "backward": DIRECTIONS * len(self._paths)}

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go; sets of different sizes need not be nested."""
        self._measure(bisect_left(self._sizes, count))
        return self._removed(count)

    def _measure(self, times: int) -> None:
        """Measure the model at each of the first sizes, where that was not done before."""
        model = self._model
        for i in range(len(self._paths), min(max(times, 1), len(self._sizes))):
            if i > 0:
                paths = self._paths[-1]
                counts = exactly(paths, self._sizes[i])
                left = [path.left(gone) for path, gone in zip(paths, counts, strict=True)]
                model.write(left, [layer.A for layer in self._last])
            self._last = model.measured(i) if i else model.at_whole()
            layers = zip(model.layers, model.whole, self._last, strict=True)
            self._paths.append([eliminate(item, W, at) for item, W, at in layers])
            self._inputs.append([layer.A.float() for layer in self._last])

    def _removed(self, count: int) -> tuple[int, ...]:
        self._measure(1)
        before = [i for i in range(len(self._paths)) if self._sizes[i] < count]
        paths = self._paths[max(before, default=0)]
        layers = zip(self._units, paths, exactly(paths, count), strict=True)
        return tuple(sorted(units[i] for units, path, n in layers for i in path.order[:n]))

    def inputs(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units gone, interpolated between two sizes."""
        self._measure(bisect_left(self._sizes, count) + 1)
        sizes = self._sizes[: len(self._inputs)]
        after = min(bisect_left(sizes, count), len(sizes) - 1)
        before = max(after - 1, 0)
        share = min((count - sizes[before]) / max(sizes[after] - sizes[before], 1), 1.0)
        both = zip(self._inputs[before], self._inputs[after], strict=True)
        return [torch.lerp(old.double(), new.double(), share) for old, new in both]


def exactly(paths: Sequence[Elimination], count: int) -> list[int]:
    """Return how many heads go from each layer if ``count`` go at the least total cost.

    By dynamic programming over the layers; exact for the sum of the layers' curves.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for path in paths:
        now: dict[int, tuple[float, tuple[int, ...]]] = {}
        for before, (cost, chosen) in best.items():
            for gone, more in enumerate(path.costs):
                total = before + gone
                if total <= count and (total not in now or cost + more < now[total][0]):
                    now[total] = cost + more, (*chosen, gone)
        best = now
    return list(best[count][1])


def refitted_maps(context: Context, removed: Sequence[int]) -> Repaired:
    """Refit W_O and b_O of every layer to what all heads put out, on calibration text."""
    model, gone = RefittedModel.of(context), set(removed)
    left = [
        [head for head, unit in enumerate(units) if unit not in gone]
        for units in model.units(context)
    ]
    ranking = context.memo.get("surgeon's ranking")
    if isinstance(ranking, SurgeonRanking) and ranking.remove(len(removed)) == tuple(removed):
        inputs = ranking.inputs(len(removed))
    else:  # by what passes through the whole model, then through the model that this gives
        model.write(left, [layer.A for layer in model.at_whole()])
        inputs = [layer.A for layer in model.measured(1)]
    loaded = context.calibration.loaded
    rows = {site.name: site.row for site in reversed(loaded.sites)}
    maps = {}
    for item, W, A, heads in zip(model.layers, model.whole, inputs, left, strict=True):
        if len(heads) < item.n_units:
            new = refitted(item, W, A, heads)
            weight = loaded.sites[rows[item.name]].projections.out.weight
            maps[rows[item.name]] = OutputMap(new[:-1].to(weight), new[-1].to(weight))
    return Repaired(tuple(removed), context.units.expand(context.units.gates(removed)), maps)
