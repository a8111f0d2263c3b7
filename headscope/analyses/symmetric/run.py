"""``headscope symmetric``: a model with symmetric scores, and with changes that are controls.

A change (:mod:`.measure`, or the removal of heads) is made to all heads, or to sets of random
heads; what is random is drawn several times, and each draw is one version of the model.
``Effects``, from :mod:`headscope.session.exchanged_heads`, has the text in batches, runs the
versions over it and compares them with the unchanged model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from headscope.analyses.spectrum.forms import draw_generator, looks_back
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
from headscope.session.exchanged_heads import Effects, TaskEffect, open_for_exchange
from headscope.session.opening import Model
from headscope.session.pooled_states import bootstrapped_mean
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

DRAWS = 5  # How often a random change, or a set of random heads, is drawn.
SHARES = (1 / 3, 2 / 3)  # Shares of the heads that random sets are drawn of.
#: The name of a change, and the number of random heads that it is made to, or "all".
ChangeOfHeads = tuple[str, int | str]
#: Some heads of a model: indices of heads, by the row of their site (attention module).
HeadSet = dict[int, list[int]]


class MeasuredVersion(NamedTuple):
    """How far one changed version is from the unchanged model."""

    cosines: Array  # (lines,), of its embeddings to the unchanged model's
    #: The task's value, and its change; None without a task, and for random sets of heads.
    on_task: TaskEffect | None


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric in all heads at once, and in sets of random heads."""
    # Open, and prove that our attention is the model's.
    opened = open_for_exchange(model, options, "symmetric")
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
        estimate = bootstrapped_mean(asymmetry[row][:, head], seed)
        heads.append(HeadSymmetry(site.layer, site.head_ids[head], estimate, stack=site.stack))
    mean_effects = {change: average_draws(draws) for change, draws in measured.items()}
    random_heads = []
    for count in sets:
        symmetric = mean_effects["symmetric", count]
        random_heads.append(RandomHeads(count, symmetric, removed=mean_effects["removed", count]))
    all_heads = {change: mean_effects[change, "all"] for change in (*CHANGES, "removed")}
    symmetric_on_task = measured["symmetric", "all"][0].on_task
    task_change = None
    if symmetric_on_task is not None:
        _, task_change = symmetric_on_task
    return SymmetricResult(
        **opened.common,
        heads=tuple(heads),
        whole=all_heads,
        whole_difference=task_change,
        sets=tuple(random_heads),
        equivalent_heads=equivalent_heads(random_heads, all_heads, len(positions)),
        causal=causal,
    )


def observed_scores(loaded: LoadedModel, effects: Effects) -> tuple[dict[int, Array], bool]:
    """Measure how asymmetric the model's own scores are, and whether a layer looks back only.

    The asymmetry is an array (lines, heads) for each site, by its row.
    """
    asymmetry = {site.row: np.zeros((effects.lines, site.n_heads)) for site in loaded.sites}
    causal = False

    def see(batch: int, inputs: HeadInputs, _: Tensor) -> None:
        nonlocal causal
        scores, seen = square_scores(
            inputs.q,
            inputs.k,
            scale=inputs.scale,
            softcap=inputs.softcap,
            mask=inputs.mask,
        )
        values = numpy(score_asymmetry(scores, seen))  # (lines of the batch, heads)
        first_line = effects.first_lines[batch]
        lines_of_batch = slice(first_line, first_line + len(values))
        asymmetry[inputs.site.row][lines_of_batch] = values
        several_tokens = seen.shape[-1] > 1
        causal |= several_tokens and looks_back(seen[0, 0])  # of one line and one head

    effects.observe(see)
    return asymmetry, causal


