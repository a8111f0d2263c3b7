"""What removing each head alone costs the model, and whether heads with a role cost more.

Heads of one layer are similar whatever their roles, so heads are not independent: a difference
counts as a role's only if labels permuted within layers do not explain it. The same test with
labels permuted over all layers is given as well.

References
----------
The statistic inside layers is the sum of the layers' Mann-Whitney U (van Elteren 1960, with equal
weights); p = (1 + deals as extreme) / (1 + deals), Phipson & Smyth 2010.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.optional.results import (
    Causes,
    CauseTest,
    EstimateFit,
    HeadCause,
)
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.progress import Progress
from headscope.core.rounding import tied
from headscope.data.examples import Examples
from headscope.data.token_rows import halve
from headscope.models.run.intervene import Means
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import less_random_write, replaced_outputs
from headscope.stats.estimate import Estimate, JointEstimate
from headscope.stats.metrics import RESAMPLES, Outputs, spearman
from headscope.stats.paired_change import interval_of, paired_change
from headscope.stats.statistics import adjust, joint_mean
from headscope.tasks.base import Task
from headscope.tasks.calibration import HeadByHead, TaskCalibration, chosen_stack, mean_z, pick
from headscope.tasks.gauss_newton import labelled_rows, sample
from headscope.tasks.making import check_two, make_task, read_examples
from headscope.tasks.units import Units, units_of

DIRECTIONS = 2  # Random directions of the label-free estimate; each costs a backward pass.
ROTATIONS = 5  # Random rotations that the noise of a head is the mean of.
FEWEST = 3  # Fewest heads with a role, and without, that are compared.
#: Fewest on either side for an interval: a bootstrap of fewer is too narrow.
FEWEST_FOR_INTERVAL = 8
DEALS = 5000  # How often labels are dealt anew.
LEVEL = 0.05  # Adjusted p below which two kinds of heads are told apart.


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
    # Open the tasks on both halves of the examples.
    stacks = result.stacks
    view = chosen_stack(loaded, stacks[0] if len(stacks) == 1 else None, source.task)
    seed = source.seed
    limit = source.limit
    task = make_task(source.task, source.measured, view, seed=seed, limit=limit)
    calibration = make_task(source.task, source.calibration, view, seed=seed + 1, limit=limit)
    units = units_of(view)

    # Estimate losses from gradients, and measure them.
    means = mean_z(view, calibration)
    zero_estimates = _estimate(view, calibration, units, None, seed).tolist()
    mean_estimates = _estimate(view, calibration, units, means, seed).tolist()
    full = task.outputs(view)
    losses = _remove_each(view, task, units, means, full, seed, progress)
    by_unit = [
        HeadCause(**loss, zero_estimate=zero_estimate, mean_estimate=mean_estimate)
        for loss, zero_estimate, mean_estimate in zip(
            losses, zero_estimates, mean_estimates, strict=True
        )
    ]

    # Compare the losses of heads with a role and of heads without.
    place_of = places(view)
    removed = [head for head in result.heads if (head.stack, head.layer, head.head) in place_of]
    removed_places = [place_of[head.stack, head.layer, head.head] for head in removed]
    by_head = [by_unit[units.unit(place)] for place in removed_places]
    tests: tuple[CauseTest, ...] = ()
    if not units.shared:
        layers = np.array([row for row, _ in removed_places])
        tests = role_tests(
            _losses(by_head), _has_role(result, removed), layers, size=abs(task.value(full)), seed=0
        )

    # Result.
    causes = Causes(
        task=source.task,
        metric=task.metric,
        data=source.data,
        examples=task.n_examples,
        calibration=calibration.n_examples,
        value=task.value(full),
        estimate="first-order" if calibration.has_labels else "squared",
        tests=tests,
        fits=tuple(_fits(by_unit, seed)) if len(by_unit) > 1 else (),
        seed=seed,
        notes=tuple(_notes(task, full, units)),
        rotations=ROTATIONS,
    )
    cause_of = {head.name: cause for head, cause in zip(removed, by_head, strict=True)}
    heads = tuple(replace(head, cause=cause_of.get(head.name)) for head in result.heads)
    warnings = [*result.provenance["warnings"], *task.data.notes, *task.doubts(full)]
    origin = {**result.provenance, "warnings": list(dict.fromkeys(warnings))}
    return replace(result, provenance=origin, heads=heads, causes=causes)


def _has_role(result: ClassifyResult, heads: Sequence[HeadResult]) -> dict[str, Array]:
    """Return which heads have each role, and any role."""
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
    means: Means,
    full: Outputs,
    seed: int,
    progress: Progress,
) -> Iterator[dict[str, JointEstimate]]:
    """Remove each unit in each way, and yield its losses relative to the full model."""
    generator = torch.Generator().manual_seed(seed)
    versions = HeadByHead(task, loaded)

    def loss(*pairs: tuple[Outputs, Outputs]) -> JointEstimate:
        return _mean_loss(pairs, task, seed=seed, n_units=len(units.members))

    rows = units.layers.tolist()
    for row in sorted(set(rows)):
        versions.start_at(row)
        for unit in [unit for unit, row_of_unit in enumerate(rows) if row_of_unit == row]:
            gates = units.expand(units.gates([unit]))
            zero = versions.outputs(gates=gates, means=None)
            mean = versions.outputs(gates=gates, means=means)
            # Layers that share a module share its output map: the first stands for all.
            site, head = units.members[unit][0]
            with_noise = []
            for _ in range(ROTATIONS):
                other = less_random_write(loaded.sites[site], head, generator)
                with replaced_outputs(loaded, {site: other}):
                    with_noise.append(versions.outputs())
            yield {
                "zero": loss((full, zero)),
                "mean": loss((full, mean)),
                "noise": loss(*((full, noise) for noise in with_noise)),
                "beyond_noise": loss(*((noise, zero) for noise in with_noise)),
            }
            progress("removing heads", unit + 1, len(rows))


def _mean_loss(
    pairs: Sequence[tuple[Outputs, Outputs]], task: Task, *, seed: int, n_units: int
) -> JointEstimate:
    """Measure the mean loss over pairs of a baseline and what is compared with it."""
    losses = []
    downs = []
    ups = []
    for baseline, changed in pairs:
        change = paired_change(task.table[task.metric], baseline, changed, seed=seed)
        below = change.difference - change.low
        above = change.high - change.difference
        if task.higher_is_better:
            losses.append(0.0 - change.difference)  # no minus zero where nothing changed
            downs.append(above)
            ups.append(below)
        else:
            losses.append(change.difference)
            downs.append(below)
            ups.append(above)
    return joint_mean(losses, downs, ups, of=n_units, n=task.n_examples)


def _estimate(
    loaded: LoadedModel, task: Task, units: Units, means: Means | None, seed: int
) -> Tensor:
    """Estimate the loss without each unit, (n_units,), from gradients at the full model.

    A gate's derivative is the sum over tokens of (z - its replacement) . d/dz. With labels, the
    derivative of the loss is the estimate. Without labels the loss is a cosine distance, whose
    derivative is zero at the full model. But d = 1 - cos = |e - e'|^2 / 2 for unit embeddings e,
    and e - e' has a first-order term, whose square is estimated along random directions.
    """
    calibration = TaskCalibration(loaded, task, means)
    if not task.has_labels:
        batches = calibration.batches(labels=False, of_value=True)
        newton = sample(batches, units, directions=DIRECTIONS, seed=seed)
        return newton.matrix.diagonal() / 2
    return -labelled_rows(calibration.batches(labels=True), units).mean(dim=0)


def _losses(causes: Sequence[HeadCause]) -> dict[str, Array]:
    names = ("zero", "mean", "noise")
    return {name: np.array([float(getattr(cause, name)) for cause in causes]) for name in names}


def _fits(causes: Sequence[HeadCause], seed: int) -> Iterator[EstimateFit]:
    """Correlate estimates and losses over the units that can be removed."""
    losses = _losses(causes)
    for removal in ("zero", "mean"):
        estimated = np.array([getattr(cause, f"{removal}_estimate") for cause in causes])
        fit = interval_of(spearman, {"similarity": estimated, "gold": losses[removal]}, seed=seed)
        interval = [bound / 100 for bound in fit.interval or ()]
        yield EstimateFit(removal, len(causes), Estimate(float(fit) / 100, *interval))


def role_tests(
    losses: Mapping[str, Array],
    labels: Mapping[str, Array],
    layers: Array,
    *,
    size: float = 1.0,
    seed: int = 0,
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others.

    ``losses`` by removal, ``labels`` by role: whether each head has it; all (heads,). ``size`` is
    that of the values whose differences losses are: differences within its rounding are ties.
    """
    compared = {
        role: has_role
        for role, has_role in labels.items()
        if min(has_role.sum(), (~has_role).sum()) >= FEWEST
    }
    everywhere = np.zeros_like(layers)
    tests = []
    for removal, losses_of_heads in losses.items():
        # Heads whose removal changes nothing are tied, though rounding tells their losses apart.
        values = tied(losses_of_heads, size=size)
        rng = np.random.default_rng(seed)
        within = {role: dealt(values, has, layers, rng) for role, has in compared.items()}
        anywhere = {role: dealt(values, has, everywhere, rng) for role, has in compared.items()}
        p_within = _p_values(within)
        p_anywhere = _p_values(anywhere)
        for role, has_role in compared.items():
            overall = anywhere[role]
            assert overall is not None  # there are heads with the role and without
            tests.append(
                _cause_test(
                    role,
                    removal,
                    with_role=values[has_role],
                    without_role=values[~has_role],
                    overall=overall,
                    p_overall=p_anywhere[role],
                    within=within[role],
                    p_within=p_within.get(role),
                    rng=rng,
                )
            )
    return tuple(tests)


