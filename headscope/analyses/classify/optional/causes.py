"""What removing each head alone costs the model, and whether heads with a role cost more.

Heads are removed in three ways: their output is zero, or its mean over other text, or as much is
taken away in random directions. Gradients at the whole model estimate the first two.

:func:`with_causes` is the whole measurement; whether roles explain the losses is tested in
``role_tests.py``. What is removed is a *unit* (:class:`Units`): one head of one layer, or, where
layers share one module (ALBERT), the same head of all of these. A loss is how much worse a
:class:`Task` (fidelity, classification, ...) gets by its metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.optional.results import (
    Causes,
    CauseTest,
    EstimateFit,
    HeadCause,
)
from headscope.analyses.classify.optional.role_tests import role_tests
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.scores import HeadResult
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.progress import Progress
from headscope.data.examples import Examples
from headscope.data.halves import halve
from headscope.models.run.intervene import Means
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import minus_random_write, replaced_outputs
from headscope.stats.estimate import Estimate, JointEstimate
from headscope.stats.metrics import Outputs, spearman
from headscope.stats.paired_change import interval_of, paired_change
from headscope.stats.statistics import joint_mean
from headscope.tasks.base import Task
from headscope.tasks.calibration import HeadByHead, TaskCalibration, chosen_stack, mean_z, pick
from headscope.tasks.gauss_newton import labelled_rows, sample
from headscope.tasks.making import check_two, make_task, read_examples
from headscope.tasks.units import Units, units_of

DIRECTIONS = 2  # Random directions of the label-free estimate; each costs a backward pass.
ROTATIONS = 5  # Random rotations that the noise of a head is the mean of.


@dataclass(frozen=True)
class CauseSource:
    """The examples that removals are measured on, read but not yet tokenised."""

    task: str  # The task whose metric the model is measured by
    data: str  # The name of what was read
    measured: Examples  # The half on which losses are measured
    calibration: Examples  # The half that gives means and gradients; they share no sentence
    limit: int  # Most examples of each half
    seed: int  # Of the split into halves and of everything drawn at random

    @classmethod
    def read(cls, task: str, data: str | Path | None, limit: int, seed: int) -> CauseSource:
        """Read examples as ``prune`` does and deal them into two halves."""
        check_two(limit)
        examples = read_examples(task, data)
        columns = (examples.first, examples.second) if examples.second else (examples.first,)
        halves = halve(list(zip(*columns, strict=True)), seed)
        if min(map(len, halves)) < 2:
            raise CorpusError(
                f"{examples.name} holds {len(examples)} examples; removing heads is measured on "
                "one half of them with the means of the other, so give four different ones or more."
            )
        measured, calibration = halves
        return cls(
            task=task,
            data=examples.name,
            measured=pick(examples.pick(measured), limit, task, seed),
            calibration=pick(examples.pick(calibration), limit, task, seed),
            limit=limit,
            seed=seed,
        )


def with_causes(
    result: ClassifyResult, loaded: LoadedModel, source: CauseSource, progress: Progress
) -> ClassifyResult:
    """Remove every head alone, in three ways, and compare the losses with the heads' roles."""
    # Open the task on both halves of the examples.
    stacks = result.stacks
    view = chosen_stack(loaded, stacks[0] if len(stacks) == 1 else None, source.task)
    seed = source.seed
    limit = source.limit
    task = make_task(source.task, source.measured, view, seed=seed, limit=limit)
    calibration = make_task(source.task, source.calibration, view, seed=seed + 1, limit=limit)
    units = units_of(view)

    # Estimate losses from gradients, and measure them.
    means = mean_z(view, calibration)  # each head's mean output
    zero_estimates = _estimate(view, calibration, units, means=None, seed=seed).tolist()
    mean_estimates = _estimate(view, calibration, units, means=means, seed=seed).tolist()
    full = task.outputs(view)
    losses = _remove_each(view, task, units, means=means, full=full, seed=seed, progress=progress)
    unit_causes = []  # in the order of the units
    for loss, zero, mean in zip(losses, zero_estimates, mean_estimates, strict=True):
        unit_causes.append(HeadCause(**loss, zero_estimate=zero, mean_estimate=mean))

    # Compare the losses of heads with a role and of heads without.
    place_of = places(view)  # (stack, layer, head) by name -> layer and index in ``view``
    removed = [head for head in result.heads if (head.stack, head.layer, head.head) in place_of]
    removed_indices = [place_of[head.stack, head.layer, head.head] for head in removed]
    head_causes = [unit_causes[units.unit(indices)] for indices in removed_indices]
    tests: tuple[CauseTest, ...] = ()
    if not units.shared:
        tests = role_tests(
            _losses(head_causes),
            _has_role(result, removed),
            layers=np.array([layer for layer, _ in removed_indices]),
            size=abs(task.value(full)),
            seed=0,
        )

    # Add it all to the result.
    causes = Causes(
        task=source.task,
        metric=task.metric,
        data=source.data,
        examples=task.n_examples,
        calibration=calibration.n_examples,
        value=task.value(full),
        estimate="first-order" if calibration.has_labels else "squared",
        tests=tests,
        fits=tuple(_fits(unit_causes, seed)) if len(unit_causes) > 1 else (),
        seed=seed,
        notes=tuple(_notes(task, full, units)),
        rotations=ROTATIONS,
    )
    cause_of = {head.name: cause for head, cause in zip(removed, head_causes, strict=True)}
    heads = tuple(replace(head, cause=cause_of.get(head.name)) for head in result.heads)
    warnings = [*result.provenance["warnings"], *task.data.notes, *task.doubts(full)]
    origin = {**result.provenance, "warnings": list(dict.fromkeys(warnings))}
    return replace(result, provenance=origin, heads=heads, causes=causes)


