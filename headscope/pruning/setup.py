"""What every part of a run works with: the data that were read, the opened model, the measurer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

from headscope.analyses.classify.known_roles import KnownRoles
from headscope.core.errors import InputError
from headscope.data.examples import Examples, Unshared, sample_texts, without_shared
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.measure import Measurer
from headscope.pruning.methods import rank
from headscope.pruning.options import PruneOptions, Repair, needs
from headscope.pruning.ranking import Context, Ranking
from headscope.pruning.repair import Repaired, scale_gates
from headscope.pruning.surgeon import refitted_maps
from headscope.tasks.base import Task
from headscope.tasks.calibration import open_calibration, pick
from headscope.tasks.making import check_two, make_task, read_examples
from headscope.tasks.units import Units, units_of


@dataclass(frozen=True)
class Sources:
    """Examples to choose on and examples to measure on, read but not yet tokenised."""

    options: PruneOptions
    data: Examples  # to measure on
    calibration: Examples | None  # to choose on; None where nothing is chosen
    calibration_task: str  # ``fidelity`` where the calibration file is plain text
    warnings: tuple[str, ...] = ()
    dropped: int = 0  # Calibration examples that shared a sentence with the data

    def evaluation_for(self, loaded: LoadedModel) -> Task:
        """Tokenise what is measured on for a model."""
        options = self.options
        return make_task(options.task, self.data, loaded, seed=options.seed, limit=options.limit)

    def calibration_for(self, loaded: LoadedModel) -> Task | None:
        """Tokenise what is chosen on, with other masks: both may hold the same text."""
        if self.calibration is None:
            return None
        seed, limit = self.options.seed + 1, self.options.calibration_limit // 2
        return make_task(self.calibration_task, self.calibration, loaded, seed=seed, limit=limit)


def open_sources(options: PruneOptions) -> Sources:
    """Read both files and check that they can serve; without any, each is half of the sample."""
    task, seed, limit = options.task, options.seed, options.calibration_limit
    if options.data is None and options.calibration is None and task in ("fidelity", "mlm"):
        sample = sample_texts()
        texts = list(dict.fromkeys(sample.first))
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        evaluation, other = (
            dataclasses.replace(
                sample, name=f"{sample.name}, {which}", first=tuple(texts[i] for i in sorted(lines))
            )
            for which, lines in (
                ("one half", order[: len(texts) // 2]),
                ("the other half", order[len(texts) // 2 :]),
            )
        )
        if task != "mlm":
            check_two(options.limit)
            evaluation = evaluation.draw(options.limit, seed)
        chosen = pick(other, limit, task, seed) if options.needs_calibration else None
        return Sources(options, evaluation, chosen, task)
    evaluation = read_examples(task, options.data, options.limit, seed)
    if not options.needs_calibration:
        return Sources(options, evaluation, None, task)
    labelled = needs(options.method_names, "labels")
    other, other_task = open_calibration(task, options.calibration, labelled)
    found = without_shared(other, evaluation)
    warnings: tuple[str, ...] = ()
    if found.same:
        warnings = (_same_data(options, found, other.name),)
    elif found.shared:
        warnings = (
            f"{found.shared:,} of the {found.sentences:,} different sentences that the values are "
            f"measured on are in {other.name} too; its {found.dropped:,} examples with such a "
            f"sentence are left out, and heads are chosen among the other {len(found.examples):,}.",
        )
    chosen = pick(found.examples, limit, other_task, seed)
    return Sources(options, evaluation, chosen, other_task, warnings, found.dropped)


def _same_data(options: PruneOptions, found: Unshared, name: str) -> str:
    """Warn that heads are chosen on what they are measured on."""
    same = (
        f"{found.shared:,} of the {found.sentences:,} different sentences that the values are "
        f"measured on are in {name} too, and without them less than two examples are left to "
        "choose on"
    )
    tested = options.max_drop is not None and options.task != "mlm"
    extent = (
        "the tests leave out every example with a sentence that heads were chosen on"
        if tested
        else "so heads are chosen on what they are measured on, and the values are too good"
    )
    return f"{same}: {extent}; better give calibration data with other sentences."


@dataclass(frozen=True)
class Inputs:
    """What was opened for a run: the model, both sets of data, what its heads do."""

    loaded: LoadedModel  # the full model, with the task head that the task needs
    sources: Sources
    evaluation: Task
    calibration: Task | None  # None where nothing is chosen
    roles: KnownRoles  # empty where no classification was asked for
    validation: ValidationSummary


@dataclass(frozen=True)
class Pruner:
    """Ranks heads, removes and repairs them, and measures what is left."""

    inputs: Inputs
    options: PruneOptions
    units: Units
    counts: tuple[int, ...]  # units that the points of a curve remove
    context: Context  # what methods look at
    measure: Measurer  # on the evaluation data

    def rankings(self) -> dict[str, Ranking]:
        """Rank the units by every method that scores them, before anything is measured.

        So a method that cannot be run is refused early.
        """
        rankings, names = {}, self.options.scored
        for i, name in enumerate(names):

            def tell(_: str, done: int, total: int, i: int = i) -> None:
                share = round(1000 * (i + done / max(total, 1)))
                self.options.tell("choosing heads", share, 1000 * len(names))

            tell(name, 0, 1)
            context = dataclasses.replace(self.context, progress=tell)
            rankings[name] = rank(name, context, normalise=self.options.normalise)
        return rankings

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left."""
        if kind is Repair.none or not 0 < len(removed) < len(self.units):
            return Repaired.bare(self.units, removed)
        if kind is Repair.scale:
            gates = scale_gates(self.context, removed)
            return Repaired(tuple(removed), self.units.expand(gates).float())
        return refitted_maps(self.context, removed)


def only_head(loaded: LoadedModel) -> InputError:
    """Return the error for a model none of whose heads can go."""
    return InputError(
        f"{loaded.name} has one head only, and it must stay; prune a model with more heads."
    )


def prepare(inputs: Inputs, options: PruneOptions) -> Pruner:
    """Gather what a run works with, and measure the unpruned model."""
    loaded, units = inputs.loaded, units_of(inputs.loaded)
    n = len(units)
    counts = tuple(sorted({int(share * n + 0.5) for share in options.shares}))
    if options.save and not options.manual and options.max_drop is None:
        if counts[-1] == 0:
            raise InputError("The fraction is so small that no head is removed; give a larger one.")
        if counts[-1] == n == 1:
            raise only_head(loaded)
        if counts[-1] == n:
            raise InputError("The fraction is so large that no head is left; give a smaller one.")
    inner = [count for count in counts if 0 < count < n]
    context = Context.of_task(
        loaded,
        inputs.calibration or inputs.evaluation,
        roles=inputs.roles.by_place,
        use_labels=options.labels,
        largest=max(inner, default=n),
        seed=options.seed,
    )
    roles = inputs.roles.by_place
    measure = Measurer(loaded, inputs.evaluation, units, options.seed, roles)
    return Pruner(inputs, options, units, counts, context, measure)
