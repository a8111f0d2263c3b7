"""What removing each head alone does to a model's output, beside what the head looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import (
    Causes,
    ClassifyResult,
    EstimateFit,
    HeadCause,
    HeadResult,
    Loss,
)
from headscope.analyses.classify.role_tests import role_tests
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.processes import share
from headscope.core.roles import ROLES
from headscope.data.examples import Examples
from headscope.data.token_rows import halve
from headscope.models.intervene import Means, gated
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import less_random_write, replaced_outputs
from headscope.models.replay import Replay
from headscope.session.progress import Progress
from headscope.stats.metrics import Outputs, spearman
from headscope.stats.paired_change import interval_of, paired_change
from headscope.tasks.base import TOKEN_HEADS, Task, one_position
from headscope.tasks.calibration import TaskCalibration, chosen_stack, pick
from headscope.tasks.gauss_newton import labelled_rows, sample
from headscope.tasks.head_means import mean_z
from headscope.tasks.making import check_task, check_two, make_task, read_examples, select
from headscope.tasks.units import Units, units_of

__all__ = ["CauseSource", "check_task", "find_causes", "mean_loss", "with_causes"]

DIRECTIONS = 2  # Random directions of the label-free estimate; each costs a backward pass.
ROTATIONS = 5  # Random rotations that the noise of a head is the mean of.


@dataclass(frozen=True)
class CauseSource:
    """What the removal of heads is measured on, read but not yet tokenised."""

    task: str  # task, data: What the model is measured by, and the name of what was read
    data: str
    #: measured, calibration: Two halves that share no sentence: losses are measured on the first,
    #: means and gradients taken of the second
    measured: Examples
    calibration: Examples
    limit: int  # limit, seed: Most examples of each half; of the halves and all that is drawn
    seed: int

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
        first, second = (pick(select(examples, half), limit, task, seed) for half in halves)
        return cls(task, examples.name, first, second, limit, seed)


def find_causes(
    loaded: LoadedModel,
    stacks: Sequence[str],
    heads: Sequence[HeadResult],
    source: CauseSource,
    progress: Progress,
) -> tuple[Causes, dict[str, HeadCause]]:
    """Remove every head alone, in three ways, and hold the losses against the heads' roles."""
    view = chosen_stack(loaded, stacks[0] if len(stacks) == 1 else None, source.task)
    task, other = (
        make_task(source.task, examples, view, seed=source.seed + i, limit=source.limit)
        for i, examples in enumerate((source.measured, source.calibration))
    )
    units, means = units_of(view), mean_z(view, other, everywhere=True)
    estimates = [_estimate(view, other, units, given, source.seed) for given in (None, means)]
    removals = _Removals(view, task, units, means, source.seed)
    by_unit = list(removals.of_all(estimates[0].tolist(), estimates[1].tolist(), progress))
    place_of = places(view)
    there = [h for h in heads if (h.stack, h.layer, h.head) in place_of]
    at = [place_of[h.stack, h.layer, h.head] for h in there]
    mine = [by_unit[units.unit(place)] for place in at]
    causes = Causes(
        task=source.task,
        metric=task.metric,
        data=source.data,
        examples=task.n_examples,
        calibration=other.n_examples,
        value=task.value(removals.full),
        estimate="first-order" if other.has_labels else "squared",
        tests=()
        if units.shared
        else role_tests(
            _losses(mine),
            _labels(there),
            np.array([r for r, _ in at]),
            size=abs(task.value(removals.full)),
            seed=0,
        ),
        fits=tuple(_fits(by_unit, source.seed)),
        seed=source.seed,
        notes=tuple(_notes(task, removals.full, units)),
        rotations=ROTATIONS,
    )
    return causes, {h.name: cause for h, cause in zip(there, mine, strict=True)}


class _Removals:
    """Measures a model without one of its units, against the whole model."""

    def __init__(
        self, loaded: LoadedModel, task: Task, units: Units, means: Means, seed: int
    ) -> None:
        self._loaded, self._task, self._units, self._seed = loaded, task, units, seed
        self._means = means
        self._generator = torch.Generator().manual_seed(seed)
        self.full = task.outputs(loaded)
        few = one_position if loaded.task_head in TOKEN_HEADS else None
        self._replay, self._start = Replay(loaded, share(task.batches(loaded)), few), 0

    def of_all(
        self, zero: Sequence[float], mean: Sequence[float], progress: Progress
    ) -> Iterator[HeadCause]:
        """Take every unit out, given what the estimates of each are."""
        rows = self._units.layers.tolist()
        for row in sorted(set(rows)):
            with self._replay.before(row) as self._start:
                for unit in (unit for unit, at in enumerate(rows) if at == row):
                    yield self._of(unit, zero[unit], mean[unit])
                    progress("removing heads", unit + 1, len(rows))

    def _of(self, unit: int, zero_estimate: float, mean_estimate: float) -> HeadCause:
        """Take one unit out in every way."""
        gates = self._units.expand(self._units.gates([unit])).to(self._loaded.device)
        zero, mean = (self._outputs(gates, left) for left in (None, self._means))
        noise = [self._noise(unit) for _ in range(ROTATIONS)]
        return HeadCause(
            zero=self._effect([(self.full, zero)]),
            mean=self._effect([(self.full, mean)]),
            noise=self._effect([(self.full, one) for one in noise]),
            beyond_noise=self._effect([(one, zero) for one in noise]),
            zero_estimate=zero_estimate,
            mean_estimate=mean_estimate,
        )

    def _outputs(self, gates: Tensor | None, means: Means | None) -> Outputs:
        with gated(self._loaded, gates, means=means, start=self._start) as run:
            return self._task.outputs_of(self._replay.following(run), self._replay.batches)

    def _noise(self, unit: int) -> Outputs:
        """Layers that share a module share its output map: the first of them stands for all."""
        row, head = self._units.members[unit][0]
        other = less_random_write(self._loaded.sites[row], head, self._generator)
        with replaced_outputs(self._loaded, {row: other}):
            return self._outputs(None, None)

    def _effect(self, pairs: Sequence[tuple[Outputs, Outputs]]) -> Loss:
        """Measure the mean loss over pairs of a baseline and what it is held against."""
        metric = self._task.table[self._task.metric]
        losses, downs, ups = [], [], []
        for baseline, outputs in pairs:
            change = paired_change(metric, baseline, outputs, seed=self._seed)
            sides = change.difference - change.low, change.high - change.difference
            better = self._task.higher_is_better
            # No minus zero where nothing changed.
            losses.append(0.0 - change.difference if better else change.difference)
            downs.append(sides[better])
            ups.append(sides[not better])
        return mean_loss(losses, downs, ups, heads=len(self._units.members))