def _has_role(result: ClassifyResult, heads: Sequence[HeadResult]) -> dict[str, Array]:
    """Return for each role which of these heads have it, (heads,), and which have any role."""
    has_role = {"any": np.array([bool(head.roles) for head in heads])}
    for role in result.possible_roles:
        has_role[role.key] = np.array([role.key in head.roles for head in heads])
    return has_role


def _notes(task: Task, full: Outputs, units: Units) -> list[str]:
    """Say what makes the losses doubtful, the worst first."""
    notes = [note for note in task.notes if note not in task.data.notes]
    if units.shared:
        notes.insert(
            0,
            "Layers of this model share one module, so a head goes from all of them at once; "
            "roles, which differ from layer to layer, are not tested.",
        )
    problem = task.degenerate(full)
    if problem:
        notes.insert(0, f"The whole model {problem}, so these losses mean nothing.")
    return notes


def _remove_each(
    loaded: LoadedModel,
    task: Task,
    units: Units,
    *,
    means: Means,
    full: Outputs,
    seed: int,
    progress: Progress,
) -> Iterator[dict[str, JointEstimate]]:
    """Remove each unit in each way, and yield its losses: fields of :class:`HeadCause`.

    ``full`` are the outputs of the full model.
    """
    generator = torch.Generator().manual_seed(seed)
    versions = HeadByHead(task, loaded)  # plays back the layers before a removed head

    def loss(*pairs: tuple[Outputs, Outputs]) -> JointEstimate:
        return _mean_loss(pairs, task, seed=seed, n_units=len(units.members))

    layers = units.layers.tolist()
    units_by_layer: dict[int, list[int]] = {}
    for unit, layer in enumerate(layers):
        units_by_layer.setdefault(layer, []).append(unit)
    for layer in sorted(units_by_layer):
        versions.start_at(layer)
        for unit in units_by_layer[layer]:
            gates = units.expand(units.gates([unit]))  # 0 at its heads, 1 elsewhere
            zero = versions.outputs(gates=gates, means=None)
            mean = versions.outputs(gates=gates, means=means)
            # Layers that share a module share its output map: the first stands for all.
            first_layer, head = units.members[unit][0]
            with_noise = []
            for _ in range(ROTATIONS):
                noisy_map = minus_random_write(loaded.sites[first_layer], head, generator)
                with replaced_outputs(loaded, {first_layer: noisy_map}):
                    with_noise.append(versions.outputs())
            yield {
                "zero": loss((full, zero)),
                "mean": loss((full, mean)),
                "noise": loss(*((full, noise) for noise in with_noise)),
                "beyond_noise": loss(*((noise, zero) for noise in with_noise)),
            }
            progress("removing heads", unit + 1, len(layers))


def _mean_loss(
    pairs: Sequence[tuple[Outputs, Outputs]], task: Task, *, seed: int, n_units: int
) -> JointEstimate:
    """Return the mean loss over pairs of outputs: a baseline's, and those compared with it.

    ``n_units`` losses are measured in all, so that intervals can hold for them jointly.
    """
    losses = []
    below_loss = []  # From the lower end of the interval to the loss
    above_loss = []  # From the loss to the upper end
    for baseline, changed in pairs:
        change = paired_change(task.table[task.metric], baseline, changed, seed=seed)
        below = change.difference - change.low
        above = change.high - change.difference
        if task.higher_is_better:
            losses.append(0.0 - change.difference)  # no minus zero where nothing changed
            below_loss.append(above)
            above_loss.append(below)
        else:
            losses.append(change.difference)
            below_loss.append(below)
            above_loss.append(above)
    return joint_mean(losses, below_loss, above_loss, n_means=n_units, n=task.n_examples)


def _estimate(
    loaded: LoadedModel, task: Task, units: Units, *, means: Means | None, seed: int
) -> Tensor:
    """Estimate the loss without each unit, (n_units,), from gradients at the full model.

    A gate g makes a head's output g z + (1 - g) r, where r is 0, or its mean where ``means`` are
    given. The gate's derivative is the sum over tokens of (z - r) . d/dz. With labels, the
    derivative of the loss is the estimate. Without labels the loss is a cosine distance, whose
    derivative is zero at the full model. But 1 - cos = |e - e'|^2 / 2 for embeddings e and e' of
    length 1 with and without the unit, and e - e' has a first-order term, whose square is estimated
    along random directions.
    """
    calibration = TaskCalibration(loaded, task, means)
    if not task.has_labels:
        batches = calibration.batches(labels=False, value_only=True)
        newton = sample(batches, units, directions=DIRECTIONS, seed=seed)
        return newton.matrix.diagonal() / 2
    return -labelled_rows(calibration.batches(labels=True), units).mean(dim=0)


def _losses(causes: Sequence[HeadCause]) -> dict[str, Array]:
    """Return the losses of heads or units by kind of removal, each (heads,)."""
    return {
        "zero": np.array([float(cause.zero) for cause in causes]),
        "mean": np.array([float(cause.mean) for cause in causes]),
        "noise": np.array([float(cause.noise) for cause in causes]),
    }


def _fits(causes: Sequence[HeadCause], seed: int) -> Iterator[EstimateFit]:
    """Correlate estimates and losses over the units that can be removed."""
    losses = _losses(causes)
    estimates = {
        "zero": np.array([cause.zero_estimate for cause in causes]),
        "mean": np.array([cause.mean_estimate for cause in causes]),
    }
    for removal, estimated in estimates.items():
        fit = interval_of(spearman, {"similarity": estimated, "gold": losses[removal]}, seed=seed)
        interval = [bound / 100 for bound in fit.interval or ()]  # metrics are x100
        yield EstimateFit(removal, len(causes), Estimate(float(fit) / 100, *interval))
