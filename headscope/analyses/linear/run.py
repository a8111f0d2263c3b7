"""``headscope linear``: the same layers without their softmax, and with other feature maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.linear import LinearOptions
from headscope.analyses.linear.measure import (
    AVERAGES,
    EVERY,
    FITS,
    STORED,
    LinearSums,
    correlate,
    key_memory,
    linear_attention,
)
from headscope.analyses.linear.result import (
    HeadCorrelation,
    HeadLinear,
    LinearControl,
    LinearError,
    LinearForm,
    LinearResult,
    StoredKeys,
)
from headscope.core.accumulator import Array
from headscope.core.activations import visible
from headscope.models.run.intervene import Exchanged, Formula, HeadInputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.session.exchanged_heads import Opened
from headscope.session.opening import Model
from headscope.stats.effects import Effect
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import resampled
from headscope.stats.paired_change import resampled_estimate
from headscope.stats.statistics import FEWEST_DRAWS, finite, jackknife, ratio, t_half_width

CONTROLS = 5  # Draws of random weights under whose keys values are stored and read back.
ALONE = "linear"  # The form that is put into each head alone.
KEPT = 4096  # Keys of each head of the model that values are stored under.
#: What each correlation is of: the number, the form and fit of the error, what is held constant.
PAIRS = (
    ("coherence", "linear", "scaled", ""),
    ("coherence_centred", "linear", "scaled", ""),
    ("entropy", "linear", "scaled", ""),
    ("coherence", "linear", "scaled", "entropy"),
    ("coherence", "linear", "error", ""),
    ("coherence", "first-order", "scaled", ""),
    ("coherence", "elu-normalised", "scaled", ""),
)


def run(model: Model, options: LinearOptions) -> LinearResult:
    """Take the softmax out of attention, and measure what each head and the model lose."""
    opened = Opened.of(model, options, "linear")
    loaded = opened.loaded
    effects = opened.effects
    seed = options.seed
    tell = options.tell
    n_heads = {site.row: site.n_heads for site in loaded.sites if site.n_heads}
    masks = [mask for _, mask in effects.batches]

    # The model as it is, with every form measured on the way.
    weights = loaded.sites[min(n_heads)].weights()
    d_head = weights.d_head
    width = weights.W_V.shape[-1]
    sums = LinearSums(n_heads, masks, width)
    biased = False
    #: The first keys of every site, (tokens, heads, d_head), by batch and row.
    keys: dict[tuple[int, int], Tensor] = {}
    room = [KEPT - before for before in np.cumsum([0, *(int(m.sum()) for m in masks)]).tolist()]

    def see(batch: int, inputs: HeadInputs, z: Tensor) -> None:
        nonlocal biased
        sums.update(batch, inputs, z)
        if room[batch] > 0:
            first_keys = inputs.k.transpose(1, 2)[masks[batch].bool()][: room[batch]]
            keys[batch, inputs.site.row] = first_keys.cpu()
        if inputs.mask is not None and inputs.mask.dtype != torch.bool:
            biased |= bool((inputs.mask[visible(inputs.mask)] != 0).any())

    effects.observe(see)
    by_site = ([keys[key] for key in sorted(keys) if key[1] == row] for row in n_heads)
    memory = tuple(key_memory([torch.cat(parts) for parts in by_site], d_head))
    keys.clear()
    resamples = Resamples(sums, seed)
    scales = sums.scales()
    means = sums.mean()

    def in_form(form: str) -> Formula:  # each head times its own best scale
        def attend(inputs: HeadInputs) -> Tensor:
            parts = (inputs.q, inputs.k, inputs.v)
            y = linear_attention(form, *parts, scale=inputs.scale, mask=inputs.mask)
            best = scales[sums.numbers(inputs), EVERY.index(form)]
            # The sum may be too large for half precision before it is scaled.
            return (y * torch.from_numpy(best)[:, None, None].to(y)).to(inputs.v)

        return attend

    def constant(inputs: HeadInputs) -> Tensor:
        mean = torch.from_numpy(means[sums.numbers(inputs)])  # (heads, d_head)
        return mean[:, None].expand(*inputs.q.shape[:-1], -1).to(inputs.v)

    versions = [*(Exchanged(in_form(form)) for form in EVERY), Exchanged(constant)]
    *form_effects, mean_output = effects.measure(versions, tell, "all heads")
    alone: list[Effect] = []
    if options.alone:
        formula = in_form(ALONE)
        versions = [Exchanged(formula, {row: (i,)}) for row, n in n_heads.items() for i in range(n)]
        alone = effects.measure(versions, tell, "linear, head by head")
    heads = tuple(resamples.heads(loaded, alone))

    control = None
    if options.control:
        draws = []
        for draw in range(CONTROLS):
            twin = random_twin(loaded, seed + draw, instead=isinstance(model, str | Path))
            # All draws but the first serve only the errors of reading back values.
            draws.append(LinearSums(n_heads, masks, 0 if draw else width))
            effects.observe(draws[-1].update, twin)
            if isinstance(model, str | Path):
                loaded = twin  # one model at a time is in memory
            del twin
        random = Resamples(draws[0], seed)
        control = LinearControl(
            seed=seed,
            coherence=random.mean_number("coherence"),
            coherence_centred=random.mean_number("coherence_centred"),
            correlations=tuple(random.correlations()),
            stored=random.stored_keys(),
            over_random=resamples.over_random(draws),
            draws=len(draws),
        )
    return LinearResult(
        **opened.common,
        heads=heads,
        forms=tuple(map(LinearForm, resamples.form_errors(), form_effects)),
        mean_output=mean_output,
        correlations=tuple(resamples.correlations()),
        memory=memory,
        stored=resamples.stored_keys(),
        random_coherence=math.sqrt(2 / (math.pi * d_head)),
        bias_left_out=biased,
        control=control,
    )


class Resamples:
    """The numbers of every head, with what other sentences would have given.

    Means over sentences have a bootstrap: the first axis of their arrays is 1 + resamples, the text
    itself first. Errors, whose scales and means are fitted to the sentences, have a jackknife.
    """

    def __init__(self, sums: LinearSums, seed: int) -> None:
        # The "metric" here is the identity: it returns the counts of each bootstrap resample.
        n = len(sums.tokens)
        drawn = resampled(lambda _, counts: counts, {"x": np.zeros(n)}, seed=seed)
        self._counts = counts = np.concatenate([np.ones((1, n)), drawn])
        self._lines = int((sums.tokens > 1).sum())
        #: By fit, (heads, forms) and (sentences, heads, forms): without each sentence.
        self.errors = sums.errors()
        names = ("coherence", "coherence_centred", "entropy")
        #: By name, (1 + resamples, heads); errors of reading back (.., heads, readouts).
        self.numbers = {name: _mean(counts, getattr(sums, name)) for name in names}
        self.stored = _mean(counts, sums.stored)
        self.scales = sums.scales()
        self.rows = sums.rows

    def estimate(self, values: Array) -> Estimate:
        """Make an estimate from the text's value and those of its resamples, (1 + resamples,)."""
        value = finite(float(values[0]))
        return UNKNOWN if value is None else resampled_estimate(value, values[1:], self._lines)

    def heads(self, loaded: LoadedModel, alone: Sequence[Effect]) -> Iterator[HeadLinear]:
        """Describe every head; ``alone`` is empty where they were not changed one by one."""
        every = [(site, head) for site in loaded.sites for head in site.head_ids]
        for i, (site, head) in enumerate(every):
            numbers = {name: self.estimate(of[:, i]) for name, of in self.numbers.items()}
            yield HeadLinear(
                site.layer,
                head,
                **numbers,
                errors=self.form_errors(i),
                stored=self.stored_keys(i),
                alone=alone[i] if alone else None,
                stack=site.stack,
            )

    def form_errors(self, head: int | None = None) -> tuple[LinearError, ...]:
        """Describe every form, of one head or as the mean of all."""
        scales = [math.nan] * len(EVERY) if head is None else self.scales[head].tolist()
        error, scaled = (self._estimates(fit, head) for fit in FITS)
        rows = zip(EVERY, error, scaled, scales, strict=True)
        return tuple(LinearError(form, e, best, finite(scale)) for form, e, best, scale in rows)

    def _estimates(self, fit: str, head: int | None) -> Iterator[Estimate]:
        """Yield the error of every form, of one head or as the mean of all.

        Only forms whose output is an average have an interval (:data:`AVERAGES`).
        """
        whole, without_each = self.errors[fit]
        values = _one_or_mean(whole, head, axis=0)
        low, high = jackknife(values, _one_or_mean(without_each, head, axis=1))
        for i, form in enumerate(EVERY):
            value = finite(float(values[i]))
            if form in AVERAGES:
                yield Estimate(value, finite(float(low[i])), finite(float(high[i])))
            else:
                yield Estimate(value)

    def stored_keys(self, head: int | None = None) -> StoredKeys:
        """Describe the errors of reading back, of one head or as the mean of all."""
        linear, least_squares, softmax, softmax_own = _one_or_mean(self.stored, head, axis=1).T
        return StoredKeys(
            linear=self.estimate(linear),
            least_squares=self.estimate(least_squares),
            softmax=self.estimate(softmax),
            softmax_own=self.estimate(softmax_own),
            difference=self.estimate(linear - softmax),
            difference_own=self.estimate(linear - softmax_own),
        )

    def mean_number(self, name: str) -> float | None:
        """Return one of the numbers, mean over heads."""
        return finite(float(_one_or_mean(self.numbers[name][0], axis=0)))

    def correlations(self) -> Iterator[HeadCorrelation]:
        """Correlate properties of heads' keys with the errors of their linear forms."""
        numbers = {name: values[0] for name, values in self.numbers.items()}
        for number, form, fit, fixed in PAIRS:
            sides = (numbers[number], self.errors[fit][0][:, EVERY.index(form)], self.rows)
            pearson, spearman = (
                correlate(*sides, ranks=ranks, fixed=numbers.get(fixed)) for ranks in (False, True)
            )
            yield HeadCorrelation(
                number=number,
                form=form,
                fit=fit,
                given=fixed,
                heads=len(self.rows),
                pearson=pearson.estimate,
                spearman=spearman.estimate,
                p=spearman.p,
                layers=spearman.layers,
            )

    def over_random(self, random: Sequence[LinearSums]) -> Estimate:
        """Return how much more the linear sum errs beyond a softmax than with random weights.

        The bootstrap interval over sentences is widened by how far another draw of random weights
        may lie from the mean of these (Student's t), so that random weights would lie inside.
        """

        def worse(stored: Array) -> Array:  # (1 + resamples, heads, readouts)
            return _one_or_mean(stored[..., 0] - stored[..., STORED.index("softmax")], axis=1)

        theirs = np.stack([worse(_mean(self._counts, sums.stored)) for sums in random])
        gap = self.estimate(worse(self.stored) - theirs.mean(0))
        n = len(random)
        if gap.value is None or gap.low is None or gap.high is None:
            return Estimate(gap.value)
        error = float(theirs[:, 0].std(ddof=1)) * np.sqrt(1 + 1 / n)
        drawn = float(t_half_width(error, n, FEWEST_DRAWS))
        low, high = (float(np.hypot(gap.value - end, drawn)) for end in (gap.low, gap.high))
        return Estimate(gap.value, gap.value - low, gap.value + high)


def _mean(counts: Array, values: Array) -> Array:
    """Average (sentences, ...) over sentences for each resample; NaN is left out."""
    there = np.isfinite(values)
    flat = np.where(there, values, 0.0).reshape(len(values), -1)
    mean = ratio(counts @ flat, counts @ there.reshape(len(values), -1))
    return mean.reshape(-1, *values.shape[1:])


def _one_or_mean(values: Array, head: int | None = None, *, axis: int) -> Array:
    """Take one head along an axis, or the mean of the heads that have a number."""
    if head is not None:
        return np.asarray(values.take(head, axis))
    there = np.isfinite(values)
    return ratio(np.where(there, values, 0.0).sum(axis), there.sum(axis))
