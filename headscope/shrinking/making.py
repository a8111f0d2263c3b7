"""A smaller model of a given size: which layers and neurons stay, and how what is left is trained.

Some sets of layers are distilled briefly, and the one that comes nearest is narrowed and trained
for the rest of the minutes.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers
from headscope.shrinking.bench import Bench
from headscope.shrinking.distil import distil
from headscope.shrinking.layers import nearest_subsets, spread_evenly
from headscope.shrinking.neurons import TEXTS, narrowed, width_of
from headscope.shrinking.result import Training
from headscope.shrinking.serving import Files
from headscope.shrinking.sizes import Shape

#: Sets of layers that are trained briefly beside the evenly spread one, and the share of the
#: minutes that each of them has.
NEAREST = 2
BRIEFLY = 0.1
_JUDGED = 128  # Calibration texts on which sets of layers are compared before training


class Maker:
    """Makes models of given sizes, with some minutes of training for each."""

    def __init__(self, bench: Bench, minutes: float, tell: Progress) -> None:
        self._bench = bench
        self._minutes = minutes
        self._tell = tell
        self._low: bool | None = None  # Whether bfloat16 trains faster; None before it was tried

    def make(self, shape: Shape) -> tuple[Files, Training | None]:
        """Choose which layers and neurons stay, and distil what is left.

        No training is returned where there are no minutes, or nothing is removed.
        """
        bench = self._bench
        full_model = bench.full_model
        narrower = 0 < shape.width < width_of(full_model)
        if not narrower and not spread_evenly(full_model, shape.layers):
            return bench.files(full_model), None

        bench.files_of_whole.release()  # what runtimes hold is not needed while training
        release_memory()
        model, spent = self._with_layers(shape.layers)
        if narrower:
            model = self._narrowed(model, shape.width)
        if self._minutes == 0:
            return bench.files(model), None
        model, training = self._distilled(model, self._minutes - spent, spent)
        return bench.files(model), dataclasses.replace(training, minutes=spent + training.minutes)

    def _with_layers(self, count: int) -> tuple[LoadedModel, float]:
        """Leave ``count`` layers in the longest stack; returns the minutes that choosing took."""
        full_model = self._bench.full_model
        candidates = self._candidates(count)
        if self._minutes == 0 or len(candidates) == 1:
            return remove_layers(full_model, candidates[0]), 0.0

        briefly = BRIEFLY * self._minutes
        nearest: LoadedModel | None = None
        shortest = 0.0
        for i, removed in enumerate(candidates):
            shorter = remove_layers(full_model, removed)
            model, training = self._distilled(shorter, briefly, spent=i * briefly)
            if nearest is None or training.after < shortest:
                nearest = model
                shortest = training.after
        assert nearest is not None
        return nearest, len(candidates) * briefly

    def _candidates(self, count: int) -> list[tuple[Any, ...]]:
        """List sets of layers to remove: the nearest first, and the evenly spread one."""
        bench = self._bench
        evenly = spread_evenly(bench.full_model, count)
        if not evenly:
            return [()]

        def distance(model: LoadedModel) -> float:
            return bench.distance(model, model, most=_JUDGED)

        def tell(done: int, total: int) -> None:
            self._tell("choosing layers", done, total)

        sets = nearest_subsets(bench.full_model, count, distance, tell)
        spread = [removed for removed in sets[NEAREST:] if set(removed) == set(evenly)]
        return [*sets[:NEAREST], *spread]

    def _narrowed(self, model: LoadedModel, width: int) -> LoadedModel:
        """Leave ``width`` neurons in every layer, chosen on random calibration texts."""
        self._tell("choosing neurons", 0, 1)
        rows = self._bench.texts.rows(model)
        drawn = random.Random(self._bench.seed).sample(rows, min(TEXTS, len(rows)))
        return narrowed(model, width, drawn)

    def _distilled(
        self, model: LoadedModel, minutes: float, spent: float
    ) -> tuple[LoadedModel, Training]:
        """Train for some of the minutes; ``spent`` are those used before."""
        bench = self._bench

        def tell(share: float) -> None:
            done = (spent + share * minutes) / self._minutes
            self._tell("distilling", round(1000 * done), 1000)

        trained, training = distil(
            model,
            bench.teacher,
            bench.texts.rows(model),
            minutes,
            seed=bench.seed,
            known=bench.known,
            low=self._low,
            tell=tell,
        )
        self._low = training.arithmetic == "bfloat16"
        return trained, training
