"""How fast a model is compared with the whole one, on batches of the evaluation texts' lengths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from headscope.artefacts.onnx_session import RuntimeFile
from headscope.data.token_rows import Row, padded
from headscope.models.run.loaded import LoadedModel
from headscope.removal.confirm_speed import FEWEST, median_interval, ratio_interval
from headscope.removal.timing import in_turns, passes
from headscope.stats.estimate import Estimate

_BATCHES, _SECONDS = 3, 15.0  # Batches in a round; seconds of all rounds beyond the fewest


class Times(NamedTuple):
    """How fast a model is."""

    speed: Estimate  # Time of the whole model in torch / its own, over pairs of runs
    ms: Estimate  # Milliseconds a text, at the machine's pace during these runs
    ms_of_whole: Estimate

    def of_whole(self) -> Times:
        """Return the times of the whole model in torch."""
        return Times(Estimate(1.0), self.ms_of_whole, self.ms_of_whole)


#: A model, what runs in its place (itself, or a file of a runtime), and its rows of tokens.
Side = tuple[LoadedModel, LoadedModel | RuntimeFile, Sequence[Row]]


def times(whole: Side, cut: Side | None, *, batch_size: int, seed: int) -> Times:
    """Time a model in turns with the whole one, each on batches of its own tokens.

    Without ``cut`` the whole model runs alone. Where the machine's pace changed so much that the
    ratio has no interval, they run twice as often again, once.
    """
    places = spread_places(whole[2], batch_size)
    runs, texts = [], sum(map(len, places))
    with ExitStack() as stack:
        for model, served, rows in (whole, cut) if cut else (whole,):
            batches = [
                padded([rows[i] for i in part], model.pad_id, model.device) for part in places
            ]
            runs += stack.enter_context(passes([served], batches))
        spent = in_turns(runs, fewest=FEWEST, most=4 * FEWEST, seconds=_SECONDS).sum(axis=2)
        if cut and ratio_interval(*spent.T, seed=seed)[1] is None:
            again = in_turns(runs, fewest=2 * len(spent), most=2 * len(spent), seconds=0.0)
            spent = np.concatenate([spent, again.sum(axis=2)])
    ms = [Estimate(*median_interval(1e3 * s / texts, seed=seed)) for s in spent.T]
    speed = Estimate(*ratio_interval(*spent.T, seed=seed)) if cut else Estimate(1.0)
    return Times(speed, ms[-1], ms[0])


def spread_places(rows: Sequence[Row], size: int) -> list[list[int]]:
    """Return batches of text indices with the evaluation texts' own mixture of lengths.

    Texts are sorted by length and cut into batches, as programs that pad do; a few batches are
    taken evenly from the shortest to the longest.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    every = [order[first : first + size] for first in range(0, len(order), size)]
    full = [part for part in every if len(part) == size] or every
    middles = (np.arange(_BATCHES) + 0.5) / _BATCHES * len(full)
    return [full[i] for i in sorted({int(middle) for middle in middles})]
