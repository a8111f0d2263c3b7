"""``headscope symmetric``: scores made symmetric before the softmax, and how the output changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.measure import looks_back
from headscope.analyses.symmetric.measure import (
    CHANGES,
    DRAWS,
    RANDOM,
    changed_attention,
    score_asymmetry,
    square_scores,
)
from headscope.analyses.symmetric.options import SymmetricOptions
from headscope.analyses.symmetric.result import (
    DrawnEffect,
    HeadSymmetry,
    RandomHeads,
    SymmetricResult,
)
from headscope.attention import Mask, default_scale, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.core.progress import Progress
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import Exchanged, Formula, HeadInputs, intervene, removed
from headscope.models.run.loaded import LoadedModel
from headscope.session.exchanged_heads import Effects, Opened, TaskEffect, boot
from headscope.session.opening import Model
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

#: A change with the heads that it is made to, and what is measured of that version of the model.
Key = tuple[str, str | int]
Measured = tuple[Array, TaskEffect | None]
ALONE = ("symmetric", "noise", "removed")  # Changes of each head alone.
SHARES = (1 / 3, 2 / 3)  # Shares of the heads that random sets are drawn of.


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric, in each head alone and in all at once."""
    opened = Opened.of(model, options, "symmetric")
    loaded, effects, seed, tell = opened.loaded, opened.effects, options.seed, options.tell
    positions = [(site.row, head) for site in loaded.sites for head in range(site.n_heads)]
    asymmetry, causal = _asymmetry(loaded, effects)

    #: Versions of the model by what is changed how: heads alone, sets of so many, or all of them.
    versions: dict[Key, list[Exchanged]] = {}
    if options.alone:
        for change in ALONE:
            formula = _formula(change, seed)
            versions[change, "alone"] = [Exchanged(formula, {row: (i,)}) for row, i in positions]
    rng, n = np.random.default_rng(seed), len(positions)
    counts = sorted({round(share * n) for share in SHARES} - {0, 1, n})
    for count in counts:
        drawn = []
        for _ in range(DRAWS):
            by_row: dict[int, list[int]] = {}
            for i in sorted(rng.choice(n, size=count, replace=False).tolist()):
                by_row.setdefault(positions[i][0], []).append(positions[i][1])
            drawn.append(by_row)
        for change in ("symmetric", "removed"):
            versions[change, count] = [Exchanged(_formula(change, seed), by) for by in drawn]
    for change in (*CHANGES, "removed"):
        draws = range(DRAWS if change in RANDOM else 1)
        versions[change, "whole"] = [Exchanged(_formula(change, seed, draw)) for draw in draws]
    measured = _measured(effects, versions, tell)

    heads = []
    for i, (row, head) in enumerate(positions):
        site, values = loaded.sites[row], boot(asymmetry[row][:, head], seed)
        own = [effects.effect(*measured[change, "alone"][i]) for change in ALONE if options.alone]
        heads.append(HeadSymmetry(site.layer, site.head_ids[head], values, *own, stack=site.stack))
    sets = [
        RandomHeads(
            count, *(_drawn(measured[change, count]) for change in ("symmetric", "removed"))
        )
        for count in counts
    ]
    whole = {change: _drawn(measured[change, "whole"]) for change in (*CHANGES, "removed")}
    on_task = measured["symmetric", "whole"][0][1]

    single = [head.removed.cosine.value for head in heads if head.removed is not None]
    removals = [(1, single), *((s.heads, [s.removed.cosine.value]) for s in sets)]
    removals.append((n, [whole["removed"].cosine.value]))
    return SymmetricResult(
        **opened.common,
        heads=tuple(heads),
        whole=whole,
        whole_difference=on_task.difference if on_task is not None else None,
        sets=tuple(sets),
        equivalent_heads=_equivalent(whole["symmetric"].cosine, removals),
        causal=causal,
    )


def _asymmetry(loaded: LoadedModel, effects: Effects) -> tuple[dict[int, Array], bool]:
    """Return the asymmetry of the model's own scores by row of the site, (lines, heads).

    Also whether any layer hides later tokens.
    """
    parts: dict[int, list[Array]] = {site.row: [] for site in loaded.sites}
    causal = False

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        nonlocal causal
        own = default_scale(q.shape[-1]) if scale is None else scale
        scores, seen = square_scores(q, k, scale=own, mask=mask)
        parts[site.row].append(numpy(score_asymmetry(scores, seen)))
        if seen.shape[-1] > 1 and seen.numel():
            causal |= looks_back(seen[0, 0])
        return stream_attention(q, k, v, mask=mask, scale=scale)

    with intervene(loaded, attention=attend) as router:
        for ids, mask in effects.batches:
            router.run(partial(loaded.forward, ids, mask))
    return {row: np.concatenate(batches) for row, batches in parts.items()}, causal


def _formula(change: str, seed: int, draw: int = 0) -> Formula:
    """Return the formula of heads whose scores are changed, or that are removed."""
    if change == "removed":
        return removed

    def attend(inputs: HeadInputs) -> Tensor:
        place = (seed % 2**32 * 4099 + inputs.site.row) * 4099 + inputs.heads[0]
        return changed_attention(
            change,
            inputs.q,
            inputs.k,
            inputs.v,
            scale=inputs.scale,
            mask=inputs.mask,
            generator=torch.Generator().manual_seed((place * 61 + draw) % 2**63),
        )

    return attend


def _measured(
    effects: Effects, versions: Mapping[Key, Sequence[Exchanged]], progress: Progress
) -> dict[Key, list[Measured]]:
    """Measure all versions in one pass over the text."""
    every = [version for part in versions.values() for version in part]
    what = "changed heads"
    pairs = zip(
        effects.cosines(every, progress, what), effects.on_task(every, progress, what), strict=True
    )
    return {key: list(itertools.islice(pairs, len(part))) for key, part in versions.items()}


def _drawn(measured: Sequence[Measured]) -> DrawnEffect:
    """Average the draws of one change."""
    cosine = crossed_mean(np.array([cosines for cosines, _ in measured]).T)
    metrics = [on_task.metric for _, on_task in measured if on_task is not None]
    several = len(measured) > 1
    mean, half = float(cosine.mean), finite(float(cosine.half_width))
    ends = () if half is None else (max(-1.0, mean - half), min(1.0, mean + half))
    return DrawnEffect(
        cosine=Estimate(mean, *ends),
        cosine_std=finite(float(cosine.draw_std)) if several else None,
        draws=len(measured),
        metric=float(np.mean(metrics)) if metrics else None,
        metric_std=float(np.std(metrics, ddof=1)) if metrics and several else None,
    )


def _equivalent(
    symmetric: Estimate, removals: Sequence[tuple[int, list[float | None]]]
) -> Estimate:
    """Read off how many removed heads move the output as far as symmetric scores do.

    Between the numbers measured the cosine is taken to be a straight line.
    """
    counts, cosines = [0.0], [1.0]
    for count, values in removals:
        cosine = [value for value in values if value is not None]
        if values and len(cosine) == len(values):
            counts.append(float(count))
            # Made monotone, then inverted.
            cosines.append(min(cosines[-1], float(np.mean(cosine))))

    def read(cosine: float | None) -> float | None:
        if cosine is None or cosine < cosines[-1]:
            return None
        return float(np.interp(-cosine, -np.array(cosines), counts))

    low, high = read(symmetric.high), read(symmetric.low)
    if low is None or high is None:
        low = high = None
    return Estimate(read(symmetric.value), low, high)
