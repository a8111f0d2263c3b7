r"""A model whose heads go step by step, and whose output maps are refitted to those that are left.

The copy keeps its whole shape, zeros for heads that went. At each step it runs over calibration
text as it stands; every layer's heads are ranked anew, those that went before among them
(:mod:`headscope.pruning.block_elimination`), and each map is refitted to what the whole layer would
have put out on the same input.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headscope.models.run.loaded import LoadedModel
from headscope.pruning.block_elimination import (
    RIDGE,
    Elimination,
    eliminate,
    refitted,
    rows_kept,
)
from headscope.pruning.sublayers import (
    Moments,
    Sublayer,
    copied,
    moments,
    sublayers,
)
from headscope.tasks.base import Task

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


class RefittedModel:
    """A model whose heads go step by step; each call continues from its current state."""

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        *,
        seed: int = 0,
    ) -> None:
        self._task = task
        self.zeroed = copied(loaded)  # the model in its whole shape, zeros for units that went
        self.layers = sublayers(self.zeroed)
        self._whole = [item.weights() for item in self.layers]
        self._seed, self._round = seed, 0
        #: Moments and paths of the whole model, by name of the sublayer: computed only once.
        self._at_whole: dict[str, Moments] = {}
        self._first_paths: dict[str, Elimination] = {}
        self.counts = [item.n_units for item in self.layers]
        self._kept = [tuple(range(item.n_units)) for item in self.layers]

    def whole(self) -> RefittedModel:
        """Begin anew with all heads; the moments of the whole model are measured only once."""
        for item, W in zip(self.layers, self._whole, strict=True):
            item.write(W)
        anew = copy.copy(self)
        anew.counts = [item.n_units for item in self.layers]
        anew._kept = [tuple(range(count)) for count in anew.counts]
        anew._round = 0
        return anew

    def paths(self) -> list[Elimination]:
        """Rank the units of every sublayer in the model's current state."""
        self.found = self._moments()
        known = self._first_paths if self._round == 1 else {}
        for item, W, own in zip(self.layers, self._whole, self.found, strict=True):
            if item.name not in known:
                known[item.name] = eliminate(item, W, own)
        return [known[item.name] for item in self.layers]

    def set_counts(self, paths: Sequence[Elimination], counts: Sequence[int]) -> None:
        """Keep this many units of each sublayer, by the paths that :meth:`paths` returned last."""
        self.counts = list(counts)
        self._kept = [
            path.kept(count, item.n_units)
            for item, path, count in zip(self.layers, paths, counts, strict=True)
        ]
        self._write([own.A for own in self.found])

    def keep(
        self, kept: Sequence[tuple[int, ...]], inputs: Sequence[Tensor] | None = None
    ) -> list[Choice]:
        """Keep the units at these indices, and refit the maps in the model's current state.

        ``inputs`` are the second moments A of every sublayer, where they are known.
        """
        self._kept, self.counts = list(kept), [len(places) for places in kept]
        if inputs is None:
            self.refit()
        else:
            self._round += 1  # the pass that this saves
            self._write(inputs)
        return self.choices()

    def refit(self) -> None:
        """Run the model as it stands, and refit all maps to it."""
        self._write([own.A for own in self._moments()])

    def choices(self) -> list[Choice]:
        """Return what stays of each sublayer now."""
        return [
            Choice(item, tuple(item.units[place] for place in kept), item.weights())
            for item, kept in zip(self.layers, self._kept, strict=True)
        ]

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

    def _write(self, inputs: Sequence[Tensor]) -> None:
        for item, W, A, kept in zip(self.layers, self._whole, inputs, self._kept, strict=True):
            item.write(refitted(W, A, rows_kept(item, kept), RIDGE))
