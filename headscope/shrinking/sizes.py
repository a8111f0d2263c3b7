"""How small a model must be to reach a target: the most layers first, then the widest ones.

Sizes are timed, or weighed, before anything is trained: a model of the first layers, and of the
first neurons of each, costs what the trained one will cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel
from headscope.shrinking.bench import Bench
from headscope.shrinking.layers import counts_of, first_layers, longest_stack
from headscope.shrinking.neurons import MULTIPLE, first_neurons, multiple, width_of
from headscope.shrinking.result import Target
from headscope.shrinking.serving import Form

NARROWEST = 1 / 2  # Share of the neurons that stay before a whole layer goes
#: How much faster a model becomes at most with half of its neurons: usually two thirds of the work
#: are theirs.
HALF_GAINS = 1.6
TIMED = 16  # Texts that calibrate 8 bits of a model that is only timed
#: A model is trained only if its speed reaches so many times what was asked: one that only just
#: reaches it misses it as often as not when it is timed again.
SPARE = 1.02


@dataclass(frozen=True)
class Shape:
    """The size of a smaller model."""

    layers: int  # Of its longest stack
    width: int  # Neurons of each feed-forward network; 0 where they cannot be taken apart


class Cost(NamedTuple):
    """What a model of some size takes."""

    value: float  # MB, milliseconds a text, or its time as a share of the whole model's
    words: str


def largest_that_reaches(
    bench: Bench, form: Form, target: Target, *, speed: float, tell: Progress
) -> tuple[Shape | None, str]:
    """Find the largest model that reaches a target in one form.

    ``speed`` is that of the whole model in this form, in units of torch's.

    Returns the size, None where nothing reaches the target; and what the last size that was tried
    costs, in words.
    """
    limit = _limit(target)
    counts = _possible_counts(bench.full_model, target, speed)
    words = ""
    for i, count in enumerate(counts):
        tell("choosing a size", i, len(counts))
        model = first_layers(bench.full_model, count)
        width = width_of(model)
        narrowest = multiple(NARROWEST * width)
        can_be_narrower = 0 < narrowest < width
        smallest = first_neurons(model, narrowest) if can_be_narrower else model
        cost, words = _cost(bench, smallest, form, target)
        if cost > limit:
            continue
        if can_be_narrower:

            def cost_of_width(width: int, model: LoadedModel = model) -> float:
                return _cost(bench, first_neurons(model, width), form, target).value

            width = _widest_that_reaches(
                cost_of_width,
                limit=limit,
                narrowest=narrowest,
                cost_of_narrowest=cost,
                full_width=width,
            )
        return Shape(count, width), words
    return None, words


def _limit(target: Target) -> float:
    """Return the largest :class:`Cost` with which a target is reached, with some to spare."""
    if target.name == "mb":
        return target.value
    if target.name == "ms":
        return target.value / SPARE
    return 1 / (SPARE * target.value)


def _possible_counts(full_model: LoadedModel, target: Target, speed: float) -> list[int]:
    """List the numbers of layers to try, most first, without those that are surely too slow."""
    all_layers = longest_stack(full_model)
    counts = [all_layers, *counts_of(full_model)]
    if target.name != "speed":
        return counts
    fast_enough = [
        count for count in counts if speed * HALF_GAINS * all_layers / count >= target.value
    ]
    return fast_enough or counts[-1:]


def _widest_that_reaches(
    cost_of_width: Callable[[int], float],
    *,
    limit: float,
    narrowest: int,
    cost_of_narrowest: float,
    full_width: int,
) -> int:
    """Find how many neurons a layer can have within a limit, of which ``narrowest`` are known to.

    The cost is nearly linear between the two widths. The model of the width that this line gives is
    measured before it is taken.
    """
    cost_of_full = cost_of_width(full_width)
    if cost_of_full <= limit:
        return full_width
    share = (limit - cost_of_narrowest) / (cost_of_full - cost_of_narrowest)
    steps = int(share * (full_width - narrowest)) // MULTIPLE
    width = narrowest + steps * MULTIPLE
    while width > narrowest and cost_of_width(width) > limit:
        width = max(narrowest, width - 2 * MULTIPLE)
    return width


def _cost(bench: Bench, model: LoadedModel, form: Form, target: Target) -> Cost:
    """Measure what a model that is not yet trained costs, in the unit of the target.

    Of an interval the worse end counts; an unknown cost is infinite.
    """
    files = bench.files(model, texts=TIMED)
    served = files.served(form)
    if target.name == "mb":
        megabytes = files.megabytes(form)
        cost = Cost(megabytes, f"{megabytes:.1f} MB")
    else:
        speed, ms, _ = bench.times(model, served)
        if target.name == "ms":
            cost = Cost(ms.high or math.inf, f"{ms.value:.2f} ms a text")
        else:
            cost = Cost(1 / (speed.low or 1e-9), f"{speed.value:.2f} times the speed")
    files.close()
    return cost
