"""The smaller model for real: units cut out, refitted maps written, proven equal to zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headscope.artefacts.opened_again import TOLERANCES, distance
from headscope.core.errors import ArtefactError
from headscope.data.token_rows import padded
from headscope.models.compact import remove_heads
from headscope.models.feed_forward import remove_neurons
from headscope.models.loaded import LoadedModel
from headscope.models.surgery import replace_stored
from headscope.pruning.mix.choose import Choice
from headscope.pruning.mix.eliminate import rows_kept
from headscope.pruning.mix.sublayers import HEADS, NEURONS, Sublayer, sublayers
from headscope.tasks.base import Task

_TEXTS = 16  # Calibration texts that the cut model is compared on with zeros in place of units


def build(loaded: LoadedModel, choices: Sequence[Choice]) -> LoadedModel:
    """Cut a model down to what was chosen; it shares what is not cut with ``loaded``."""
    heads = [
        (c.item.stack, c.item.layer, unit)
        for c in choices
        if c.item.kind == HEADS
        for unit in c.removed
    ]
    neurons = {c.item.name: c.removed for c in choices if c.item.kind == NEURONS and c.removed}
    small = remove_heads(loaded, heads, share=True)
    small = remove_neurons(small, neurons, share=True) if neurons else small
    modules = {item.name: item for item in sublayers(small, (HEADS, NEURONS))}
    empty = {site.name: site for site in small.sites if not site.n_heads}
    for choice in choices:
        places = [choice.item.units.index(unit) for unit in choice.kept]
        W = choice.W[rows_kept(choice.item, places)]
        if (item := modules.get(choice.item.name)) is not None:
            _own(item)
            item.write(W)
        elif choice.item.name in empty and (site := empty[choice.item.name]):
            out = site.projections.out.module
            if out.bias is not None:
                replace_stored(out, "bias", W[-1].to(out.bias))
    return small


def _own(item: Sublayer) -> None:
    """Give a map tensors of its own, so that writing them leaves the whole model as it is."""
    for name in ("weight", "bias"):
        if (tensor := getattr(item.module, name)) is not None:
            replace_stored(item.module, name, tensor.detach())


def check_equal(small: LoadedModel, zeroed: LoadedModel, task: Task) -> float:
    """Compare the cut model with the whole shape that has zeros; returns the largest difference.

    Raises
    ------
    ArtefactError
        If it is more than rounding, relative to the largest state.
    """
    batch = padded(task.rows[:_TEXTS], small.pad_id, small.device)
    sides = []
    with torch.no_grad():
        for model in (zeroed, small):
            options: dict[str, Any] = {**batch.decoder_inputs}
            hidden, _ = model.run(*batch.inputs, **options)
            sides.append(hidden[batch.hidden_mask.bool()])
    largest, relative = distance(*sides)
    if not relative <= TOLERANCES[small.dtype]:
        raise ArtefactError(
            f"The model without its units differs from the one with zeros in their place by "
            f"{largest:.1e}, which is more than rounding; please report this."
        )
    return largest
