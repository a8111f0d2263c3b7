r"""Heads and neurons that go together, so that a budget is met and the output changes least.

In each round the model as cut so far is run over calibration text; every sublayer's units are
ranked anew, those that went before among them (:mod:`headscope.pruning.mix.eliminate`); the number
that each keeps is chosen on the lower hulls of the curves cost-of-output against cost-of-time, best
slope first; and all second maps are refitted, to what the whole sublayer would have put out on the
same input. The budget shrinks to its target from round to round. At the end the maps are refitted
where the model now stands, as long as held-out calibration text comes nearer to the whole model.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from headscope.models.loaded import LoadedModel
from headscope.pruning.mix.costs import Costs
from headscope.pruning.mix.eliminate import (
    RIDGE,
    Elimination,
    eliminate,
    refitted,
    rows_kept,
)
from headscope.pruning.mix.sublayers import (
    HEADS,
    NEURONS,
    Moments,
    Sublayer,
    copied,
    moments,
    sublayers,
)
from headscope.tasks.base import Task

ROUNDS = 6
REFITS = 2  # Passes that refit all maps once the units are settled
DIRECTIONS = 2  # Random directions of the output for each batch


@dataclass(frozen=True)
class Choice:
    """What stays of one sublayer, and its refitted map."""

    item: Sublayer
    kept: tuple[int, ...]  # Original numbers
    W: Tensor  # (n_units * size + 1, d_model), rows of units that go are zero

    @property
    def removed(self) -> tuple[int, ...]:
        """Original numbers of the units that go."""
        chosen = set(self.kept)
        return tuple(unit for unit in self.item.units if unit not in chosen)


class Shrinking:
    """A model on its way to a smaller budget; each call of :meth:`to` goes on from where it is."""

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        kinds: Sequence[str],
        costs: Costs,
        *,
        seed: int = 0,
        did: Callable[[], object] = lambda: None,
        targets: Sequence[Tensor] | None = None,
    ) -> None:
        self._loaded, self._task, self.costs = loaded, task, costs
        self.zeroed = copied(loaded)  # the model in its whole shape, zeros for units that went
        self.layers = sublayers(self.zeroed, kinds)
        self._whole = [item.weights() for item in self.layers]
        self._seed, self._did, self._round = seed, did, 0
        #: By name of the sublayer: the first look, and its paths, which are always the same.
        self._at_whole: dict[str, Moments] = {}
        self._first_paths: dict[str, Elimination] = {}
        if targets is not None:
            self.targets = targets
        self.counts = [item.n_units for item in self.layers]
        self._kept = [tuple(range(item.n_units)) for item in self.layers]

    @cached_property
    def targets(self) -> Sequence[Tensor]:
        """The outputs to stay near to, batch by batch: the model's own unless they were given."""
        return outputs_of(self._loaded, self._task)

    def to(self, budget: float, rounds: int = ROUNDS) -> list[Choice]:
        """Shrink to a budget, in the unit of the costs, in some rounds."""
        if not self.layers:
            return []  # the vocabulary alone goes
        start = self.costs.total(self.layers, self.counts)
        for i in range(rounds):
            self._cut(start + (budget - start) * (i + 1) / rounds)
            self._did()
        if rounds == 1:
            return self.choices()
        best = self.distance()
        for _ in range(REFITS):
            before = [item.weights() for item in self.layers]
            self.refit()
            now = self.distance()
            self._did()
            if now >= best:
                for item, W in zip(self.layers, before, strict=True):
                    item.write(W)
                break
            best = now
        return self.choices()

    def whole(self, kinds: Sequence[str] = (HEADS, NEURONS)) -> Shrinking:
        """Begin anew with the whole model, with units of some kinds; what was chosen is forgotten.

        The first look at the model serves every beginning.
        """
        for item, W in zip(self.layers, self._whole, strict=True):
            item.write(W)
        anew = copy.copy(self)
        mine = [i for i, item in enumerate(self.layers) if item.kind in kinds]
        anew.layers = tuple(self.layers[i] for i in mine)
        anew._whole = [self._whole[i] for i in mine]
        anew.counts = [item.n_units for item in anew.layers]
        anew._kept = [tuple(range(count)) for count in anew.counts]
        anew._round = 0
        return anew

    def paths(self) -> list[Elimination]:
        """Rank the units of every sublayer where the model stands now."""
        self.found = self._moments()
        known = self._first_paths if self._round == 1 else {}
        for item, W, own in zip(self.layers, self._whole, self.found, strict=True):
            if item.name not in known:
                known[item.name] = eliminate(item, W, own)
        return [known[item.name] for item in self.layers]

    def set_counts(self, paths: Sequence[Elimination], counts: Sequence[int]) -> None:
        """Keep so many units of each sublayer, by the paths that :meth:`paths` gave last."""
        self.counts = list(counts)
        self._kept = [
            path.kept(count, item.n_units)
            for item, path, count in zip(self.layers, paths, counts, strict=True)
        ]
        self._write([own.A for own in self.found])

    def keep(
        self, kept: Sequence[tuple[int, ...]], inputs: Sequence[Tensor] | None = None
    ) -> list[Choice]:
        """Keep units that are named by their places; the maps are refitted where it stands.

        ``inputs`` are the second moments A of every sublayer, where they are known.
        """
        self._kept, self.counts = list(kept), [len(places) for places in kept]
        if inputs is None:
            self.refit()
        else:
            self._round += 1  # the look that this saves
            self._write(inputs)
        return self.choices()

    def refit(self) -> None:
        """Run the model as it stands, and refit all maps to it."""
        self._write([own.A for own in self._moments()])

    def restore(self, choices: Sequence[Choice]) -> None:
        """Go back to what :meth:`choices` gave."""
        for item, choice in zip(self.layers, choices, strict=True):
            item.write(choice.W)
        self._kept = [tuple(map(c.item.units.index, c.kept)) for c in choices]
        self.counts = [len(places) for places in self._kept]

    def choices(self) -> list[Choice]:
        """Say what stays of each sublayer now."""
        return [
            Choice(item, tuple(item.units[place] for place in kept), item.weights())
            for item, kept in zip(self.layers, self._kept, strict=True)
        ]

    def distance(self) -> float:
        """Mean squared distance of the output to the targets, over calibration text."""
        return distance_to(self.zeroed, self._task, self.targets)

    def _moments(self) -> list[Moments]:
        self._round += 1
        names = [item.name for item in self.layers]
        if self._round == 1 and self._at_whole.keys() >= set(names):
            return [self._at_whole[name] for name in names]
        found = moments(
            self._task,
            self.zeroed,
            self.layers,
            directions=DIRECTIONS,
            seed=self._seed + self._round,
        )
        if self._round == 1:
            self._at_whole.update(zip(names, found, strict=True))
        return found

    def _cut(self, budget: float) -> None:
        paths = self.paths()
        self.set_counts(paths, allocate(self.layers, paths, self.costs, budget))

    def _write(self, inputs: Sequence[Tensor]) -> None:
        for item, W, A, kept in zip(self.layers, self._whole, inputs, self._kept, strict=True):
            item.write(refitted(W, A, rows_kept(item, kept), RIDGE))


