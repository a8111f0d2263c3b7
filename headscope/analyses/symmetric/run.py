r"""``headscope symmetric``: scores made symmetric before the softmax, and the controls.

With S the scaled scores of a sequence, including everything that the model adds to them. Mask and
softmax stay as they are::

    S = q k^T scale + bias        A = (S - S^T) / 2        S - A = (S + S^T) / 2

=============  =================================================================================
``symmetric``  S - A: two tokens attend to each other with the same score
``pairs``      S - A', A' = A without its row and column means: how much a token is attended to by
               all (its column) and attends itself (its row) stays, the pairs become symmetric
``noise``      S + R, R independent normal numbers: a change of the same size as ``symmetric``
``shuffled``   S + f (S'^T - S), S' the scores with the tokens renumbered at random: a step of the
               same size as ``symmetric`` towards scores of the same kind
``even``       0: every key that may be seen gets the same weight
=============  =================================================================================

A softmax does not see what is added to a whole row. So ``noise`` and ``shuffled`` have the
Frobenius norm of A after each row's mean over the keys that it sees is taken out. Noise alone is
too weak a control: it leaves S intact, whereas averaging S and S^T removes half of S; and noise has
no columns, keys that all queries attend to. In an untrained model S^T is just another matrix of the
same kind, so ``shuffled`` moves the output as far as ``symmetric``.

A causal mask is applied afterwards: S - A is made of the scores of both directions, and the softmax
then uses those that look back. What a model adds to a pair that it never sees (a bias by distance,
say) is taken from the same pair the other way round.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.measure import draw_generator, looks_back
from headscope.analyses.symmetric import SymmetricOptions
from headscope.analyses.symmetric.result import (
    DrawnEffect,
    HeadSymmetry,
    RandomHeads,
    SymmetricResult,
)
from headscope.attention import Mask, masked_softmax
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import visible
from headscope.core.rounding import ROUNDING
from headscope.core.widest import widest
from headscope.models.run.intervene import Exchanged, Formula, HeadInputs, removed
from headscope.session.exchanged_heads import Opened, TaskEffect, boot
from headscope.session.opening import Model
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

#: Every change of the scores, those with something random in them, and how often it is drawn.
CHANGES = ("symmetric", "pairs", "noise", "shuffled", "even")
RANDOM = ("noise", "shuffled")
DRAWS = 5
#: A change with the heads that it is made to: one each, a number of them, or all.
Key = tuple[str, str | int]
ALONE = ("symmetric", "noise", "removed")  # Changes of each head alone.
SHARES = (1 / 3, 2 / 3)  # Shares of the heads that random sets are drawn of.


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric, in each head alone and in all at once."""
    opened = Opened.of(model, options, "symmetric")
    loaded = opened.loaded
    effects = opened.effects
    seed = options.seed
    tell = options.tell
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
        versions[change, "all"] = [Exchanged(_formula(change, seed, draw)) for draw in draws]
    every = [version for part in versions.values() for version in part]
    cosines = iter(effects.cosines(every, tell, "changed heads"))
    # Two thirds of the changes are of random sets, whose task no verdict and no table asks for.
    asked = {key: part for key, part in versions.items() if options.alone or key[1] == "all"}
    on_tasks = iter(effects.on_task(list(itertools.chain(*asked.values())), tell, "changed heads"))
    measured = {
        key: [(next(cosines), next(on_tasks) if key in asked else None) for _ in part]
        for key, part in versions.items()
    }

    heads = []
    for i, (row, head) in enumerate(positions):
        site = loaded.sites[row]
        values = boot(asymmetry[row][:, head], seed)
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
    all_heads = {change: _drawn(measured[change, "all"]) for change in (*CHANGES, "removed")}
    on_task = measured["symmetric", "all"][0][1]

    # How many removed heads move the output as far as symmetric scores do, between the numbers
    # measured on a straight line; where more heads move it less, the curve is made monotone.
    alone = [head.removed.cosine.value for head in heads if head.removed is not None]
    removals: list[tuple[int, list[float | None]]]
    removals = [(0, [1.0]), (1, alone), *((s.heads, [s.removed.cosine.value]) for s in sets)]
    removals.append((n, [all_heads["removed"].cosine.value]))
    known = [(count, values) for count, values in removals if values and None not in values]
    counts = [count for count, _ in known]
    similarity = np.minimum.accumulate([np.mean(np.array(values, float)) for _, values in known])

    def heads_at(cosine: float | None) -> float | None:
        if cosine is None or cosine < similarity[-1]:
            return None
        return float(np.interp(-cosine, -similarity, counts))

    symmetric = all_heads["symmetric"].cosine
    low = heads_at(symmetric.high)
    high = heads_at(symmetric.low)
    if low is None or high is None:
        low = high = None
    return SymmetricResult(
        **opened.common,
        heads=tuple(heads),
        whole=all_heads,
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
    mean = float(cosine.mean)
    half = finite(float(cosine.half_width))
    ends = () if half is None else (max(-1.0, mean - half), min(1.0, mean + half))
    return DrawnEffect(
        cosine=Estimate(mean, *ends),
        cosine_std=finite(float(cosine.draw_std)) if several else None,
        draws=len(measured),
        metric=float(np.mean(metrics)) if metrics else None,
        metric_std=float(np.std(metrics, ddof=1)) if metrics and several else None,
    )


def changed_attention(
    change: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Mask = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attend with changed scores.

    Shapes: ``q``, ``k``, ``v`` (batch, heads, pos, d_head); returns (batch, heads, pos, d_head).
    """
    scores, seen = square_scores(q, k, scale=scale, mask=mask)
    new = changed_scores(change, scores, seen, generator)
    return masked_softmax(new, seen).to(v) @ v


def square_scores(
    q: Tensor, k: Tensor, *, scale: float, mask: Mask = None
) -> tuple[Tensor, Tensor]:
    """Return scaled scores with what the model adds to them, and which pairs it sees.

    Both are (batch, heads, pos, pos); the first in single precision at least, the second boolean.
    """
    scores = widest(q * scale) @ widest(k).transpose(-2, -1)
    if mask is None:
        return scores, torch.ones_like(scores, dtype=torch.bool)
    seen = visible(mask).expand(scores.shape)
    if mask.dtype == torch.bool:
        return scores, seen
    bias = mask.expand(scores.shape).to(scores)
    mirrored = bias.mT.masked_fill(~seen.mT, 0.0)
    return scores + torch.where(seen, bias, mirrored), seen


def changed_scores(
    change: str, scores: Tensor, seen: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Return other scores for the softmax; arguments as :func:`square_scores` gives them."""
    if change == "even":
        return torch.zeros_like(scores)
    odd = (scores - scores.mT) / 2
    if change == "symmetric":
        return scores - odd
    if change == "pairs":
        real = _real(seen).to(odd)
        count = real.sum(-1).clamp_min(1.0)[..., None, None]
        rows = (odd * real[..., None, :]).sum(-1, keepdim=True) / count
        return scores - (odd - rows + rows.mT)
    draw = torch.randn(scores.shape, generator=generator).to(scores)
    step = _visible(
        draw if change == "noise" else _renumbered(scores.mT, seen, draw) - scores, seen
    )
    least = torch.finfo(scores.dtype).tiny
    return scores + step * (_norm(_visible(odd, seen)) / _norm(step).clamp_min(least))


def score_asymmetry(scores: Tensor, seen: Tensor) -> Tensor:
    """Return ||S - S^T||_F / ||S||_F as a softmax sees both, (batch, heads).

    Over visible pairs, without the means of rows: 0 symmetric, sqrt(2) independent directions, 2
    antisymmetric. 0 for scores that a softmax cannot distinguish from zero: constant rows.
    """
    wide = widest(scores)
    size = _norm(_visible(wide, seen))
    raw_size = _norm(wide * seen)
    ratio = _norm(_visible(wide - wide.mT, seen)) / size
    return torch.where(size > ROUNDING * raw_size, ratio, 0.0)[..., 0, 0]


def _renumbered(scores: Tensor, seen: Tensor, draw: Tensor) -> Tensor:
    """Permute a sequence's real positions, rows and columns together, in each head at random."""
    real = _real(seen)
    # Real positions in order, then the others; the same with the real ones in random order.
    first = (~real).to(torch.uint8).argsort(dim=-1, stable=True)
    drawn = torch.where(real, draw[..., 0], torch.inf).argsort(dim=-1, stable=True)
    order = torch.empty_like(first).scatter(-1, first, drawn)
    rows = torch.gather(scores, -2, order[..., None].expand(scores.shape))
    return torch.gather(rows, -1, order[..., None, :].expand(scores.shape))


def _norm(matrix: Tensor) -> Tensor:
    """Frobenius norm, with both axes kept."""
    size: Tensor = torch.linalg.matrix_norm(matrix, keepdim=True)
    return size


def _real(seen: Tensor) -> Tensor:
    """Return which positions are real, (batch, heads, pos): those that see themselves."""
    return seen.diagonal(dim1=-2, dim2=-1)


def _visible(change: Tensor, seen: Tensor) -> Tensor:
    """Return what a softmax sees of a change: no masked pair, no mean of a row."""
    weight = (seen & _real(seen)[..., :, None]).to(change)
    mean = (change * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp_min(1.0)
    return (change - mean) * weight
