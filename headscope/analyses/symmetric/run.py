"""``headscope symmetric``: a model with symmetric scores, and with changes that are controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from headscope.analyses.spectrum.measure import draw_generator, looks_back
from headscope.analyses.symmetric import SymmetricOptions
from headscope.analyses.symmetric.measure import (
    CHANGES,
    RANDOM,
    changed_attention,
    score_asymmetry,
    square_scores,
)
from headscope.analyses.symmetric.result import (
    DrawnEffect,
    HeadSymmetry,
    RandomHeads,
    SymmetricResult,
)
from headscope.core.accumulator import Array, numpy
from headscope.core.progress import Progress
from headscope.models.run.formulas import ExchangedHeads, Formula, HeadInputs, removed
from headscope.models.run.loaded import LoadedModel
from headscope.session.exchanged_heads import Effects, Opened, TaskEffect, mean_with_interval
from headscope.session.opening import Model
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

DRAWS = 5  # How often a random change, or a set of random heads, is drawn.
SHARES = (1 / 3, 2 / 3)  # Shares of the heads that random sets are drawn of.
#: A change of the model, and the number of random heads that it is made to, or "all".
ChangeOfHeads = tuple[str, int | str]
#: The heads of each site, by the site's row.
HeadSet = dict[int, list[int]]


class Measured(NamedTuple):
    """How far one changed version is from the unchanged model."""

    cosines: Array  # (lines,), of its embeddings to the unchanged model's
    on_task: TaskEffect | None  # None without a task, and for random sets of heads


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric in all heads at once, and in sets of random heads."""
    # Open, and prove that our attention is the model's.
    opened = Opened.of(model, options, "symmetric")
    loaded = opened.loaded
    effects = opened.effects
    seed = options.seed
    positions: list[tuple[int, int]] = []  # row of the site, and head
    for site in loaded.sites:
        positions += [(site.row, head) for head in range(site.n_heads)]

    # Measure the model's own scores, then its changed versions: several draws of each change.
    asymmetry, causal = observed_scores(loaded, effects)
    sets = random_sets(positions, seed)
    versions = changed_versions(sets, seed)
    measured = measure_versions(effects, versions, options.tell)

    # Describe single heads, random sets of heads, and all heads at once.
    heads = []
    for row, head in positions:
        site = loaded.sites[row]
        estimate = mean_with_interval(asymmetry[row][:, head], seed)
        heads.append(HeadSymmetry(site.layer, site.head_ids[head], estimate, stack=site.stack))
    drawn = {change: average_draws(draws) for change, draws in measured.items()}
    random_heads = [
        RandomHeads(count, symmetric=drawn["symmetric", count], removed=drawn["removed", count])
        for count in sets
    ]
    all_heads = {change: drawn[change, "all"] for change in (*CHANGES, "removed")}
    symmetric_on_task = measured["symmetric", "all"][0].on_task
    return SymmetricResult(
        **opened.common,
        heads=tuple(heads),
        whole=all_heads,
        whole_difference=None if symmetric_on_task is None else symmetric_on_task[1],
        sets=tuple(random_heads),
        equivalent_heads=equivalent_heads(random_heads, all_heads, len(positions)),
        causal=causal,
    )


def observed_scores(loaded: LoadedModel, effects: Effects) -> tuple[dict[int, Array], bool]:
    """Measure how asymmetric the model's own scores are, and whether a layer looks back only.

    The asymmetry is (lines, heads) by the row of the site.
    """
    asymmetry = {site.row: np.zeros((effects.lines, site.n_heads)) for site in loaded.sites}
    causal = False

    def see(batch: int, inputs: HeadInputs, _: Tensor) -> None:
        nonlocal causal
        scores, seen = square_scores(inputs.q, inputs.k, scale=inputs.scale, mask=inputs.mask)
        values = numpy(score_asymmetry(scores, seen))
        first_line = effects.first[batch]
        asymmetry[inputs.site.row][first_line : first_line + len(values)] = values
        causal |= seen.shape[-1] > 1 and looks_back(seen[0, 0])

    effects.observe(see)
    return asymmetry, causal


def random_sets(positions: Sequence[tuple[int, int]], seed: int) -> dict[int, list[HeadSet]]:
    """Draw sets of heads, by their size."""
    n_heads = len(positions)
    rng = np.random.default_rng(seed)
    sets: dict[int, list[HeadSet]] = {}
    for count in sorted({round(share * n_heads) for share in SHARES} - {0, 1, n_heads}):
        sets[count] = []
        for _ in range(DRAWS):
            heads_by_row: HeadSet = {}
            for i in sorted(rng.choice(n_heads, size=count, replace=False).tolist()):
                row, head = positions[i]
                heads_by_row.setdefault(row, []).append(head)
            sets[count].append(heads_by_row)
    return sets


