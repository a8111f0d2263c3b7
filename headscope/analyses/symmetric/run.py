"""``headscope symmetric``: scores made symmetric before the softmax, and what the output says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
from headscope.attention import Mask, stream_attention
from headscope.core.accumulator import Array, numpy
from headscope.models.intervene import Exchanged, Formula, HeadInputs, Heads, removed
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.session.exchanged_heads import Effects, Opened, boot, last_states
from headscope.session.opening import Model
from headscope.session.progress import Progress
from headscope.stats.effects import Effect
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import crossed_mean, finite

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # Shares of the heads that random sets are drawn of.


def run(model: Model, options: SymmetricOptions) -> SymmetricResult:
    """Make attention scores symmetric, in each head alone and in all at once."""
    opened = Opened.of(model, options, "symmetric")
    loaded, effects = opened.loaded, opened.effects
    passes = _Run(loaded, effects, options.seed, options.tell)
    heads = passes.heads(options.alone)
    sets = passes.sets()
    of_all = passes.whole()
    single = [head.removed.cosine.value for head in heads if head.removed is not None]
    removals = [(1, single), *((s.heads, [s.removed.cosine.value]) for s in sets)]
    removals.append((len(heads), [of_all["removed"].cosine.value]))
    return SymmetricResult(
        **opened.common,
        heads=heads,
        whole=of_all,
        whole_difference=passes.difference,
        sets=sets,
        equivalent_heads=_equivalent(of_all, removals),
        causal=passes.causal,
    )


class _Run:
    """The passes of one run."""

    def __init__(
        self, loaded: LoadedModel, effects: Effects, seed: int, progress: Progress
    ) -> None:
        self._loaded, self._effects, self._seed = loaded, effects, seed
        self._progress = progress
        self._places = [(s.row, h) for s in loaded.sites for h in range(s.n_heads)]
        #: The task's value with all scores symmetric, minus the model's own.
        self.difference: Estimate | None = None
        #: Whether any layer hides later tokens; known once :meth:`heads` has run.
        self.causal = False

    def heads(self, alone: bool) -> tuple[HeadSymmetry, ...]:
        """Describe every head's scores, and change it alone if that is asked for."""
        asymmetry = self._asymmetry()
        effects = self._alone() if alone else [()] * len(self._places)
        found = []
        for (row, head), effect in zip(self._places, effects, strict=True):
            site = self._loaded.sites[row]
            own = boot(asymmetry[row][:, head], self._seed)
            place, stack = (site.layer, site.head_ids[head]), site.stack
            found.append(HeadSymmetry(*place, own, *effect, stack=stack))
        return tuple(found)

    def _alone(self) -> list[tuple[Effect, ...]]:
        """Change every head alone: scores symmetric, noise of the same size, removed."""
        by_change = [
            self._effects.measure(
                [Exchanged(self._formula(change), {row: (head,)}) for row, head in self._places],
                self._progress,
                f"{change}, head by head",
            )
            for change in ("symmetric", "noise", "removed")
        ]
        return list(zip(*by_change, strict=True))

    def sets(self) -> tuple[RandomHeads, ...]:
        """Draw sets of heads at random; make each symmetric, and remove it."""
        rng, n = np.random.default_rng(self._seed), len(self._places)
        counts = sorted({round(share * n) for share in SHARES} - {0, 1, n})
        found = []
        for count in counts:
            drawn = [_grouped(self._drawn(rng, count)) for _ in range(DRAWS)]
            both = [
                self._drawn_effect(
                    [Exchanged(self._formula(change), heads) for heads in drawn],
                    f"{change}, {count} random heads",
                )
                for change in ("symmetric", "removed")
            ]
            found.append(RandomHeads(count, *both))
        return tuple(found)

    def whole(self) -> dict[str, DrawnEffect]:
        """Change all heads at once."""
        found = {}
        for change in (*CHANGES, "removed"):
            draws = range(DRAWS if change in RANDOM else 1)
            versions = [Exchanged(self._formula(change, draw)) for draw in draws]
            found[change] = self._drawn_effect(versions, f"{change}, all heads")
        return found

    def _drawn(self, rng: np.random.Generator, count: int) -> Iterable[tuple[int, int]]:
        chosen = rng.choice(len(self._places), size=count, replace=False)
        return [self._places[i] for i in sorted(chosen.tolist())]

    def _drawn_effect(self, versions: Sequence[Exchanged], what: str) -> DrawnEffect:
        cosines = self._effects.cosines(versions, self._progress, what)
        found = crossed_mean(cosines.T)
        mean, half = float(found.mean), finite(float(found.half_width))
        metrics = self._metrics(versions, what)
        several = len(versions) > 1
        return DrawnEffect(
            cosine=Estimate(mean, *((None, None) if half is None else (mean - half, mean + half))),
            cosine_std=finite(float(found.draw_std)) if several else None,
            draws=len(versions),
            metric=float(np.mean(metrics)) if metrics else None,
            metric_std=float(np.std(metrics, ddof=1)) if metrics and several else None,
        )

    def _metrics(self, versions: Sequence[Exchanged], what: str) -> list[float]:
        """Return the task's value of every version; nothing without a task."""
        found = self._effects.on_task(versions, self._progress, what)
        if what == "symmetric, all heads" and found:
            self.difference = found[0].difference
        return [effect.metric for effect in found if effect.metric is not None]

    def _formula(self, change: str, draw: int = 0) -> Formula:
        """Return the formula of heads whose scores are changed, or that are removed."""
        if change == "removed":
            return removed

        def attend(inputs: HeadInputs) -> Tensor:
            place = (self._seed % 2**32 * 4099 + inputs.site.row) * 4099 + inputs.heads[0]
            generator = torch.Generator().manual_seed((place * 61 + draw) % 2**63)
            return changed_attention(
                change,
                inputs.q,
                inputs.k,
                inputs.v,
                scale=inputs.scale,
                mask=inputs.mask,
                generator=generator,
            )

        return attend

    def _asymmetry(self) -> dict[int, Array]:
        """Asymmetry of the scores by row of the site, (lines, heads), from one plain pass."""
        parts: dict[int, list[Array]] = {site.row: [] for site in self._loaded.sites}

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            own = q.shape[-1] ** -0.5 if scale is None else scale
            scores, seen = square_scores(q, k, scale=own, mask=mask)
            parts[site.row].append(numpy(score_asymmetry(scores, seen)))
            if seen.shape[-1] > 1 and seen.numel():
                self.causal |= looks_back(seen[0, 0])
            return stream_attention(q, k, v, mask=mask, scale=scale)

        last_states(self._loaded, self._effects.batches, attend, lambda hidden, mask: hidden[:0])
        return {row: np.concatenate(found) for row, found in parts.items()}


def _grouped(places: Iterable[tuple[int, int]]) -> Heads:
    """Group the places of heads by row."""
    found: dict[int, list[int]] = {}
    for row, head in places:
        found.setdefault(row, []).append(head)
    return found


def _equivalent(
    whole: dict[str, DrawnEffect], removals: Sequence[tuple[int, list[float | None]]]
) -> Estimate:
    """Read off how many removed heads move the output as far as symmetric scores do.

    Between the numbers measured the cosine is taken to be a straight line.
    """
    counts, cosines = [0.0], [1.0]
    for count, values in removals:
        if values and all(value is not None for value in values):
            counts.append(float(count))
            # A curve that rises by chance is held where it was: it is read from the other side.
            cosines.append(min(cosines[-1], float(np.mean([v for v in values if v is not None]))))

    def read(cosine: float | None) -> float | None:
        if cosine is None or cosine < cosines[-1]:
            return None
        return float(np.interp(-cosine, -np.array(cosines), counts))

    found = whole["symmetric"].cosine
    low, high = read(found.high), read(found.low)
    if low is None or high is None:
        low = high = None
    return Estimate(read(found.value), low, high)
