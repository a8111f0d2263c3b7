"""``headscope linear``: the same layers without their softmax, and with other feature maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.linear.describing import Described
from headscope.analyses.linear.measure import (
    EVERY,
    READOUTS,
    LinearSums,
    closed_form,
    linear_attention,
    readout_errors,
    simulate,
    unit_keys,
)
from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.linear.result import KeyMemory, LinearControl, LinearForm, LinearResult
from headscope.attention import Mask, default_scale, stream_attention
from headscope.core.accumulator import Array
from headscope.core.activations import visible
from headscope.models.copies import random_twin
from headscope.models.intervene import Exchanged, Formula, HeadInputs
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.session.exchanged_heads import Effects, Opened, last_states
from headscope.session.opening import Model
from headscope.session.progress import Progress
from headscope.stats.effects import Effect
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import finite, t_half_width

CONTROLS = 5  # Draws of random weights that values are read back from the keys of.
ALONE = "linear"  # The form that is put into each head alone.


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


TIMES = (0.5, 1, 2, 4, 8)  # Numbers of keys, as multiples of their width.
DRAWS = 50  # Draws of random keys and values, stretches of the model's own keys.
STRETCHES = 4
KEPT = 4096  # Keys of the model that are kept, by head.


class OwnKeys:
    """The keys of every head at the real tokens of a text, as they follow, up to :data:`KEPT`."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Tensor]] = {}
        self._kept: dict[int, int] = {}

    def update(self, row: int, real: Tensor, k: Tensor) -> None:
        """Add the keys (batch, heads, pos, d_head) of one site, real where ``real`` says so."""
        found = k.transpose(1, 2)[real.bool()]  # (tokens, heads, d_head)
        room = KEPT - self._kept.get(row, 0)
        if room > 0:
            self._parts.setdefault(row, []).append(found[:room].cpu().double())
            self._kept[row] = self._kept.get(row, 0) + len(found[:room])

    def errors(self, times: float) -> Iterator[tuple[str, int, int, np.ndarray]]:
        """Yield (readout, N, d, mean over heads of each stretch) for N = times * d_head keys."""
        joined = [torch.cat(parts) for parts in self._parts.values()]
        joined = [keys for keys in joined if keys.shape[1]]
        if not joined:
            return
        width = joined[0].shape[-1]
        n = round(times * width)
        stretches = min(STRETCHES, len(joined[0]) // n) if n > 1 else 0
        if stretches == 0:
            return
        real = torch.ones(stretches, n, dtype=torch.bool)
        sums: dict[str, list[Tensor]] = {}
        for keys in joined:
            parts = keys[: stretches * n].view(stretches, n, *keys.shape[1:]).transpose(1, 2)
            unit, _ = unit_keys(parts, real, centred=False)
            for name, error in readout_errors(unit, real, width**0.5).items():
                sums.setdefault(name, []).append(error)
        for name, errors in sums.items():
            yield name, n, width, torch.cat(errors, dim=1).mean(1).numpy()


def key_memory(own: OwnKeys, width: int, seed: int) -> tuple[KeyMemory, ...]:
    """Measure every readout of random keys of this width, and of the model's own."""
    return (*_random(width, seed), *_of_model(own))


def _random(width: int, seed: int) -> Iterator[KeyMemory]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    for n in (round(times * width) for times in TIMES):
        if n < 2:
            continue
        drawn = [simulate(n, width, generator) for _ in range(DRAWS)]
        for readout in READOUTS:
            values = np.array([draw[readout] for draw in drawn])
            expected = closed_form(readout, n, width)
            sem = float(values.std(ddof=1) / np.sqrt(DRAWS))
            gap = None if expected is None else float(values.mean()) - expected
            # With N <= d keys nothing is missed but rounding, in every draw.
            sems = None if gap is None or sem < 1e-12 else gap / sem
            yield KeyMemory(
                kind="random",
                readout=readout,
                keys=n,
                width=width,
                error=_over(values),
                expected=expected,
                sems=sems,
                draws=DRAWS,
            )


def _of_model(own: OwnKeys) -> Iterator[KeyMemory]:
    for times in TIMES:
        for readout, n, width, values in own.errors(times):
            yield KeyMemory(
                kind="own",
                readout=readout,
                keys=n,
                width=width,
                error=_over(values),
                expected=closed_form(readout, n, width),
                sems=None,
                draws=len(values),
            )


def _over(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean with its t interval, unknown for a single value."""
    x = np.asarray(values, dtype=float)
    mean = float(x.mean())
    if len(x) < 2:
        return Estimate(mean)
    half = finite(float(t_half_width(x.std(ddof=1) / np.sqrt(len(x)), np.array(len(x)))))
    return Estimate(mean) if half is None else Estimate(mean, mean - half, mean + half)
