"""A number of heads that costs at most so much: chosen on one half, confirmed on the other.

::

    allowed(n):  upper end of the paired 95% interval of the loss <= max_drop

The choosing half is searched by bisection, candidate by candidate. The confirming half is looked
at once. If it does not confirm the number, smaller ones are tried there: a list that is fixed
before the first of them is looked at, each at level 1 - 0.05 / (length of the list), so that all of
them together fail as seldom as one interval of 95%.

What the result says of the model that was found (its point, the unpruned model, random heads, one
head more) is measured on the confirming half alone: on the other half it was chosen for its value.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from headscope.core.errors import InputError
from headscope.measures.paired_change import Change
from headscope.measures.rounding import above
from headscope.pipeline.prune.choosing import scores_of
from headscope.pipeline.prune.curves import Outcome, Version, random_curve, tables
from headscope.pipeline.prune.even import even_price
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repair
from headscope.pipeline.prune.setting_up import Inputs, Parts, prepare
from headscope.pipeline.prune.steps import Steps, after_search
from headscope.pipeline.prune.tries import LEVEL, Candidate, Judged, Tries
from headscope.pruning.even import EvenRanking
from headscope.pruning.method import Ranking
from headscope.pruning.most_allowed import most_allowed
from headscope.results.even import EvenPrice
from headscope.results.max_drop import DropPart, MaxDrop, OneMore
from headscope.results.points import Curve, Point


class Chosen(NamedTuple):
    """A candidate and the number of steps that it may lose."""

    candidate: Candidate
    number: int
    judged: Judged


class Confirmed(NamedTuple):
    """What the other half says.

    ``first`` is the chosen model there, ``planned`` the length of the list of smaller numbers.
    """

    number: int
    judged: Judged
    first: Judged
    planned: int


def find_most(inputs: Inputs, options: PruneOptions, steps: Steps) -> Outcome:
    """Search for the number of heads, and describe the model that lost them.

    Raises
    ------
    InputError
        If the unpruned model's values mean nothing, or no number of heads is confirmed.
    """
    assert options.max_drop is not None
    parts = prepare(inputs, options, steps)
    _check_meaning(parts)
    tries = Tries(parts, options.max_drop)
    names = (name for name in options.method_names if name != "random")
    rankings = {name: parts.ranked(name) for name in names}
    chosen = choose(tries, _candidates(rankings, options))
    confirmed = confirm(tries, chosen)
    return _outcome(parts, tries, rankings, chosen, confirmed)


def _check_meaning(parts: Parts) -> None:
    if (why := parts.measure.degenerate()) is not None:
        raise InputError(
            f"The unpruned model {why}: what it loses with its heads says nothing about them, so "
            "max_drop cannot be used; give fractions to see the values."
        )
    if len(parts.units) < 2:
        raise InputError(f"{parts.inputs.loaded.name} has one head only, and it must stay.")


def _candidates(rankings: dict[str, Ranking], options: PruneOptions) -> list[Candidate]:
    """List all candidates, those without repair first: they cost least to try."""
    found = [Candidate(name, kind, rankings[name]) for name, kind in options.candidates]
    return sorted(found, key=lambda candidate: list(Repair).index(candidate.repair))


# --- choosing -----------------------------------------------------------------------------------


def choose(tries: Tries, candidates: list[Candidate]) -> Chosen:
    """Find the candidate that may lose most on the choosing half; of equals the better one.

    A candidate that is allowed neither the best number so far nor the next one is not followed.

    Raises
    ------
    InputError
        If none may lose anything.
    """
    best: Chosen | None = None
    for candidate in candidates:
        number = _most(tries, candidate, best.number if best else 0)
        if number == 0:
            continue
        found = Chosen(candidate, number, tries.judge(candidate, number, "choosing"))
        better = best is None or above(best.judged.lost, found.judged.lost)
        if best is None or number > best.number or (number == best.number and better):
            best = found
    if best is None:
        raise InputError(_no_head(tries, candidates))
    return best


def _most(tries: Tries, candidate: Candidate, best: int) -> int:
    """Return the most that a candidate may lose, 0 if that is less than ``best``."""
    allowed = tries.allowed(candidate)
    if best == 0:
        return most_allowed(tries.most, allowed)
    if allowed(best):
        return most_allowed(tries.most, allowed, best)
    if best < tries.most and allowed(best + 1):
        return most_allowed(tries.most, allowed, best + 1)
    return 0


def _no_head(tries: Tries, candidates: list[Candidate]) -> str:
    judged = [(tries.judge(c, 1, "choosing"), c) for c in candidates] if tries.most else []
    if not judged:
        return "Every layer has one head only, so none can go in each of them; leave out even."
    found, candidate = min(judged, key=lambda item: item[0].most_lost)
    without = f"{_heads(tries, candidate, 1)} ({_name(candidate)})"
    return (
        f"No head can go for a loss of at most {tries.wanted:g}: without {without} the loss is "
        f"{found.lost:.4g} on the {found.change.examples:,} examples to choose on, and its 95% "
        f"interval reaches {found.most_lost:.4g}; {tries.mend(found)}."
    )


# --- confirming ---------------------------------------------------------------------------------


def smaller(number: int) -> tuple[int, ...]:
    """List the numbers that are tried after a refusal: 1, 2, 4, 8 ... less, none below 1."""
    steps = (2**i for i in range(number.bit_length()))
    return tuple(number - step for step in steps if step < number)


def confirm(tries: Tries, chosen: Chosen) -> Confirmed:
    """Look at the confirming half; where it refuses, go down a list that is fixed beforehand.

    Raises
    ------
    InputError
        If it confirms nothing.
    """
    candidate = chosen.candidate
    first = tries.judge(candidate, chosen.number, "confirming")
    rungs = smaller(chosen.number)
    if first.allowed:
        return Confirmed(chosen.number, first, first, len(rungs))
    last, number = first, chosen.number
    for number in rungs:
        last = tries.judge(candidate, number, "confirming", 1 - (1 - LEVEL) / len(rungs))
        if last.allowed:
            return Confirmed(number, last, first, len(rungs))
    raise InputError(_not_confirmed(tries, chosen, first, (number, last)))


def _not_confirmed(
    tries: Tries, chosen: Chosen, first: Judged, smallest: tuple[int, Judged]
) -> str:
    """Say what the two halves say, and how far the smallest number that was tried is off."""
    candidate, (number, last) = chosen.candidate, smallest
    rungs = len(smaller(chosen.number))
    tried = f", nor any of {rungs} smaller numbers" if rungs else ""
    return (
        f"{_heads(tries, candidate, chosen.number)} ({_name(candidate)}) may go by one half of the "
        f"examples, but the other half ({first.change.examples:,}) does not confirm it{tried}: "
        f"without {_heads(tries, candidate, number)} the loss there is {last.lost:.4g}, its "
        f"{100 * last.change.level:.4g}% interval reaches {last.most_lost:.4g}, and at most "
        f"{tries.wanted:g} was allowed; {tries.mend(last)}."
    )


def _heads(tries: Tries, candidate: Candidate, number: int) -> str:
    count = tries.heads(candidate, number)
    return f"{count} {'head' if count == 1 else 'heads'}"


def _name(candidate: Candidate) -> str:
    repaired = candidate.repair is not Repair.none
    return candidate.method + (f" + {candidate.repair.value}" if repaired else "")


# --- what was found -----------------------------------------------------------------------------


def _outcome(
    parts: Parts, tries: Tries, rankings: dict[str, Ranking], chosen: Chosen, confirmed: Confirmed
) -> Outcome:
    """Measure what stands beside the model that was found: nothing removed, random, one more."""
    candidate, number = chosen.candidate, confirmed.number
    model, places = tries.model(candidate, number), tries.halves.confirming
    parts = dataclasses.replace(
        parts, counts=(0, number * tries.step), measure=parts.measure.on(places)
    )
    parts.steps.expect(after_search(parts.options, candidate.repair))
    measured = parts.measure.point(model.made, outputs=model.outputs)
    found = confirmed.judged.change
    point = parts.measure.judged(measured, found.difference, found.ci, found.level)
    version = Version(candidate.method, candidate.repair, model.made, point, places)
    nothing = parts.point(parts.repaired(candidate.repair, ()))
    curves = [Curve(candidate.method, candidate.repair.value, (nothing, point))]
    if "random" in parts.options.method_names:
        curves.append(random_curve(parts))
    max_drop = _described(tries, chosen, confirmed, _one_more(parts, tries, chosen, number, point))
    even = _even(parts, version, candidate.ranking)
    ablation, kept_alone = tables(parts)
    return Outcome(
        baseline=parts.measure.baseline(),
        curves=tuple(curves),
        scores=tuple(
            scores_of(name, ranking, parts.inputs.loaded, parts.units)
            for name, ranking in rankings.items()
        ),
        ablation=ablation,
        kept_alone=kept_alone,
        degenerate=None,
        versions=(version,),
        even=even,
        max_drop=max_drop,
    )


def _even(parts: Parts, version: Version, ranking: Ranking) -> tuple[EvenPrice, ...]:
    if not isinstance(ranking, EvenRanking):
        return ()
    return (even_price(parts, ranking, version.name, version.made, version.point),)


def _one_more(
    parts: Parts, tries: Tries, chosen: Chosen, number: int, point: Point
) -> OneMore | None:
    if number == tries.most:
        return None
    more = tries.model(chosen.candidate, number + 1)
    found = parts.measure.point(more.made, all_metrics=False, outputs=more.outputs)
    assert found.difference is not None  # only random draws have none
    return OneMore(
        heads=len(found.heads_removed),
        value=found.value,
        difference=found.difference,
        ci=found.difference_ci,
        step=found.value - point.value,
        step_ci=parts.measure.change(point, found).ci,
    )


def _described(
    tries: Tries, chosen: Chosen, confirmed: Confirmed, one_more: OneMore | None
) -> MaxDrop:
    candidate, number = chosen.candidate, confirmed.number
    heads, first = tries.heads(candidate, number), tries.heads(candidate, chosen.number)
    again = confirmed.number != chosen.number
    even = isinstance(candidate.ranking, EvenRanking)
    return MaxDrop(
        wanted=tries.wanted,
        count=heads,
        method=candidate.method,
        repair=candidate.repair.value,
        chosen=_part(first, chosen.judged.change),
        confirmed=_part(heads, confirmed.judged.change),
        refused=_part(first, confirmed.first.change) if again else None,
        planned=confirmed.planned,
        measured_on="confirming",
        one_more=one_more,
        looks=tuple(tries.looks),
        shared=tries.halves.shared,
        per_layer=number if even else None,
    )


def _part(heads: int, change: Change) -> DropPart:
    values = (change.baseline, change.value, change.difference)
    return DropPart(heads, change.examples, *values, change.ci, change.level)
