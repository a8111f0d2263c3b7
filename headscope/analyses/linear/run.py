"""``headscope linear``: the same layers without their softmax, and with other feature maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.linear.measure import (
    EVERY,
    FITS,
    KINDS,
    STORED,
    LinearSums,
    correlate,
    linear_attention,
)
from headscope.analyses.linear.memory import key_memory
from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.linear.result import (
    HeadCorrelation,
    HeadLinear,
    LinearControl,
    LinearError,
    LinearForm,
    LinearResult,
    StoredKeys,
)
from headscope.attention import Mask, default_scale, stream_attention
from headscope.core.accumulator import Array
from headscope.core.activations import visible
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import Exchanged, Formula, HeadInputs, intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.models.surgery.copies import random_twin
from headscope.session.exchanged_heads import Effects, Opened
from headscope.session.opening import Model
from headscope.stats.effects import Effect
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import resampled
from headscope.stats.statistics import finite, t_half_width

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
    ("coherence", "linear", "fitted", ""),
    ("coherence", "first-order", "scaled", ""),
    ("coherence", "elu-normalised", "scaled", ""),
)


def run(model: Model, options: LinearOptions) -> LinearResult:
    """Take the softmax out of attention, and measure what each head and the model lose."""
    opened = Opened.of(model, options, "linear")
    loaded, effects, tell = opened.loaded, opened.effects, options.tell
    width = next(site.d_head for site in loaded.sites if site.n_heads)
    sums, keys, biased = _read(loaded, effects)
    resamples = Resamples(loaded, sums, options.seed)
    scales = {row: site.scales() for row, site in sums.by_row.items()}
    means = {row: site.mean(sums.tokens) for row, site in sums.by_row.items()}

    def constant(inputs: HeadInputs) -> Tensor:
        mean = _of_heads(means, inputs)  # (heads, d_head)
        return mean[:, None].expand(*inputs.q.shape[:-1], -1).to(inputs.v)

    versions = [Exchanged(_formula(form, scales)) for form in EVERY]
    versions.append(Exchanged(constant))
    *whole, mean_output = effects.measure(versions, tell, "all heads")
    alone = None
    if options.alone:
        formula = _formula(ALONE, scales)
        positions = [(site.row, head) for site in loaded.sites for head in range(site.n_heads)]
        versions = [Exchanged(formula, {row: (head,)}) for row, head in positions]
        alone = effects.measure(versions, tell, "linear, head by head")
    pairs = zip(resamples.means(), whole, strict=True)

    return LinearResult(
        **opened.common,
        heads=tuple(resamples.heads(loaded, alone)),
        forms=tuple(LinearForm(*pair) for pair in pairs),
        mean_output=mean_output,
        correlations=tuple(resamples.correlations()),
        memory=tuple(key_memory(keys, width, options.seed)),
        stored=resamples.mean_stored(),
        random_coherence=math.sqrt(2 / (math.pi * width)),
        bias_left_out=biased,
        control=_control(loaded, effects, resamples, options.seed) if options.control else None,
    )


def _read(
    loaded: LoadedModel, effects: Effects, *, keys_only: bool = False
) -> tuple[LinearSums, dict[int, list[Tensor]], bool]:
    """Run the model as it is, and measure every form on the way.

    Also return every site's first keys, in parts (tokens, heads, d_head), and whether the model
    adds anything to its scores but masks.
    """
    sums, keys, biased = LinearSums(effects.lines, keys_only), dict[int, list[Tensor]](), False
    first = np.cumsum([0, *(len(ids) for ids, _ in effects.batches)]).tolist()

    @contextmanager
    def reading(own: LoadedModel) -> Iterator[Callable[[int], tuple[dict[int, Tensor], bool]]]:
        def read(b: int) -> tuple[dict[int, Tensor], bool]:
            (ids, real), of_batch, added = effects.batches[b], dict[int, Tensor](), False

            def attend(
                site: AttentionSite,
                q: Tensor,
                k: Tensor,
                v: Tensor,
                mask: Mask,
                scale: float | None,
            ) -> Tensor:
                nonlocal added
                z = stream_attention(q, k, v, mask=mask, scale=scale)
                if q.shape[1]:
                    size = default_scale(q.shape[-1]) if scale is None else scale
                    sums.update(site.row, first[b], real, q, k, v, z, scale=size, mask=mask)
                    of_batch[site.row] = k.transpose(1, 2)[real.bool()].cpu()
                    if mask is not None and mask.dtype != torch.bool:
                        added |= bool((mask[visible(mask)] != 0).any())
                return z

            with intervene(own, attention=attend) as router:
                router.run(partial(own.forward, ids, real))
            return of_batch, added

        with prepared(own.network):
            yield read

    for of_batch, added in side_by_side(loaded, range(len(effects.batches)), reading):
        biased |= added
        for row, part in of_batch.items():
            parts = keys.setdefault(row, [])
            if (room := KEPT - sum(map(len, parts))) > 0:
                parts.append(part[:room].double())
    return sums, keys, biased


def _formula(form: str, scales: Mapping[int, Array]) -> Formula:
    """Return the formula of heads in a linear form, each times its own best scale."""

    def attend(inputs: HeadInputs) -> Tensor:
        parts = (inputs.q, inputs.k, inputs.v)
        y = linear_attention(form, *parts, scale=inputs.scale, mask=inputs.mask)
        return y * _of_heads(scales, inputs)[:, EVERY.index(form), None, None].to(y)

    return attend


def _of_heads(by_row: Mapping[int, Array], inputs: HeadInputs) -> Tensor:
    return torch.from_numpy(by_row[inputs.site.row][np.array(inputs.heads)])


def _control(
    loaded: LoadedModel, effects: Effects, resamples: Resamples, seed: int
) -> LinearControl:
    """Measure random weights; for all draws but the first only what their keys read back."""
    draws: list[LinearSums] = []
    for draw in range(CONTROLS):
        twin = random_twin(loaded, seed + draw)
        draws.append(_read(twin, effects, keys_only=draw > 0)[0])
        if draw == 0:
            random = Resamples(twin, draws[0], seed)
    return LinearControl(
        seed=seed,
        coherence=random.mean_coherence("raw"),
        coherence_centred=random.mean_coherence("centred"),
        correlations=tuple(random.correlations()),
        stored=random.mean_stored(),
        over_random=resamples.over_random(draws),
        draws=len(draws),
    )


class Resamples:
    """The numbers of every head, in the order of the sites, and their bootstrap over sentences.

    The first axis of every array is 1 + resamples: the text itself comes first.
    """

    def __init__(self, loaded: LoadedModel, sums: LinearSums, seed: int) -> None:
        # The "metric" here is the identity: it returns the counts of each bootstrap resample.
        n = sums.sentences
        drawn = resampled(lambda _, counts: counts, {"x": np.zeros(n)}, seed=seed)
        self._counts = counts = np.concatenate([np.ones((1, n)), drawn])
        sites = [site for site in loaded.sites if site.n_heads]
        of_sites = [sums.by_row[site.row] for site in sites]
        errors = [site.errors(sums.tokens, counts) for site in of_sites]
        #: By fit, (1 + resamples, heads, forms).
        self.errors = {fit: np.concatenate([e[fit] for e in errors], axis=1) for fit in FITS}
        #: Coherence (.., heads, kinds), errors of reading back (.., heads, readouts) and entropy
        #: (.., heads).
        self.keys, self.stored, self.entropy = (
            np.concatenate([_mean(counts, getattr(site, name)) for site in of_sites], axis=1)
            for name in ("coherence", "stored", "entropy")
        )
        self.scales = np.concatenate([site.scales() for site in of_sites])  # (heads, forms)
        self.rows = np.repeat([site.row for site in sites], [site.n_heads for site in sites])

    def estimate(self, values: Array) -> Estimate:
        """Make a number of the text's own value and those of its resamples, (1 + resamples,)."""
        own = finite(float(values[0]))
        several = self._counts.shape[1] > 1  # one sentence says nothing about the next
        if own is None or not several or not np.isfinite(values[1:]).any():
            return Estimate(own)
        low, high = np.nanquantile(values[1:], (0.025, 0.975)).tolist()
        return Estimate(own, finite(low), finite(high))

    def heads(self, loaded: LoadedModel, alone: list[Effect] | None) -> Iterator[HeadLinear]:
        """Describe every head."""
        every = [(site, head) for site in loaded.sites for head in site.head_ids]
        for i, (site, head) in enumerate(every):
            yield HeadLinear(
                site.layer,
                head,
                errors=self._errors([self.errors[fit][:, i] for fit in FITS], self.scales[i]),
                coherence=self.estimate(self.keys[:, i, 0]),
                coherence_centred=self.estimate(self.keys[:, i, 1]),
                entropy=self.estimate(self.entropy[:, i]),
                stored=self._stored(self.stored[:, i]),
                alone=None if alone is None else alone[i],
                stack=site.stack,
            )

    def means(self) -> tuple[LinearError, ...]:
        """Describe every form, mean over heads."""
        unscaled = [math.nan] * len(EVERY)
        return self._errors([_over_heads(self.errors[fit]) for fit in FITS], unscaled)

    def mean_stored(self) -> StoredKeys:
        """Describe what is read back by own keys, mean over heads."""
        return self._stored(_over_heads(self.stored))

    def mean_coherence(self, kind: str) -> float | None:
        """Return the coherence, mean over heads."""
        return finite(float(_over_heads(self.keys[:1, :, KINDS.index(kind)])[0]))

    def correlations(self) -> Iterator[HeadCorrelation]:
        """Correlate what heads' keys are like with what their linear form errs by."""
        numbers = {
            "coherence": self.keys[0, :, 0],
            "coherence_centred": self.keys[0, :, 1],
            "entropy": self.entropy[0],
        }
        for number, form, fit, given in PAIRS:
            sides = (numbers[number], self.errors[fit][0, :, EVERY.index(form)], self.rows)
            pearson, spearman = (
                correlate(*sides, ranks=ranks, given=numbers.get(given)) for ranks in (False, True)
            )
            yield HeadCorrelation(
                number=number,
                form=form,
                fit=fit,
                given=given,
                heads=len(self.rows),
                pearson=pearson.estimate,
                spearman=spearman.estimate,
                p=spearman.p,
                layers=spearman.layers,
            )

    def over_random(self, random: Sequence[LinearSums]) -> Estimate:
        """Return by how much more than with random weights the linear sum errs beyond a softmax.

        The bootstrap interval over sentences is widened by how far another draw of random weights
        may lie from the mean of these (Student's t), so that random weights would lie inside.
        """

        def worse(stored: Array) -> Array:  # (1 + resamples, heads, readouts)
            return _over_heads(stored[..., 0] - stored[..., STORED.index("softmax")])

        draws = []
        for sums in random:
            by_site = [_mean(self._counts, site.stored) for site in sums.by_row.values()]
            draws.append(worse(np.concatenate(by_site, axis=1)))
        theirs = np.stack(draws)
        gap = self.estimate(worse(self.stored) - theirs.mean(0))
        n = len(random)
        if gap.value is None or gap.low is None or gap.high is None or n < 2:
            return Estimate(gap.value)
        error = float(theirs[:, 0].std(ddof=1)) * np.sqrt(1 + 1 / n)
        drawn = float(t_half_width(error, np.array(n)))
        low, high = (float(np.hypot(gap.value - end, drawn)) for end in (gap.low, gap.high))
        return Estimate(gap.value, gap.value - low, gap.value + high)

    def _errors(self, by_fit: Sequence[Array], scales: Iterable[float]) -> tuple[LinearError, ...]:
        """Describe every form; ``by_fit`` are (1 + resamples, forms)."""
        rows = []
        for i, (form, scale) in enumerate(zip(EVERY, scales, strict=True)):
            error, scaled, fitted = (self.estimate(errors[:, i]) for errors in by_fit)
            rows.append(LinearError(form, error, scaled, fitted, finite(scale)))
        return tuple(rows)

    def _stored(self, values: Array) -> StoredKeys:
        """Describe errors of reading back, (1 + resamples, readouts)."""
        by_name = {name: values[:, i] for i, name in enumerate(STORED)}
        return StoredKeys(
            linear=self.estimate(by_name["scaled-sum"]),
            least_squares=self.estimate(by_name["least-squares"]),
            softmax=self.estimate(by_name["softmax"]),
            softmax_own=self.estimate(by_name["softmax-own"]),
            difference=self.estimate(by_name["scaled-sum"] - by_name["softmax"]),
            difference_own=self.estimate(by_name["scaled-sum"] - by_name["softmax-own"]),
        )


def _mean(counts: Array, values: Array) -> Array:
    """Average (sentences, ...) over sentences for each resample; NaN is left out."""
    there = np.isfinite(values)
    flat = np.where(there, values, 0.0).reshape(len(values), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (counts @ flat) / (counts @ there.reshape(len(values), -1))
    return np.asarray(mean.reshape(-1, *values.shape[1:]))


def _over_heads(values: Array) -> Array:
    """Average (1 + resamples, heads, ...) over the heads that have a number."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(there, values, 0.0).sum(1) / there.sum(1))