Superiority = tuple[float, Array]  # Of the labels, and of labels dealt at random


def _cause_test(
    role: str,
    removal: str,
    *,
    with_role: Array,
    without_role: Array,
    overall: Superiority,
    p_overall: tuple[float, float],
    within: Superiority | None,
    p_within: tuple[float, float] | None,
    rng: np.random.Generator,
) -> CauseTest:
    """Gather the numbers of one role and removal, and decide by the test within layers."""
    interval: tuple[float, ...] = ()
    if min(len(with_role), len(without_role)) >= FEWEST_FOR_INTERVAL:
        interval = _bootstrapped(with_role, without_role, rng)
    verdict = "not measured"
    if within is not None and p_within is not None:
        _, p_adjusted = p_within
        verdict = "costs more" if within[0] > 0.5 else "costs less"
        if p_adjusted >= LEVEL:
            verdict = "not told apart"
    return CauseTest(
        role=role,
        removal=removal,
        heads=len(with_role),
        others=len(without_role),
        superiority=Estimate(overall[0], *interval),
        p_value=p_overall[0],
        p_adjusted=p_overall[1],
        placebo=_middle(overall[1]),
        within=within[0] if within else None,
        within_placebo=_middle(within[1]) if within else (),
        within_p=p_within[0] if p_within else None,
        within_p_adjusted=p_within[1] if p_within else None,
        verdict=verdict,
    )


