"""How small a model must be to reach a target in speed, milliseconds or megabytes.

With the most layers that can reach it, each as wide as it may be. Sizes are timed, or weighed,
before anything is trained: a model of the first layers, and of the first neurons of each, costs
what the trained one will cost.

A *form* is the runtime and precision in which the model is to be served; ``bench`` times models in
it, side by side with the whole one. :func:`largest_that_reaches` is the entry point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel
from headscope.show.estimates import ranged
from headscope.shrinking.bench import Bench
from headscope.shrinking.layers import first_layers, longest_stack, smaller_counts
from headscope.shrinking.neurons import MULTIPLE, first_neurons, rounded_up, width_of
from headscope.shrinking.result import Target
from headscope.shrinking.serving import TORCH, Form, megabytes_of

NARROWEST = 1 / 2  # Share of its neurons that a layer keeps at least; before that a layer goes
#: How much faster a model becomes at most with half of its neurons: feed-forward networks are
#: usually two thirds of the work.
HALF_GAINS = 1.6
TIMED = 16  # Texts that calibrate the 8-bit file of a model that is only timed
#: A model is trained only if it is so many times as fast as was asked: one that only just reaches
#: the target misses it as often as not when it is timed again.
SPARE = 1.02


@dataclass(frozen=True)
class Shape:
    """The size of a smaller model."""

    layers: int  # Of its longest stack
    width: int  # Neurons of each feed-forward network; 0 where they cannot be taken apart


class Cost(NamedTuple):
    """What a model of some size costs: the less the better."""

    value: float  # MB, milliseconds a text, or its time as a share of the whole model's
    words: str  # The same for a person: ``2.31 ms a text``


def largest_that_reaches(
    bench: Bench, form: Form, target: Target, *, speed: float, tell: Progress
) -> tuple[Shape | None, str]:
    """Find the largest model that reaches a target in one form.

    ``speed`` says how many times as fast the whole model is in this form as in torch.

    Returns the size, None where nothing reaches the target; and in words what the narrowest model
    costs that has the last number of layers that was tried.
    """
    counts = _possible_counts(bench.full_model, target, speed)
    words = ""
    for i, count in enumerate(counts):
        tell("choosing a size", i, len(counts))
        width, words = _widest_that_reaches(
            bench, first_layers(bench.full_model, count), form, target
        )
        if width is not None:
            return Shape(count, width), words
    return None, words


def _limit(target: Target) -> float:
    """Return the largest :class:`Cost` that reaches a target, in time with some to spare."""
    if target.name == "mb":
        return target.value
    if target.name == "ms":
        return target.value / SPARE
    return 1 / (SPARE * target.value)  # twice as fast is half of the time


def _possible_counts(full_model: LoadedModel, target: Target, speed: float) -> list[int]:
    """List the numbers of layers to try, most first, without those that are surely too slow.

    At least the smallest number is tried.
    """
    all_layers = longest_stack(full_model)
    counts = [all_layers, *smaller_counts(full_model)]
    if target.name != "speed":
        return counts
    fast_enough: list[int] = []
    for count in counts:
        fastest = speed * HALF_GAINS * all_layers / count  # with half of the neurons
        if fastest >= target.value:
            fast_enough.append(count)
    return fast_enough or [counts[-1]]


def _widest_that_reaches(
    bench: Bench, model: LoadedModel, form: Form, target: Target
) -> tuple[int | None, str]:
    """Find how many neurons each layer of a model can have so that it reaches a target.

    The cost is nearly linear between the narrowest width and the full one. The model of the width
    that this line gives is measured before it is taken; while it misses the target, it gets
    narrower.

    Returns the width, None where even the narrowest misses; and what the narrowest costs, in words.
    Where a model cannot get narrower, its own width stands for both.
    """
    limit = _limit(target)
    full_width = width_of(model)
    narrowest = rounded_up(NARROWEST * full_width)
    if not 0 < narrowest < full_width:  # narrow already, or networks that cannot be cut
        cost, words = _cost(bench, model, form, target)
        return (full_width, words) if cost <= limit else (None, words)

    def cost_of_width(width: int) -> Cost:
        return _cost(bench, first_neurons(model, width), form, target)

    # the two ends of the line
    cost_of_narrowest, words = cost_of_width(narrowest)
    if cost_of_narrowest > limit:
        return None, words
    cost_of_full = cost_of_width(full_width).value
    if cost_of_full <= limit:
        return full_width, words

    # the width between them that, by the line, costs just as much as it may
    share = (limit - cost_of_narrowest) / (cost_of_full - cost_of_narrowest)
    steps = int(share * (full_width - narrowest)) // MULTIPLE
    width = narrowest + steps * MULTIPLE
    while width > narrowest and cost_of_width(width).value > limit:  # it promised too much
        width = max(narrowest, width - 2 * MULTIPLE)
    return width, words


def _cost(bench: Bench, model: LoadedModel, form: Form, target: Target) -> Cost:
    """Measure what a model that is not yet trained costs, in the unit of the target.

    Of an interval of times the worse end counts. Where it is unknown the cost is beyond any limit.
    """
    files = bench.files(model, n_texts=TIMED)
    served = files.served(form)
    if target.name == "mb":
        # Training it takes its weights out of float16, in which a file would be half as large.
        megabytes = megabytes_of(model) if form == TORCH else files.megabytes(form)
        cost = Cost(megabytes, f"{megabytes:.1f} MB")
    else:
        times = bench.times(model, served)
        speed = times.speed
        ms = times.ms
        if target.name == "ms":
            most_ms = math.inf if ms.high is None else ms.high
            cost = Cost(most_ms, f"{ranged(ms, 2)} ms a text")
        else:
            longest = math.inf if speed.low is None or speed.low == 0 else 1 / speed.low
            cost = Cost(longest, f"{ranged(speed, 2)} times the speed")
    files.close()
    return cost
