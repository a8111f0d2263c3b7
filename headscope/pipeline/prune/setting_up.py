"""What every part of a run works with: the opened model and data, the measurer, the bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headscope.core.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.calibrating import make_given, units_of
from headscope.pipeline.prune.choosing import count_for
from headscope.pipeline.prune.findings import Findings
from headscope.pipeline.prune.measuring import Measurer
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repair, Repaired, repair
from headscope.pipeline.prune.sources import Sources
from headscope.pipeline.prune.steps import Steps, steps_of
from headscope.pruning.even import EvenRanking
from headscope.pruning.method import Given, Ranking
from headscope.pruning.methods import rank
from headscope.pruning.units import Units
from headscope.results.points import Point
from headscope.results.validate import ValidationSummary
from headscope.session.known_roles import KnownRoles
from headscope.tasks.base import Task


@dataclass(frozen=True)
class Inputs:
    """What was opened for a run: the model, both sets of data, what its heads do.

    Attributes
    ----------
    loaded : LoadedModel
        The full model, with the task head that the task needs.
    sources : Sources
        Both sets of examples as they were read.
    evaluation, calibration : Task
        The same for this model; no calibration where nothing is chosen.
    roles : KnownRoles
        Empty where nobody asked.
    validation : ValidationSummary
        Whether our attention is the full model's.
    findings : Findings
        What an interrupted run had found out, and this one has so far.
    """

    loaded: LoadedModel
    sources: Sources
    evaluation: Task
    calibration: Task | None
    roles: KnownRoles
    validation: ValidationSummary
    findings: Findings = field(default_factory=Findings)

    @property
    def units(self) -> Units:
        """What can be removed on its own."""
        return units_of(self.loaded)


@dataclass(frozen=True)
class Parts:
    """What every part of a run works with.

    Attributes
    ----------
    inputs : Inputs
        What was opened.
    options : PruneOptions
        What to do.
    units : Units
        What can be removed on its own.
    counts : tuple of int
        Units that the points of a curve remove.
    given : Given
        What methods look at.
    measure : Measurer
        On the evaluation data.
    steps : Steps
        Tells how far the run has come.
    """

    inputs: Inputs
    options: PruneOptions
    units: Units
    counts: tuple[int, ...]
    given: Given
    measure: Measurer
    steps: Steps

    def ranked(self, name: str) -> Ranking:
        """Rank the units by a method."""
        what = [list(self.inputs.loaded.stacks), name, self.given.budget, self.given.largest]
        found = self.inputs.findings.ranking(
            what, lambda: rank(name, self.given, normalise=self.options.normalise)
        )
        self.steps.did(name)
        return self.evenly(found)

    def evenly(self, ranking: Ranking) -> Ranking:
        """Let a ranking take the same number from every layer, where that is asked for."""
        return EvenRanking(ranking, self.units.layers) if self.options.even else ranking

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left."""
        loaded, calibration = self.inputs.loaded, self.inputs.calibration
        made = self.inputs.findings.repaired(
            [list(loaded.stacks), kind.value, list(removed)],
            loaded,
            lambda: repair(kind, loaded, calibration, self.given, removed),
        )
        self._did(kind.value, made)
        return made

    def point(self, made: Repaired) -> Point:
        """Measure one pruned model."""
        found = self.measure.point(made)
        self._did("measured", made)
        return found

    def _did(self, what: str, made: Repaired) -> None:
        """Note a step; where nothing or everything is removed, there is nothing to do."""
        if 0 < len(made.removed) < len(self.units):
            self.steps.did(what)


def prepare(inputs: Inputs, options: PruneOptions, steps: Steps) -> Parts:
    """Gather what a run works with, and measure the unpruned model.

    Raises
    ------
    InputError
        If the one model that is to be kept would lose no head or all, or if layers are to lose
        equally many heads and do not have equally many.
    """
    units = inputs.units
    if options.even:
        _check_even(inputs.loaded)
    n, counts = len(units), counts_of(units, options)
    if options.keeps and not options.manual and options.max_drop is None:
        _check_count(counts[-1], n)
    inner = [count for count in counts if 0 < count < n]
    given = make_given(
        inputs.loaded,
        inputs.calibration or inputs.evaluation,
        roles=inputs.roles.by_place,
        use_labels=options.labels,
        budget=inner[0] if len(inner) == 1 else n // 2,
        largest=max(inner, default=n),
        seed=options.seed,
        progress=steps,
    )
    measure = Measurer(
        inputs.loaded,
        inputs.evaluation,
        units,
        seed=options.seed,
        roles=inputs.roles.by_place,
        findings=inputs.findings,
    )
    steps.did("measured")
    return Parts(inputs, options, units, counts, given, measure, steps)


def layers_of(units: Units, options: PruneOptions) -> int:
    """Return how many units go together: one of every layer, or each on its own."""
    return len(set(units.layers.tolist())) if options.even else 1


def counts_of(units: Units, options: PruneOptions) -> tuple[int, ...]:
    """List the units that the points of a curve remove."""
    step = layers_of(units, options)
    each = len(units) // step
    return tuple(sorted({step * count_for(share, each) for share in options.shares}))


def planned(loaded: LoadedModel, options: PruneOptions) -> Counter[str]:
    """List the steps of a run on a model, or on one stack of it."""
    units = units_of(loaded)
    most = len(units) // layers_of(units, options) - 1
    return steps_of(options, counts_of(units, options), len(units), most)


def _check_count(count: int, n: int) -> None:
    """Refuse a fraction that leaves no pruned model to keep, before anything is measured."""
    if count == 0:
        raise InputError("The fraction is so small that no head is removed; give a larger one.")
    if count == n:
        raise InputError("The fraction is so large that no head is left; give a smaller one.")


def _check_even(loaded: LoadedModel) -> None:
    sizes = Counter(site.n_heads for site in loaded.sites)
    if len(sizes) == 1:
        return
    least, most = min(sizes), max(sizes)
    raise InputError(
        f"even removes the same number of heads in every layer, and the layers of {loaded.name} "
        f"have between {least} and {most} heads; leave out even, or start from a model whose "
        "layers have equally many."
    )
