"""``headscope linear``: the same layers without their softmax, and with other feature maps.

The model runs three times: as it is, while every head is watched (:class:`Observed`); with every
linear form in all heads; and with random weights, as a control. ``Effects``, from
:mod:`headscope.session.exchanged_heads`, has the text in batches and runs the model over it. A
``Formula`` computes what heads put out from their ``HeadInputs``: q, k, v, mask and scale.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from headscope.analyses.linear import LinearOptions
from headscope.analyses.linear.forms import FORMS_AND_EVEN, linear_attention
from headscope.analyses.linear.measure import LinearSums
from headscope.analyses.linear.resamples import Resamples
from headscope.analyses.linear.result import LinearControl, LinearForm, LinearResult
from headscope.analyses.linear.stored_keys import key_memory
from headscope.core.accumulator import Array
from headscope.core.activations import visible
from headscope.models.run.formulas import ExchangedHeads, Formula, HeadInputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.session.exchanged_heads import Effects, open_for_exchange
from headscope.session.opening import Model

CONTROLS = 5  # How often random weights are drawn.
MOST_KEYS = 4096  # Tokens, from the beginning of the text, under whose keys values are stored.


def run(model: Model, options: LinearOptions) -> LinearResult:
    """Take the softmax out of attention, and measure what each head and the model lose."""
    # Open, and prove that our attention is the model's.
    opened = open_for_exchange(model, options, "linear")
    loaded = opened.loaded
    effects = opened.effects

    # Observe the model as it is, with every form measured on the way.
    observed = Observed(loaded, effects)
    effects.observe(observed.see)
    sums = observed.sums
    resamples = Resamples(sums, options.seed)
    memory = tuple(key_memory(observed.first_keys(), observed.d_head))
    observed.forget_keys()
    softcap = next((site.softcap for site in loaded.sites if site.softcap is not None), None)

    # Run it with every form in all heads, and with constant outputs.
    scales = sums.scales()
    versions = []
    for i, form in enumerate(FORMS_AND_EVEN):
        versions.append(ExchangedHeads(_linear_formula(form, sums, scales[:, i])))
    versions.append(ExchangedHeads(_constant_formula(sums)))
    *form_effects, mean_output = effects.measure(versions, options.tell, "all heads")
    forms = []
    for mean_error, effect in zip(resamples.form_errors(), form_effects, strict=True):
        forms.append(LinearForm(mean_error, effect))

    # Describe heads before the control, which may take the model's place in memory: not that of a
    # model that the caller holds.
    heads = tuple(resamples.heads(loaded))
    control = None
    if options.control:
        may_overwrite = isinstance(model, str | Path)
        control = random_control(
            loaded, effects, resamples, options.seed, may_overwrite=may_overwrite
        )
    return LinearResult(
        **opened.common,
        heads=heads,
        forms=tuple(forms),
        mean_output=mean_output,
        correlations=tuple(resamples.correlations()),
        memory=memory,
        stored=resamples.stored_keys(),
        random_coherence=math.sqrt(2 / (math.pi * observed.d_head)),
        bias_left_out=observed.biased,
        control=control,
        softcap=softcap,
    )


class Observed:
    """What is seen of a model while it runs unchanged: sums of every head, and its first keys."""

    def __init__(self, loaded: LoadedModel, effects: Effects) -> None:
        self._masks = [mask for _, mask in effects.batches]
        self._n_heads = heads_by_row(loaded)
        self.d_head = loaded.sites[min(self._n_heads)].weights().d_head
        #: Errors of every form, coherence, entropy.
        self.sums = LinearSums(self._n_heads, self._masks, width=width_of_z(loaded))
        #: Whether the model adds to its scores what no linear form can.
        self.biased = False
        #: The keys of the text's first tokens, (tokens, heads, d_head), by batch and row of site.
        self._keys: dict[tuple[int, int], Tensor] = {}
        #: How many keys of each batch are stored, at most: what is left of MOST_KEYS.
        self._keys_to_store = []
        n_to_store = MOST_KEYS
        for mask in self._masks:
            self._keys_to_store.append(n_to_store)
            n_to_store = max(n_to_store - int(mask.sum()), 0)

    def see(self, batch: int, inputs: HeadInputs, z: Tensor) -> None:
        """Note what the heads of a site attend with in a batch, by its number, and their z."""
        self.sums.update(batch, inputs, z)
        n_keys = self._keys_to_store[batch]
        if n_keys > 0:
            real = self._masks[batch].bool()  # [batch, pos]
            keys_by_token = inputs.k.transpose(1, 2)  # [batch, pos, heads, d_head]
            self._keys[batch, inputs.site.row] = keys_by_token[real][:n_keys].cpu()
        mask = inputs.mask
        if mask is not None and mask.dtype != torch.bool:
            self.biased |= bool((mask[visible(mask)] != 0).any())

    def first_keys(self) -> list[Tensor]:
        """Return every site's first keys as they follow in the text, (tokens, heads, d_head)."""
        keys_by_site = []
        for site_row in self._n_heads:
            keys_by_batch = [
                self._keys[batch, row] for batch, row in sorted(self._keys) if row == site_row
            ]
            keys_by_site.append(torch.cat(keys_by_batch))
        return keys_by_site

    def forget_keys(self) -> None:
        """Free the memory of the keys."""
        self._keys.clear()