def changed_versions(
    sets: Mapping[int, Sequence[HeadSet]], seed: int
) -> dict[ChangeOfHeads, list[ExchangedHeads]]:
    """List the draws of every change: of random sets of heads, and of all heads."""
    versions: dict[ChangeOfHeads, list[ExchangedHeads]] = {}
    for count, sets_of_count in sets.items():
        for change in ("symmetric", "removed"):
            formula = _formula(change, seed)
            versions[change, count] = [ExchangedHeads(formula, heads) for heads in sets_of_count]
    for change in (*CHANGES, "removed"):
        n_draws = DRAWS if change in RANDOM else 1
        versions[change, "all"] = [
            ExchangedHeads(_formula(change, seed, draw)) for draw in range(n_draws)
        ]
    return versions


def measure_versions(
    effects: Effects, versions: Mapping[ChangeOfHeads, Sequence[ExchangedHeads]], tell: Progress
) -> dict[ChangeOfHeads, list[Measured]]:
    """Measure all versions together in one pass over the text; by the task those of all heads.

    Two thirds of the changes are of random sets, whose task no verdict and no table asks for.
    """
    # Measure two flat lists of versions.
    all_versions: list[ExchangedHeads] = []
    with_task: list[ExchangedHeads] = []
    for (_, heads), draws in versions.items():
        all_versions += draws
        if heads == "all":
            with_task += draws
    cosines = iter(effects.cosines(all_versions, tell, "changed heads"))
    task_effects = iter(effects.on_task(with_task, tell, "changed heads"))

    # Deal the numbers out to the changes again, in the same order.
    measured: dict[ChangeOfHeads, list[Measured]] = {}
    for (change, heads), draws in versions.items():
        measured[change, heads] = []
        for _ in draws:
            task_effect = next(task_effects) if heads == "all" else None
            measured[change, heads].append(Measured(next(cosines), task_effect))
    return measured


def average_draws(measured: Sequence[Measured]) -> DrawnEffect:
    """Average the draws of one change; both lines and draws enter the interval of the cosine."""
    cosine = crossed_mean(np.array([version.cosines for version in measured]).T)
    mean = float(cosine.mean)
    half_width = finite(float(cosine.half_width))
    estimate = Estimate(mean)
    if half_width is not None:  # a cosine lies between -1 and 1
        estimate = Estimate(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))
    metrics = [version.on_task[0] for version in measured if version.on_task is not None]
    several = len(measured) > 1
    return DrawnEffect(
        cosine=estimate,
        cosine_std=finite(float(cosine.draw_std)) if several else None,
        draws=len(measured),
        metric=float(np.mean(metrics)) if metrics else None,
        metric_std=float(np.std(metrics, ddof=1)) if metrics and several else None,
    )


def equivalent_heads(
    sets: Sequence[RandomHeads], all_heads: Mapping[str, DrawnEffect], n_heads: int
) -> Estimate:
    """Return how many removed heads move the output as far as symmetric scores in all heads do.

    On a straight line between the numbers that were measured; where more heads move it less, the
    curve is made monotone. Unknown where even all heads move it less. The interval is that of the
    cosine with symmetric scores, read off the same curve.
    """
    # The curve: how far the output moves with so many heads removed.
    counts = [0, *(drawn.heads for drawn in sets), n_heads]
    cosines = [1.0, *(drawn.removed.cosine.value for drawn in sets)]
    cosines.append(all_heads["removed"].cosine.value)
    known = [
        (count, cosine) for count, cosine in zip(counts, cosines, strict=True) if cosine is not None
    ]
    known_counts = [count for count, _ in known]
    falling = np.minimum.accumulate([cosine for _, cosine in known])

    def heads_at(cosine: float | None) -> float | None:
        if cosine is None or cosine < falling[-1]:
            return None
        return float(np.interp(-cosine, -falling, known_counts))

    # Where it crosses the cosine with symmetric scores.
    symmetric = all_heads["symmetric"].cosine
    fewest = heads_at(symmetric.high)
    most = heads_at(symmetric.low)
    if fewest is None or most is None:
        return Estimate(heads_at(symmetric.value))
    return Estimate(heads_at(symmetric.value), fewest, most)


def _formula(change: str, seed: int, draw: int = 0) -> Formula:
    """Return the formula of heads whose scores are changed, or that are removed."""
    if change == "removed":
        return removed

    def attend(inputs: HeadInputs) -> Tensor:
        return changed_attention(
            change,
            inputs.q,
            inputs.k,
            inputs.v,
            scale=inputs.scale,
            mask=inputs.mask,
            generator=draw_generator(seed, inputs.site.row, inputs.heads[0], draw),
        )

    return attend