def outputs_of(loaded: LoadedModel, task: Task) -> list[Tensor]:
    """Return a model's outputs (size, d) on calibration text, batch by batch."""
    batches = task.loss_batches(loaded, labels=False)
    return [batch.embed(batch.gates().detach()).detach() for batch in batches]


def distance_to(loaded: LoadedModel, task: Task, targets: Sequence[Tensor]) -> float:
    """Mean squared distance of a model's outputs on calibration text to those of another."""
    total, count = 0.0, 0
    for out, whole in zip(outputs_of(loaded, task), targets, strict=True):
        total, count = total + float(((out - whole).double() ** 2).sum()), count + len(out)
    return total / count


def allocate(
    layers: Sequence[Sublayer], paths: Sequence[Elimination], costs: Costs, budget: float
) -> list[int]:
    """Return how many units each sublayer keeps so that the total cost is at most ``budget``.

    On the lower hull of each curve steps have falling gains; the step with the most cost saved for
    the least change of the output is taken first, over all sublayers.
    """
    steps: list[tuple[float, int, int]] = []  # slope, sublayer, count after the step
    for i, (item, path) in enumerate(zip(layers, paths, strict=True)):
        points = [(costs.of(item, n), c, n) for n, c in zip(path.counts, path.costs, strict=True)]
        hull = _lower_hull(points)
        for (cost, change, _), (next_cost, next_change, count) in itertools.pairwise(hull):
            steps.append(((next_change - change) / max(cost - next_cost, 1e-300), i, count))
    counts = [item.n_units for item in layers]
    total = costs.total(layers, counts)
    for _, i, count in sorted(steps):
        if total <= budget:
            break
        others = (n for j, n in enumerate(counts) if j != i and layers[j].kind == HEADS)
        if layers[i].kind == HEADS and count == 0 and not any(others):
            continue  # a model keeps one head
        total += costs.of(layers[i], count) - costs.of(layers[i], counts[i])
        counts[i] = count
    return counts


def _lower_hull(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Keep the points on the lower convex hull, from the dearest to the cheapest."""
    hull: list[tuple[float, float, int]] = []
    for point in points:
        if hull and point[0] >= hull[-1][0]:  # costs no less than a larger one
            continue
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(left: tuple[float, float, int], right: tuple[float, float, int]) -> float:
    return (right[1] - left[1]) / max(left[0] - right[0], 1e-300)