def _p_values(compared: Mapping[str, Superiority | None]) -> dict[str, tuple[float, float]]:
    """Return two-sided p and adjusted p of one removal's roles, where they could be compared."""
    p_values = {}
    for role, superiority in compared.items():
        if superiority is not None:
            observed, random = superiority
            # Permutations at least as far from one half; the observed labels count as one of them.
            beyond = np.abs(random - 0.5) >= abs(observed - 0.5) - 1e-12
            p_values[role] = float((1 + beyond.sum()) / (1 + DEALS))
    adjusted = adjust(np.array(list(p_values.values()))).tolist()
    return {
        role: (p, p_adjusted)
        for (role, p), p_adjusted in zip(p_values.items(), adjusted, strict=True)
    }


def dealt(
    values: Array, has_role: Array, groups: Array, rng: np.random.Generator
) -> Superiority | None:
    """Return the superiority within groups, and those of labels permuted within groups.

    None where no group has heads of both kinds. Arrays are (heads,).
    """
    wins = 0.0
    pairs = 0
    random = np.zeros(DEALS)
    for group in np.unique(groups):
        inside = groups == group
        ranks = stats.rankdata(values[inside])
        labelled = has_role[inside]
        n = int(labelled.sum())
        least = n * (n + 1) / 2  # the rank sum of labelled heads that lose against all others
        wins += float(ranks[labelled].sum()) - least
        pairs += n * (len(labelled) - n)
        order = rng.random((DEALS, len(labelled))).argsort(axis=1)[:, :n]
        random += ranks[order].sum(axis=1) - least
    return (wins / pairs, random / pairs) if pairs else None


def _bootstrapped(
    with_role: Array, without_role: Array, rng: np.random.Generator
) -> tuple[float, ...]:
    """Return the bootstrap 95% interval of the superiority, over the heads of both groups."""
    difference = with_role[:, None] - without_role
    wins = np.where(difference > 0, 1.0, np.where(difference == 0, 0.5, 0.0))
    draws_with = _resampled(len(with_role), rng)
    draws_without = _resampled(len(without_role), rng)
    return _middle(((draws_with @ wins) * draws_without).sum(axis=1) / wins.size)


def _resampled(n: int, rng: np.random.Generator) -> Array:
    """Draw how often each of n heads is in every resample: (resamples, n)."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)


def _middle(values: Array) -> tuple[float, ...]:
    """Return the interval that holds the middle 95% of the values."""
    return tuple(np.quantile(values, (0.025, 0.975)).tolist())
