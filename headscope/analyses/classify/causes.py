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
from headscope.analyses.classify.optional_results import (
    Causes,
    CauseTest,
    EstimateFit,
    HeadCause,
)
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.core.progress import Progress
from headscope.core.rounding import tied
from headscope.data.examples import Examples
from headscope.data.halves import halve
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
        first, second = (pick(examples.pick(half), limit, task, seed) for half in halves)
        return cls(task, examples.name, first, second, limit, seed)


def with_causes(
    result: ClassifyResult, loaded: LoadedModel, source: CauseSource, progress: Progress
) -> ClassifyResult:
    """Remove every head alone, in three ways, and compare the losses with the heads' roles."""
    stacks = result.stacks
    view = chosen_stack(loaded, stacks[0] if len(stacks) == 1 else None, source.task)
    task, calibration = (
        make_task(source.task, examples, view, seed=source.seed + i, limit=source.limit)
        for i, examples in enumerate((source.measured, source.calibration))
    )
    units = units_of(view)
    means = mean_z(view, calibration)
    estimates = [
        _estimate(view, calibration, units, left, source.seed).tolist() for left in (None, means)
    ]
    full = task.outputs(view)
    losses = _remove_each(view, task, units, means, full, source.seed, progress)
    by_unit = [
        HeadCause(**of_unit, zero_estimate=zero, mean_estimate=mean)
        for of_unit, zero, mean in zip(losses, *estimates, strict=True)
    ]
    place_of = places(view)
    measured = [h for h in result.heads if (h.stack, h.layer, h.head) in place_of]
    at = [place_of[h.stack, h.layer, h.head] for h in measured]
    by_head = [by_unit[units.unit(position)] for position in at]
    notes = [note for note in task.notes if note not in task.data.notes]
    tests: tuple[CauseTest, ...] = ()
    if units.shared:
        notes.insert(
            0,
            "Layers of this model share one module, so a head goes from all of them at once; "
            "roles, which differ from layer to layer, are not tested.",
        )
    else:
        has_role = {"any": np.array([bool(head.roles) for head in measured])} | {
            role.key: np.array([role.key in head.roles for head in measured])
            for role in result.possible_roles
        }
        layers = np.array([row for row, _ in at])
        tests = role_tests(_losses(by_head), has_role, layers, size=abs(task.value(full)), seed=0)
    if problem := task.degenerate(full):
        notes.insert(0, f"The whole model {problem}, so these losses mean nothing.")
    causes = Causes(
        task=source.task,
        metric=task.metric,
        data=source.data,
        examples=task.n_examples,
        calibration=calibration.n_examples,
        value=task.value(full),
        estimate="first-order" if calibration.has_labels else "squared",
        tests=tests,
        fits=tuple(_fits(by_unit, source.seed)) if len(by_unit) > 1 else (),
        seed=source.seed,
        notes=tuple(notes),
        rotations=ROTATIONS,
    )
    cause_of = {h.name: cause for h, cause in zip(measured, by_head, strict=True)}
    heads = tuple(replace(head, cause=cause_of.get(head.name)) for head in result.heads)
    warnings = [*result.provenance["warnings"], *task.data.notes, *task.doubts(full)]
    origin = {**result.provenance, "warnings": list(dict.fromkeys(warnings))}
    return replace(result, provenance=origin, heads=heads, causes=causes)


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
    metric = task.table[task.metric]
    better = task.higher_is_better
    generator = torch.Generator().manual_seed(seed)
    versions = HeadByHead(task, loaded)

    def loss(*pairs: tuple[Outputs, Outputs]) -> JointEstimate:
        """Measure the mean loss over pairs of a baseline and what is compared with it."""
        losses = []
        downs = []
        ups = []
        for baseline, changed in pairs:
            change = paired_change(metric, baseline, changed, seed=seed)
            sides = change.difference - change.low, change.high - change.difference
            # No minus zero where nothing changed.
            losses.append(0.0 - change.difference if better else change.difference)
            downs.append(sides[better])
            ups.append(sides[not better])
        return joint_mean(losses, downs, ups, n_means=len(units.members), n=task.n_examples)

    rows = units.layers.tolist()
    for row in sorted(set(rows)):
        versions.start_at(row)
        for unit in (unit for unit, at in enumerate(rows) if at == row):
            gates = units.expand(units.gates([unit]))
            zero, mean = (versions.outputs(gates=gates, means=left) for left in (None, means))
            # Layers that share a module share its output map: the first stands for all.
            site, head = units.members[unit][0]
            noise = []
            for _ in range(ROTATIONS):
                other = less_random_write(loaded.sites[site], head, generator)
                with replaced_outputs(loaded, {site: other}):
                    noise.append(versions.outputs())
            yield {
                "zero": loss((full, zero)),
                "mean": loss((full, mean)),
                "noise": loss(*((full, one) for one in noise)),
                "beyond_noise": loss(*((one, zero) for one in noise)),
            }
            progress("removing heads", unit + 1, len(rows))


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
        ends = (end / 100 for end in fit.interval or ())
        yield EstimateFit(removal, len(causes), Estimate(float(fit) / 100, *ends))