def mean_loss(
    losses: Sequence[float], downs: Sequence[float], ups: Sequence[float], *, heads: int
) -> Loss:
    """Average losses that rotations drawn at random gave, and say how sure the mean is.

    Notes
    -----
    Examples and rotations err independently, so the two parts of either half of the interval add
    up as squares (Zou & Donner 2008): that over examples, mean over rotations, and Student's t of
    the rotations. At the level for all heads the first grows as normal quantiles do.
    """
    rotated = np.array(losses)
    error = rotated.std(ddof=1) / np.sqrt(len(rotated)) if len(rotated) > 1 else 0.0
    ends = []
    for tail in (0.025, 0.025 / heads):
        grown = stats.norm.isf(tail) / stats.norm.isf(0.025)
        drawn = stats.t.isf(tail, len(rotated) - 1) * error if len(rotated) > 1 else 0.0
        low, high = (float(np.hypot(grown * np.mean(side), drawn)) for side in (downs, ups))
        ends.append((float(rotated.mean()) - low, float(rotated.mean()) + high))
    if not np.isfinite(ends).all():
        return Loss(float(rotated.mean()), None)
    return Loss(float(rotated.mean()), *ends)


def _estimate(
    loaded: LoadedModel, task: Task, units: Units, means: Means | None, seed: int
) -> Tensor:
    """Estimate the loss without each unit, (n_units,), from gradients at the whole model.

    A gate's derivative is the sum over tokens of (z - what is left in its place) . d/dz. With
    labels that of the loss is the estimate. Without, the loss is a cosine distance, whose own
    derivative is zero at the whole model; but d = 1 - cos = |e - e'|^2 / 2 of embeddings e of unit
    length, and e - e' has a first order: its square is estimated along random directions.
    """
    calibration = TaskCalibration(loaded, task, means)
    if not task.has_labels:
        batches = calibration.batches(labels=False)
        newton = sample(batches, units, directions=DIRECTIONS, seed=seed)
        return newton.matrix.diagonal() / 2
    return -labelled_rows(calibration.batches(labels=True), units).mean(dim=0)


def _losses(causes: Sequence[HeadCause]) -> dict[str, Array]:
    names = ("zero", "mean", "noise")
    return {name: np.array([getattr(cause, name).loss for cause in causes]) for name in names}


def _labels(heads: Sequence[HeadResult]) -> dict[str, Array]:
    """Say which heads have any role, and which have each."""
    has_role = {"any": np.array([bool(head.roles) for head in heads])}
    for role in (role.key for role in ROLES):
        has_role[role] = np.array([role in head.roles for head in heads])
    return has_role


def _fits(causes: Sequence[HeadCause], seed: int) -> Iterator[EstimateFit]:
    """Correlate estimates and losses over the units that can be removed."""
    losses = _losses(causes)
    for removal in ("zero", "mean"):
        guessed = np.array([getattr(cause, f"{removal}_estimate") for cause in causes])
        ranked = {"similarity": guessed, "gold": losses[removal]}
        fit = interval_of(spearman, ranked, seed=seed)
        ends = fit.ci and (fit.low / 100, fit.high / 100)
        yield EstimateFit(removal, len(causes), fit.value / 100, ends)


def _notes(task: Task, full: Outputs, units: Units) -> Iterator[str]:
    problem = task.degenerate(full)
    if problem:
        yield f"The whole model {problem}, so these losses mean nothing."
    if units.shared:
        yield (
            "Layers of this model share one module, so a head goes from all of them at once; "
            "roles, which differ from layer to layer, are not tested."
        )
    yield from task.notes


def with_causes(
    result: ClassifyResult, loaded: LoadedModel, source: CauseSource, progress: Progress
) -> ClassifyResult:
    """Remove every head alone and add what that does to the output."""
    causes, by_head = find_causes(loaded, result.stacks, result.heads, source, progress)
    heads = (replace(head, cause=by_head.get(head.name)) for head in result.heads)
    return replace(result, heads=tuple(heads), causes=causes)