def heads_by_row(loaded: LoadedModel) -> dict[int, int]:
    """Return the number of heads of every site that has any, by its row."""
    return {site.row: site.n_heads for site in loaded.sites if site.n_heads}


def width_of_z(loaded: LoadedModel) -> int:
    """Return how many numbers a head puts out, the same in all sites."""
    first_row = min(heads_by_row(loaded))
    return loaded.sites[first_row].weights().W_V.shape[-1]


def _linear_formula(form: str, sums: LinearSums, scales: Array) -> Formula:
    """Attend in a linear form, each head times its own best scale; ``scales`` (heads,)."""

    def attend(inputs: HeadInputs) -> Tensor:
        y = linear_attention(
            form, inputs.q, inputs.k, inputs.v, scale=inputs.scale, mask=inputs.mask
        )
        best = torch.from_numpy(scales[sums.indices(inputs)])  # (heads,)
        # The sum may be too large for half precision before it is scaled.
        return (y * best[:, None, None].to(y)).to(inputs.v)

    return attend


def _constant_formula(sums: LinearSums) -> Formula:
    """Put out each head's mean z, whatever it reads."""
    means = sums.mean_z()

    def attend(inputs: HeadInputs) -> Tensor:
        mean = torch.from_numpy(means[sums.indices(inputs)])  # (heads, d_head)
        return mean[:, None].expand(*inputs.q.shape[:-1], -1).to(inputs.v)

    return attend


def random_control(
    loaded: LoadedModel,
    effects: Effects,
    resamples: Resamples,
    seed: int,
    *,
    may_overwrite: bool,
) -> LinearControl:
    """Measure the same architecture with random weights, drawn several times, on the same text.

    All draws but the first serve only the errors of reading back values. With ``may_overwrite``
    each draw takes the place of the model before it in memory, that of ``loaded`` too.
    """
    masks = [mask for _, mask in effects.batches]
    n_heads = heads_by_row(loaded)
    width = width_of_z(loaded)
    draws = []
    for draw in range(CONTROLS):
        twin = random_twin(loaded, seed + draw, instead=may_overwrite)
        keys_only = draw > 0
        sums = LinearSums(n_heads, masks, None if keys_only else width)
        effects.observe(sums.update, twin)
        draws.append(sums)
        if may_overwrite:
            loaded = twin
        del twin
    random = Resamples(draws[0], seed)
    return LinearControl(
        seed=seed,
        coherence=random.mean_number("coherence"),
        coherence_centred=random.mean_number("coherence_centred"),
        correlations=tuple(random.correlations()),
        stored=random.stored_keys(),
        over_random=resamples.over_random(draws),
        draws=len(draws),
    )