def role_tests(
    losses: Mapping[str, Array],
    labels: Mapping[str, Array],
    layers: Array,
    *,
    size: float = 1.0,
    seed: int = 0,
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others."""
    sides = {role: (int(has.sum()), int((~has).sum())) for role, has in labels.items()}
    compared = {role: has for role, has in labels.items() if min(sides[role]) >= FEWEST}
    everywhere = np.zeros_like(layers)
    tests = []
    for removal in losses:
        # Heads whose removal changes nothing are tied, though rounding tells their losses apart.
        values = tied(losses[removal], size=size)
        rng = np.random.default_rng(seed)
        within = {role: dealt(values, has, layers, rng) for role, has in compared.items()}
        anywhere = {role: dealt(values, has, everywhere, rng) for role, has in compared.items()}
        within_p = _p_values(within)
        p = _p_values(anywhere)
        for role, has in compared.items():
            inside = within[role]
            overall = anywhere[role]
            assert overall is not None  # there are heads with the role and without
            inside_p, inside_adjusted = within_p.get(role, (None, None))
            verdict = "not measured"
            if inside is not None and inside_adjusted is not None:
                verdict = "costs more" if inside[0] > 0.5 else "costs less"
                verdict = "not told apart" if inside_adjusted >= LEVEL else verdict
            ends: tuple[float, ...] = ()
            if min(sides[role]) >= FEWEST_FOR_INTERVAL:
                ends = _bootstrapped(values[has], values[~has], rng)
            tests.append(
                CauseTest(
                    role=role,
                    removal=removal,
                    heads=sides[role][0],
                    others=sides[role][1],
                    superiority=Estimate(overall[0], *ends),
                    p_value=p[role][0],
                    p_adjusted=p[role][1],
                    placebo=_middle(overall[1]),
                    within=inside[0] if inside else None,
                    within_placebo=_middle(inside[1]) if inside else (),
                    within_p=inside_p,
                    within_p_adjusted=inside_adjusted,
                    verdict=verdict,
                )
            )
    return tuple(tests)


def _p_values(
    compared: Mapping[str, tuple[float, Array] | None],
) -> dict[str, tuple[float, float]]:
    """Return two-sided p and adjusted p of one removal's roles, where they could be compared."""
    p = {}
    for role, result in compared.items():
        if result is not None:
            # Permutations at least as far from one half; the observed labels count as one of them.
            beyond = np.abs(result[1] - 0.5) >= abs(result[0] - 0.5) - 1e-12
            p[role] = float((1 + beyond.sum()) / (1 + DEALS))
    adjusted = adjust(np.array(list(p.values()))).tolist()
    return dict(zip(p, zip(p.values(), adjusted, strict=True), strict=True))


def dealt(
    values: Array, has: Array, groups: Array, rng: np.random.Generator
) -> tuple[float, Array] | None:
    """Return the superiority within groups, and those of labels permuted within groups."""
    wins = 0.0
    pairs = 0
    random = np.zeros(DEALS)
    for group in np.unique(groups):
        inside = groups == group
        ranks = stats.rankdata(values[inside])
        labelled = has[inside]
        n = int(labelled.sum())
        least = n * (n + 1) / 2  # the rank sum of labelled heads that lose against all others
        wins += float(ranks[labelled].sum()) - least
        pairs += n * (len(labelled) - n)
        order = rng.random((DEALS, len(labelled))).argsort(axis=1)[:, :n]
        random += ranks[order].sum(axis=1) - least
    return (wins / pairs, random / pairs) if pairs else None


def _bootstrapped(ours: Array, theirs: Array, rng: np.random.Generator) -> tuple[float, ...]:
    """Return the bootstrap 95% interval of the superiority, over the heads of both groups."""
    wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
    counts = [
        rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) for n in (len(ours), len(theirs))
    ]
    return _middle(((counts[0] @ wins) * counts[1]).sum(axis=1) / wins.size)


def _middle(values: Array) -> tuple[float, ...]:
    """Return the interval that holds the middle 95% of the values."""
    return tuple(np.quantile(values, (0.025, 0.975)).tolist())
