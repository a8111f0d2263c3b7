"""A number of heads that costs at most so much: chosen on one half, confirmed on the other.

::

    allowed(n):  upper end of the paired 95% interval of the loss <= max_drop

The choosing half is searched by bisection, candidate by candidate. The confirming half is looked
at once. If it does not confirm the number, smaller ones are tried there: a list that is fixed
before the first of them is looked at, each at level 1 - 0.05 / (length of the list), so that all of
them together fail as seldom as one interval of 95%.

What the result says of the model that is returned (its point, the unpruned model, random heads, one
head more) is measured on the confirming half alone: on the other half it was chosen for its value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.rounding import above
from headscope.data.token_rows import halve, shared_sentences
from headscope.pruning.curves import (
    Outcome,
    Version,
    even_prices,
    random_point,
    scores_of,
    tables,
)
from headscope.pruning.measure import at
from headscope.pruning.options import FEWEST, PruneOptions, Repair
from headscope.pruning.ranking import Ranking
from headscope.pruning.repair import Repaired
from headscope.pruning.result import Curve, DropLook, DropPart, MaxDrop, OneMore
from headscope.pruning.setup import Inputs, Pruner, prepare
from headscope.pruning.steps import Steps, after_search, units_at_once
from headscope.stats.metrics import RESAMPLES
from headscope.stats.paired_change import Change, paired_change
from headscope.tasks.base import Task

LEVEL = 0.95  # Of intervals, unless several smaller numbers share it.
#: Resamples of an interval of a higher level, whose ends lie farther out.
_RESAMPLES_FAR = 10 * RESAMPLES


# --- models of the search -------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One way to prune: an order of heads and a repair."""

    method: str
    repair: Repair
    ranking: Ranking

    @property
    def name(self) -> str:
        """``fisher + scale``; the method alone where nothing is repaired."""
        repaired = self.repair is not Repair.none
        return self.method + (f" + {self.repair.value}" if repaired else "")


@dataclass(frozen=True)
class Judged:
    """What a model loses on one half, and the upper end of that; ``allowed`` if it is small."""

    change: Change
    lost: float
    most_lost: float
    allowed: bool


@dataclass(frozen=True)
class Halves:
    """Two sets of examples, and how many sentences stand in both."""

    choosing: Array
    confirming: Array
    shared: int


def halves_of(task: Task, seed: int) -> Halves:
    """Split the examples of a task at random, no sentence on both sides where that can be."""
    sentences = task.sentences
    first, second = halve(sentences, seed)
    shared = shared_sentences(sentences, first, second)
    return Halves(np.array(first), np.array(second), shared)


def check_enough(task: Task) -> None:
    """Refuse a search on so few examples that its intervals would not hold."""
    if task.n_examples < FEWEST:
        raise InputError(
            f"{task.data.name} gives {task.n_examples} examples, and max_drop needs {FEWEST} or "
            "more (better hundreds): one half to choose on and one to confirm on."
        )


