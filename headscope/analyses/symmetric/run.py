"""``headscope symmetric``: scores made symmetric before the softmax, and how the output changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from headscope.analyses.spectrum.measure import draw_generator, looks_back
from headscope.analyses.symmetric import SymmetricOptions
from headscope.analyses.symmetric.measure import (
    CHANGES,
    DRAWS,
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
from headscope.models.run.intervene import Exchanged, Formula, HeadInputs, removed
from headscope.session.exchanged_heads import Opened, TaskEffect, boot
from headscope.session.opening import Model
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

#: A change with the heads that it is made to: one each, a number of them, or all.
Key = tuple[str, str | int]
ALONE = ("symmetric", "noise", "removed")  # Changes of each head alone.
SHARES = (1 / 3, 2 / 3)  # Shares of the heads that random sets are drawn of.


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric, in each head alone and in all at once."""
    opened = Opened.of(model, options, "symmetric")
    loaded, effects, seed, tell = opened.loaded, opened.effects, options.seed, options.tell
    positions = [(site.row, head) for site in loaded.sites for head in range(site.n_heads)]
    n = len(positions)

    # The model's own scores, (lines, heads) by the site's row, and whether any layer looks back.
    asymmetry = {site.row: np.zeros((effects.lines, site.n_heads)) for site in loaded.sites}
    causal = False

    def see(batch: int, inputs: HeadInputs, _: Tensor) -> None:
        nonlocal causal
        scores, seen = square_scores(inputs.q, inputs.k, scale=inputs.scale, mask=inputs.mask)
        first = effects.first[batch]
        values = numpy(score_asymmetry(scores, seen))
        asymmetry[inputs.site.row][first : first + len(values)] = values
        causal |= seen.shape[-1] > 1 and looks_back(seen[0, 0])

    effects.observe(see)

    #: Versions of the model, measured together in one pass over the text.
    versions: dict[Key, list[Exchanged]] = {}
    for change in ALONE if options.alone else ():
        formula = _formula(change, seed)
        versions[change, "alone"] = [Exchanged(formula, {row: (i,)}) for row, i in positions]
    rng = np.random.default_rng(seed)
    counts = sorted({round(share * n) for share in SHARES} - {0, 1, n})
    for count in counts:
        drawn: list[dict[int, list[int]]] = []
        for _ in range(DRAWS):
            drawn.append({})
            for i in sorted(rng.choice(n, size=count, replace=False).tolist()):
                drawn[-1].setdefault(positions[i][0], []).append(positions[i][1])
        for change in ("symmetric", "removed"):
            versions[change, count] = [Exchanged(_formula(change, seed), by) for by in drawn]
    for change in (*CHANGES, "removed"):
        draws = range(DRAWS if change in RANDOM else 1)
        versions[change, "whole"] = [Exchanged(_formula(change, seed, draw)) for draw in draws]
    every = [version for part in versions.values() for version in part]
    cosines = effects.cosines(every, tell, "changed heads")
    pairs = zip(cosines, effects.on_task(every, tell, "changed heads"), strict=True)
    measured = {key: list(itertools.islice(pairs, len(part))) for key, part in versions.items()}

    heads = []
    for i, (row, head) in enumerate(positions):
        site, values = loaded.sites[row], boot(asymmetry[row][:, head], seed)
        changed = [
            effects.effect(*measured[change, "alone"][i]) for change in ALONE if options.alone
        ]
        name = (site.layer, site.head_ids[head])
        heads.append(HeadSymmetry(*name, values, *changed, stack=site.stack))
    sets = [
        RandomHeads(
            count, *(_drawn(measured[change, count]) for change in ("symmetric", "removed"))
        )
        for count in counts
    ]
    whole = {change: _drawn(measured[change, "whole"]) for change in (*CHANGES, "removed")}
    on_task = measured["symmetric", "whole"][0][1]

    # How many removed heads move the output as far as symmetric scores do, between the numbers
    # measured on a straight line.
    alone = [head.removed.cosine.value for head in heads if head.removed is not None]
    removals = [(1, alone), *((s.heads, [s.removed.cosine.value]) for s in sets)]
    removals.append((n, [whole["removed"].cosine.value]))
    removed_heads, similarity = [0.0], [1.0]
    for count, means in removals:
        known = [value for value in means if value is not None]
        if means and len(known) == len(means):
            removed_heads.append(float(count))
            # Made monotone, then inverted.
            similarity.append(min(similarity[-1], float(np.mean(known))))

    def heads_at(cosine: float | None) -> float | None:
        if cosine is None or cosine < similarity[-1]:
            return None
        return float(np.interp(-cosine, -np.array(similarity), removed_heads))

    symmetric = whole["symmetric"].cosine
    low, high = heads_at(symmetric.high), heads_at(symmetric.low)
    if low is None or high is None:
        low = high = None
    return SymmetricResult(
        **opened.common,
        heads=tuple(heads),
        whole=whole,
        whole_difference=on_task[1] if on_task is not None else None,
        sets=tuple(sets),
        equivalent_heads=Estimate(heads_at(symmetric.value), low, high),
        causal=causal,
    )


def _formula(change: str, seed: int, draw: int = 0) -> Formula:
    """Return the formula of heads whose scores are changed, or that are removed."""
    if change == "removed":
        return removed

    def attend(inputs: HeadInputs) -> Tensor:
        qkv = (inputs.q, inputs.k, inputs.v)
        generator = draw_generator(seed, inputs.site.row, inputs.heads[0], draw)
        return changed_attention(
            change, *qkv, scale=inputs.scale, mask=inputs.mask, generator=generator
        )

    return attend


def _drawn(measured: Sequence[tuple[Array, TaskEffect | None]]) -> DrawnEffect:
    """Average the draws of one change."""
    cosine = crossed_mean(np.array([cosines for cosines, _ in measured]).T)
    metrics = [on_task[0] for _, on_task in measured if on_task is not None]
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
