"""``headscope linear``: the same layers without their softmax, and with other feature maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.linear.options import LinearOptions
from headscope.attention import Mask, default_scale, stream_attention
from headscope.measures.accumulator import Array
from headscope.measures.linear.feature_maps import linear_attention
from headscope.measures.linear.sentence_sums import EVERY, LinearSums
from headscope.measures.visible import visible
from headscope.models.control import random_twin
from headscope.models.exchanged import Exchanged, Formula, HeadInputs
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.pipeline.exchanged_heads import Effects, Opened
from headscope.pipeline.linear.describing import Described
from headscope.pipeline.linear.of_keys import OwnKeys, key_memory
from headscope.pipeline.opening import Model
from headscope.pipeline.progress import Progress
from headscope.pipeline.replaced_attention import last_states
from headscope.results.effects import Effect
from headscope.results.linear import LinearControl, LinearForm, LinearResult

#: Draws of random weights that values are read back from the keys of.
CONTROLS = 5
#: The form that is put into each head alone.
ALONE = "linear"


def run(model: Model, options: LinearOptions) -> LinearResult:
    """Take the softmax out of attention, and say what each head and the model lose."""
    opened = Opened.of(model, options, "linear")
    loaded, effects = opened.loaded, opened.effects
    plain = _Plain(loaded, effects.lines)
    plain.run(effects.batches)
    seed = options.seed
    described = Described.of(loaded, plain.sums, seed)
    changed = _Changed(loaded, effects, plain.sums, options.tell)
    return LinearResult(
        **opened.common,
        heads=tuple(described.heads(loaded, changed.alone() if options.alone else None)),
        forms=changed.forms(described),
        mean_output=changed.mean_output(),
        correlations=described.correlations(),
        memory=key_memory(plain.keys, _width(loaded), seed),
        stored=described.mean_stored("raw"),
        stored_centred=described.mean_stored("centred"),
        random_coherence=math.sqrt(2 / (math.pi * _width(loaded))),
        bias_left_out=plain.biased,
        control=_control(loaded, effects, described, seed) if options.control else None,
    )


def _width(loaded: LoadedModel) -> int:
    return next(site.d_head for site in loaded.sites if site.n_heads)


def _control(
    loaded: LoadedModel, effects: Effects, described: Described, seed: int
) -> LinearControl:
    """Measure random weights; of further draws only what their keys give back."""
    draws = []
    for draw in range(CONTROLS):
        twin = random_twin(loaded, seed + draw)
        plain = _Plain(twin, effects.lines, keys_only=draw > 0)
        plain.run(effects.batches)
        draws.append(plain.sums)
        if draw == 0:
            found = Described.of(twin, plain.sums, seed)
    return LinearControl(
        seed=seed,
        coherence=found.mean_coherence("raw"),
        coherence_centred=found.mean_coherence("centred"),
        means=found.means(),
        correlations=found.correlations(),
        stored=found.mean_stored("raw"),
        over_random=described.over_random(draws, seed),
        draws=len(draws),
    )


class _Plain:
    """One pass of the model as it is, with every form measured beside its heads."""

    def __init__(self, loaded: LoadedModel, lines: int, *, keys_only: bool = False) -> None:
        self._loaded = loaded
        self.sums, self.keys = LinearSums(lines, keys_only), OwnKeys()
        #: Whether the model adds anything to its scores.
        self.biased = False

    def run(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Read every batch once."""
        first = 0
        for ids, real in batches:
            self._first, self._real = first, real
            last_states(self._loaded, [(ids, real)], self._attend, lambda hidden, _: hidden[:0])
            first += len(ids)

    def _attend(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if q.shape[1]:
            own = default_scale(q.shape[-1]) if scale is None else scale
            parts = (self._real, q, k, v, z)
            self.sums.update(site.row, self._first, *parts, scale=own, mask=mask)
            self.keys.update(site.row, self._real, k)
            self.biased |= _adds(mask)
        return z


def _adds(mask: Mask) -> bool:
    """Whether a mask does more than to hide keys."""
    if mask is None or mask.dtype == torch.bool:
        return False
    return bool((mask[visible(mask)] != 0).any())


class _Changed:
    """The model with linear forms in place of attention."""

    def __init__(
        self, loaded: LoadedModel, effects: Effects, sums: LinearSums, progress: Progress
    ) -> None:
        self._loaded, self._effects, self._progress = loaded, effects, progress
        self._scales = {row: site.scales() for row, site in sums.by_row.items()}
        self._means = {row: site.mean(sums.tokens) for row, site in sums.by_row.items()}

    def alone(self) -> list[Effect]:
        """Make each head alone linear, at its best scale."""
        formula = self._formula(ALONE, self._scales)
        places = [(site.row, head) for site in self._loaded.sites for head in range(site.n_heads)]
        versions = [Exchanged(formula, {row: (head,)}) for row, head in places]
        return self._effects.measure(versions, self._progress, "linear, head by head")

    def forms(self, described: Described) -> tuple[LinearForm, ...]:
        """Put every head into one form after the other, as it is and at its best scale."""
        versions = [
            Exchanged(self._formula(form, scales))
            for form in EVERY
            for scales in (None, self._scales)
        ]
        found = iter(self._effects.measure(versions, self._progress, "all heads"))
        return tuple(LinearForm(mean, next(found), next(found)) for mean in described.means())

    def mean_output(self) -> Effect:
        """Let every head put out its mean, whatever it reads."""

        def constant(inputs: HeadInputs) -> Tensor:
            mean = self._chosen(self._means, inputs)  # (heads, d_head)
            return mean[:, None].expand(*inputs.q.shape[:-1], -1).to(inputs.v)

        return self._effects.measure([Exchanged(constant)], self._progress, "mean output")[0]

    def _formula(self, form: str, scales: Mapping[int, Array] | None) -> Formula:
        def attend(inputs: HeadInputs) -> Tensor:
            parts = (inputs.q, inputs.k, inputs.v)
            y = linear_attention(form, *parts, scale=inputs.scale, mask=inputs.mask)
            if scales is None:
                return y
            return y * self._chosen(scales, inputs)[:, EVERY.index(form), None, None].to(y)

        return attend

    def _chosen(self, by_row: Mapping[int, Array], inputs: HeadInputs) -> Tensor:
        return torch.from_numpy(by_row[inputs.site.row][np.array(inputs.heads)])