class Search:
    """Makes, measures and judges the models of a search; a *number* is one of steps of heads.

    A step is one unit, or one unit of every layer where layers lose equally many; ``wanted`` is the
    most that may be lost.
    """

    def __init__(self, pruner: Pruner, wanted: float) -> None:
        self._pruner, self.wanted = pruner, wanted
        self._task = pruner.inputs.evaluation
        self.halves = halves_of(self._task, pruner.options.seed)
        self.step = units_at_once(pruner.units, pruner.options)
        #: The largest number that leaves a head.
        self.most = len(pruner.units) // self.step - 1
        self.looks: list[DropLook] = []
        self._models: dict[tuple[str, Repair, int], Repaired] = {}
        self._judged: dict[tuple[str, Repair, int, str, float], Judged] = {}

    def model(self, candidate: Candidate, number: int) -> Repaired:
        """Return a candidate's model that lost this number; made and measured once."""
        key = candidate.method, candidate.repair, number
        if key not in self._models:
            removed = candidate.ranking.remove(number * self.step)
            self._models[key] = self._pruner.repaired(candidate.repair, removed)
            self._pruner.measure.outputs(self._models[key], False)
            self._pruner.steps.did("measured")
        return self._models[key]

    def heads(self, candidate: Candidate, number: int) -> int:
        """Return how many heads that model lost."""
        return len(self._pruner.units.heads(self.model(candidate, number).removed))

    def judge(self, candidate: Candidate, number: int, part: str, level: float = LEVEL) -> Judged:
        """Say what a model loses on the ``choosing`` or ``confirming`` half; each once."""
        key = candidate.method, candidate.repair, number, part, level
        if key in self._judged:
            return self._judged[key]
        task, half, measure = self._task, getattr(self.halves, part), self._pruner.measure
        change = paired_change(
            task.table[task.metric],
            at(measure.full, half),
            at(measure.outputs(self.model(candidate, number), False), half),
            level=level,
            seed=self._pruner.options.seed,
            resamples=RESAMPLES if level == LEVEL else _RESAMPLES_FAR,
        )
        sign = 1 if task.higher_is_better else -1
        lost, most_lost = -sign * change.difference, change.most_lost(sign)
        allowed = not bool(above(most_lost, self.wanted))
        self._judged[key] = Judged(change, lost, most_lost, allowed)
        names, heads = (candidate.method, candidate.repair.value), self.heads(candidate, number)
        self.looks.append(DropLook(*names, heads, part, lost, most_lost, level, allowed))
        return self._judged[key]

    def counted(self, candidate: Candidate, number: int) -> str:
        """``1 head``, ``5 heads``: what a model lost."""
        count = self.heads(candidate, number)
        return f"{count} {'head' if count == 1 else 'heads'}"

    def advice(self, judged: Judged) -> str:
        """Say what would help a model that is not allowed: more examples, or a larger bound."""
        room = self.wanted - judged.lost
        if room <= 0:
            return "give a larger max_drop"
        narrower = (judged.most_lost - judged.lost) / room
        needed = math.ceil(self._task.n_examples * narrower**2)
        unit = int(10 ** max(0, len(str(needed)) - 2))  # two digits of a guess, rounded up
        examples = -(-needed // unit) * unit
        return f"give about {examples:,} examples in all, or a larger max_drop"


# --- choosing -------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """A candidate and the number of steps that it may lose."""

    candidate: Candidate
    number: int
    judged: Judged


def most_allowed(most: int, allowed: Callable[[int], bool], at_least: int = 0) -> int:
    """Find the largest number from ``at_least``, which is not asked for, to ``most`` that passes.

    About log2(most - at_least) + 1 questions. Losses need not rise with every head: bisection ends
    at a number whose neighbour above is not allowed, so the one above that is asked for too, and
    wherever it is allowed the search goes on from there. Larger ones may exist all the same.
    """
    low, high = at_least, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    step = 1
    while low + step <= most and step <= 2:
        if allowed(low + step):
            low, step = low + step, 1
        else:
            step += 1
    return low


def choose(search: Search, candidates: list[Candidate]) -> Chosen:
    """Find the candidate that may lose most on the choosing half; of equals the better one.

    A candidate that is allowed neither the best number so far nor the next one is not followed.
    """
    best: Chosen | None = None
    for candidate in candidates:

        def allowed(number: int, candidate: Candidate = candidate) -> bool:
            return search.judge(candidate, number, "choosing").allowed

        start = best.number if best else 0
        if best and not allowed(start):
            start += 1
            if start > search.most or not allowed(start):
                continue
        number = most_allowed(search.most, allowed, start)
        if number == 0:
            continue
        new = Chosen(candidate, number, search.judge(candidate, number, "choosing"))
        better = best is None or above(best.judged.lost, new.judged.lost)
        if best is None or number > best.number or (number == best.number and better):
            best = new
    if best is not None:
        return best
    judged = [(search.judge(c, 1, "choosing"), c) for c in candidates] if search.most else []
    if not judged:
        raise InputError(
            "Every layer has one head only, so none can go in each of them; leave out even."
        )
    least, candidate = min(judged, key=lambda item: item[0].most_lost)
    raise InputError(
        f"No head can go for a loss of at most {search.wanted:g}: without "
        f"{search.counted(candidate, 1)} ({candidate.name}) the loss is {least.lost:.4g} on the "
        f"{least.change.examples:,} examples to choose on, and its 95% interval reaches "
        f"{least.most_lost:.4g}; {search.advice(least)}."
    )


# --- confirming -----------------------------------------------------------------------------------


class Confirmed(NamedTuple):
    """What the other half says."""

    number: int
    judged: Judged
    first: Judged  # the chosen model there
    planned: int  # length of the list of smaller numbers


def smaller(number: int) -> tuple[int, ...]:
    """List the numbers that are tried after a refusal: 1, 2, 4, 8 ... less, none below 1."""
    steps = (2**i for i in range(number.bit_length()))
    return tuple(number - step for step in steps if step < number)


def confirm(search: Search, chosen: Chosen) -> Confirmed:
    """Look at the confirming half; where it refuses, go down a list that is fixed beforehand."""
    candidate, number = chosen.candidate, chosen.number
    first = last = search.judge(candidate, number, "confirming")
    rungs = smaller(number)
    if first.allowed:
        return Confirmed(number, first, first, len(rungs))
    for number in rungs:
        last = search.judge(candidate, number, "confirming", 1 - (1 - LEVEL) / len(rungs))
        if last.allowed:
            return Confirmed(number, last, first, len(rungs))
    tried = f", nor any of {len(rungs)} smaller numbers" if rungs else ""
    raise InputError(
        f"{search.counted(candidate, chosen.number)} ({candidate.name}) may go by one half of the "
        f"examples, but the other half ({first.change.examples:,}) does not confirm it{tried}: "
        f"without {search.counted(candidate, number)} the loss there is {last.lost:.4g}, its "
        f"{100 * last.change.level:.4g}% interval reaches {last.most_lost:.4g}, and at most "
        f"{search.wanted:g} was allowed; {search.advice(last)}."
    )


# --- the run --------------------------------------------------------------------------------------


def find_most(inputs: Inputs, options: PruneOptions, steps: Steps) -> Outcome:
    """Search for the number of heads, and describe the model that lost them."""
    assert options.max_drop is not None
    pruner = prepare(inputs, options, steps)
    if (why := pruner.measure.degenerate()) is not None:
        raise InputError(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, so "
            "max_drop cannot be used; give fractions to see the values."
        )
    if len(pruner.units) < 2:
        raise InputError(f"{inputs.loaded.name} has one head only, and it must stay.")
    search = Search(pruner, options.max_drop)
    rankings = pruner.rankings()
    # Those without repair first: they cost least to try.
    candidates = [Candidate(name, kind, rankings[name]) for name, kind in options.candidates]
    candidates.sort(key=lambda candidate: list(Repair).index(candidate.repair))
    chosen = choose(search, candidates)
    confirmed = confirm(search, chosen)

    # All that follows is measured on the confirming half.
    candidate, number = chosen.candidate, confirmed.number
    examples = search.halves.confirming
    measure = pruner.measure.on(examples)
    counts = (0, number * search.step)
    pruner = dataclasses.replace(pruner, counts=counts, measure=measure)
    steps.expect(after_search(options, candidate.repair))
    made = search.model(candidate, number)
    point = measure.judged(measure.point(made), confirmed.judged.change)
    version = Version(candidate.method, candidate.repair, made, point, examples)
    nothing = pruner.point(pruner.repaired(candidate.repair, ()))
    curves = [Curve(candidate.method, candidate.repair.value, (nothing, point))]
    if "random" in options.method_names:
        points = tuple(random_point(pruner, count) for count in counts)
        curves.append(Curve("random", "none", points))
    one_more = None
    if number < search.most:
        more = measure.point(search.model(candidate, number + 1), all_metrics=False)
        assert more.difference is not None  # only random draws have none
        one_more = OneMore(
            heads=len(more.heads_removed),
            value=more.value,
            difference=more.difference,
            ci=more.difference_ci,
            step=more.value - point.value,
            step_ci=measure.change(point, more).ci,
        )

    def part(number: int, change: Change) -> DropPart:
        heads, values = search.heads(candidate, number), (change.value, change.difference)
        return DropPart(heads, change.examples, change.baseline, *values, change.ci, change.level)

    refused = number != chosen.number
    max_drop = MaxDrop(
        wanted=search.wanted,
        count=search.heads(candidate, number),
        method=candidate.method,
        repair=candidate.repair.value,
        chosen=part(chosen.number, chosen.judged.change),
        confirmed=part(number, confirmed.judged.change),
        refused=part(chosen.number, confirmed.first.change) if refused else None,
        planned=confirmed.planned,
        measured_on="confirming",
        one_more=one_more,
        looks=tuple(search.looks),
        shared=search.halves.shared,
        per_layer=number if options.even else None,
    )
    even = even_prices(pruner, candidate.ranking, version)
    ablation, kept_alone = tables(pruner)
    return Outcome(
        baseline=measure.baseline(),
        curves=tuple(curves),
        scores=tuple(scores_of(*item, inputs.loaded, pruner.units) for item in rankings.items()),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=None,
        versions=(version,),
        even=even,
        max_drop=max_drop,
    )
