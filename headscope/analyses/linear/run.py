"""``headscope linear``: the same layers without their softmax, and with other feature maps."""

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
from headscope.session.exchanged_heads import Effects, Opened
from headscope.session.opening import Model

CONTROLS = 5  # How often random weights are drawn.
MOST_KEYS = 4096  # Tokens, from the first of the text, under whose keys values are stored.


def run(model: Model, options: LinearOptions) -> LinearResult:
    """Take the softmax out of attention, and measure what each head and the model lose."""
    # Open, and prove that our attention is the model's.
    opened = Opened.of(model, options, "linear")
    loaded = opened.loaded
    effects = opened.effects

    # Observe the model as it is, with every form measured on the way.
    observed = Observed(loaded, effects)
    effects.observe(observed.see)
    sums = observed.sums
    resamples = Resamples(sums, options.seed)
    memory = tuple(key_memory(observed.first_keys(), observed.d_head))
    observed.forget_keys()

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

    # Describe heads before the control, which may take the model's place in memory.
    heads = tuple(resamples.heads(loaded))
    control = None
    if options.control:
        one_in_memory = isinstance(model, str | Path)
        control = random_control(
            loaded, effects, resamples, options.seed, one_in_memory=one_in_memory
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
    )


class Observed:
    """What is seen of a model while it runs unchanged."""

    def __init__(self, loaded: LoadedModel, effects: Effects) -> None:
        self._masks = [mask for _, mask in effects.batches]
        n_heads = heads_by_row(loaded)
        self._rows = list(n_heads)
        weights = loaded.sites[self._rows[0]].weights()
        self.d_head = weights.d_head
        #: Errors of every form, coherence, entropy.
        self.sums = LinearSums(n_heads, self._masks, width=weights.W_V.shape[-1])
        #: Whether the model adds to its scores what no linear form can.
        self.biased = False
        #: The keys of the text's first tokens, (tokens, heads, d_head), by batch and row of site.
        self._keys: dict[tuple[int, int], Tensor] = {}
        #: How many keys of each batch are stored: up to MOST_KEYS of all batches; none below 0.
        self._keys_to_store = []
        missing = MOST_KEYS
        for mask in self._masks:
            self._keys_to_store.append(missing)
            missing -= int(mask.sum())

    def see(self, batch: int, inputs: HeadInputs, z: Tensor) -> None:
        """Note what the heads of a site attend with in a batch, and their z."""
        self.sums.update(batch, inputs, z)
        n_keys = self._keys_to_store[batch]
        if n_keys > 0:
            keys = inputs.k.transpose(1, 2)[self._masks[batch].bool()]  # (tokens, heads, d_head)
            self._keys[batch, inputs.site.row] = keys[:n_keys].cpu()
        mask = inputs.mask
        if mask is not None and mask.dtype != torch.bool:
            self.biased |= bool((mask[visible(mask)] != 0).any())

    def first_keys(self) -> list[Tensor]:
        """Return every site's first keys as they follow in the text, (tokens, heads, d_head)."""
        keys = []
        for row in self._rows:
            batches = [self._keys[key] for key in sorted(self._keys) if key[1] == row]
            keys.append(torch.cat(batches))
        return keys

    def forget_keys(self) -> None:
        """Free the memory of the keys."""
        self._keys.clear()


def heads_by_row(loaded: LoadedModel) -> dict[int, int]:
    """Return the number of heads of every site that has any, by its row."""
    return {site.row: site.n_heads for site in loaded.sites if site.n_heads}


def _linear_formula(form: str, sums: LinearSums, scales: Array) -> Formula:
    """Attend in a linear form, each head times its own best scale; ``scales`` (heads,)."""

    def attend(inputs: HeadInputs) -> Tensor:
        y = linear_attention(
            form, inputs.q, inputs.k, inputs.v, scale=inputs.scale, mask=inputs.mask
        )
        best = torch.from_numpy(scales[sums.indices(inputs)])
        # The sum may be too large for half precision before it is scaled.
        return (y * best[:, None, None].to(y)).to(inputs.v)

    return attend


def _constant_formula(sums: LinearSums) -> Formula:
    """Put out each head's mean z, whatever it reads."""
    means = sums.mean()

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
    one_in_memory: bool,
) -> LinearControl:
    """Measure the same architecture with random weights, drawn several times, on the same text.

    All draws but the first serve only the errors of reading back values. With ``one_in_memory``
    each draw takes the place of the model before it, ``loaded`` too.
    """
    masks = [mask for _, mask in effects.batches]
    n_heads = heads_by_row(loaded)
    width = loaded.sites[min(n_heads)].weights().W_V.shape[-1]
    draws = []
    for draw in range(CONTROLS):
        twin = random_twin(loaded, seed + draw, instead=one_in_memory)
        sums = LinearSums(n_heads, masks, width if draw == 0 else 0)  # 0: of keys alone
        effects.observe(sums.update, twin)
        draws.append(sums)
        if one_in_memory:
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
