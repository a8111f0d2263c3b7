"""A smaller model of a given size: which layers and neurons stay, and how what is left is trained.

Some sets of layers are distilled for a short time. The model that comes nearest to the whole one's
outputs is narrowed, and trained for the rest of the minutes.
"""

from __future__ import annotations

import dataclasses
import random

from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layer_stacks import Layer
from headscope.models.surgery.layers import remove_layers
from headscope.shrinking.bench import Bench
from headscope.shrinking.distil import distil
from headscope.shrinking.layers import nearest_subsets, spread_evenly
from headscope.shrinking.neurons import TEXTS, narrowed, width_of
from headscope.shrinking.result import Training
from headscope.shrinking.serving import Files
from headscope.shrinking.sizes import Shape

#: Sets of layers that are trained for a short time: the nearest ones before any training, and the
#: one that leaves layers evenly spread.
NEAREST = 2
BRIEFLY = 0.1  # Share of the minutes that each set has
_JUDGED = 128  # Calibration texts on which sets of layers are compared before training


class Maker:
    """Makes models of given sizes, with some minutes of training for each.

    ``bench`` holds the whole model and the texts, and measures distances between outputs.
    """

    def __init__(self, bench: Bench, minutes: float, tell: Progress) -> None:
        self._bench = bench
        self._minutes = minutes
        self._tell = tell
        #: Whether training runs in bfloat16, where that is faster; None before it was tried
        self._in_bfloat16: bool | None = None

    def make(self, shape: Shape) -> tuple[Files, Training | None]:
        """Choose which layers and neurons stay, and distil what is left.

        Returns the model, in files that are written when they are asked for, and how it was
        trained: None where there are no minutes, or nothing is removed.
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
        """Leave ``count`` layers in the longest stack, those that train best.

        Returns the model, trained for a short time, and the minutes that all of this took.
        """
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
        assert nearest is not None  # there are candidates
        return nearest, len(candidates) * briefly

    def _candidates(self, count: int) -> list[tuple[Layer, ...]]:
        """List sets of layers to remove: the nearest ones, then the one that leaves them evenly.

        A single empty set where no layer is to go.
        """
        bench = self._bench
        evenly = spread_evenly(bench.full_model, count)
        if not evenly:
            return [()]

        def distance(model: LoadedModel) -> float:
            return bench.distance(model, model, most=_JUDGED)

        def tell(done: int, total: int) -> None:
            self._tell("choosing layers", done, total)

        sets = nearest_subsets(bench.full_model, count, distance, tell)
        candidates = sets[:NEAREST]
        # unless it is one of the nearest, or the family refuses it
        candidates += [removed for removed in sets[NEAREST:] if set(removed) == set(evenly)]
        return candidates

    def _narrowed(self, model: LoadedModel, width: int) -> LoadedModel:
        """Leave ``width`` neurons in every layer, chosen on texts drawn at random."""
        self._tell("choosing neurons", 0, 1)
        rows = self._bench.texts.training_rows(model)
        drawn = random.Random(self._bench.seed).sample(rows, min(TEXTS, len(rows)))
        return narrowed(model, width, drawn)

    def _distilled(
        self, model: LoadedModel, minutes: float, spent: float
    ) -> tuple[LoadedModel, Training]:
        """Train for so many minutes; ``spent`` says how many of this size's were used before."""
        bench = self._bench

        def tell(share: float) -> None:
            done = (spent + share * minutes) / self._minutes
            self._tell("distilling", round(1000 * done), 1000)

        trained, training = distil(
            model,
            bench.teacher,
            bench.texts.training_rows(model),
            minutes,
            seed=bench.seed,
            known=bench.known,
            in_bfloat16=self._in_bfloat16,
            tell=tell,
        )
        self._in_bfloat16 = training.arithmetic == "bfloat16"
        return trained, training