def random_sets(positions: Sequence[tuple[int, int]], seed: int) -> dict[int, list[HeadSet]]:
    """Draw DRAWS sets of heads of each size, by their size: of 12 heads, sets of 4 and of 8.

    ``positions`` are the row of the site, and the index in it, of every head.
    """
    n_heads = len(positions)
    rng = np.random.default_rng(seed)
    sets: dict[int, list[HeadSet]] = {}
    sizes = {round(share * n_heads) for share in SHARES}
    for count in sorted(sizes - {0, 1, n_heads}):
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
) -> dict[ChangeOfHeads, list[MeasuredVersion]]:
    """Measure all versions together in one pass over the text, those of all heads by the task too.

    Most versions are of random sets, whose task no verdict and no table asks for.
    """
    # Lay the versions out in two flat lists, and measure these.
    all_versions: list[ExchangedHeads] = []
    with_task: list[ExchangedHeads] = []
    for (_, heads), draws in versions.items():
        all_versions += draws
        if heads == "all":
            with_task += draws
    cosines = iter(effects.cosines(all_versions, tell, "changed heads"))
    task_effects = iter(effects.on_task(with_task, tell, "changed heads"))

    # Deal the numbers out to the changes again, in the same order.
    measured: dict[ChangeOfHeads, list[MeasuredVersion]] = {}
    for (change, heads), draws in versions.items():
        measured[change, heads] = []
        for _ in draws:
            task_effect = next(task_effects) if heads == "all" else None
            measured[change, heads].append(MeasuredVersion(next(cosines), task_effect))
    return measured


def average_draws(measured: Sequence[MeasuredVersion]) -> DrawnEffect:
    """Average the draws of one change; both lines and draws enter the interval of the cosine."""
    cosines = np.array([version.cosines for version in measured])  # (draws, lines)
    cosine = crossed_mean(cosines.T)
    mean = float(cosine.mean)
    half_width = finite(float(cosine.half_width))
    estimate = Estimate(mean)
    if half_width is not None:  # a cosine lies between -1 and 1
        estimate = Estimate(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))
    metrics = []
    for version in measured:
        if version.on_task is not None:
            metric, _ = version.on_task
            metrics.append(metric)
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

    If the cosine is 0.9 with 4 removed heads, 0.5 with 8, and 0.8 with symmetric scores: 5 heads.
    Between the numbers that were measured the curve is a straight line; where more heads move the
    output less, it is made monotone. Unknown where even all heads move it less. The interval is
    that of the cosine with symmetric scores, read off the same curve.
    """
    # The curve: the cosine by the number of removed heads, from none to all.
    cosine_by_count: dict[int, float | None] = {0: 1.0}
    for random_heads in sets:
        cosine_by_count[random_heads.heads] = random_heads.removed.cosine.value
    cosine_by_count[n_heads] = all_heads["removed"].cosine.value
    counts = []
    cosines = []
    for count, cosine in cosine_by_count.items():
        if cosine is not None:
            counts.append(count)
            cosines.append(cosine)
    falling_cosines = np.minimum.accumulate(cosines)

    def heads_at(cosine: float | None) -> float | None:
        """Return the number of removed heads at a cosine; None below the whole curve."""
        if cosine is None or cosine < falling_cosines[-1]:
            return None
        # With changed signs, as np.interp wants x to rise.
        return float(np.interp(-cosine, -falling_cosines, counts))

    # Where it crosses the cosine with symmetric scores.
    symmetric = all_heads["symmetric"].cosine
    fewest = heads_at(symmetric.high)
    most = heads_at(symmetric.low)
    if fewest is None or most is None:
        return Estimate(heads_at(symmetric.value))
    return Estimate(heads_at(symmetric.value), fewest, most)


def _formula(change: str, seed: int, draw: int = 0) -> Formula:
    """Return what computes z of heads whose scores are changed, or that are removed.

    ``draw`` is the number of the draw, from 0: each draws other random numbers from the seed.
    """
    if change == "removed":
        return removed

    def attend(inputs: HeadInputs) -> Tensor:
        return changed_attention(
            change,
            inputs.q,
            inputs.k,
            inputs.v,
            scale=inputs.scale,
            softcap=inputs.softcap,
            mask=inputs.mask,
            generator=draw_generator(seed, inputs.site.row, inputs.heads[0], draw),
        )

    return attend
