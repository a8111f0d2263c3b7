"""What is left of a model: heads and neurons by layer, original numbers of what went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headscope.models.feed_forward import feed_forwards
from headscope.models.loaded import LoadedModel
from headscope.pruning.measure import original_names
from headscope.pruning.mix.result import LayerLeft


def layers_left(small: LoadedModel, whole: LoadedModel, *, neurons: bool) -> Iterator[LayerLeft]:
    """List what each layer keeps, layers that are gone among them."""
    left = {(site.stack, site.layer): site for site in small.sites}
    before = _neurons(whole) if neurons else {}
    after = _neurons(small) if neurons else {}
    for site in whole.sites:
        key = site.stack, site.layer
        heads = left[key].head_ids if key in left else ()
        counts = after.get(key, 0), before.get(key, 0)
        yield LayerLeft(*key, heads, site.n_heads, *counts)


def _neurons(model: LoadedModel) -> dict[tuple[str, int], int]:
    """Count the neurons of each layer, whose feed-forward networks may be several."""
    counts: dict[tuple[str, int], int] = {}
    for item in feed_forwards(model):
        for layer in item.layers:
            counts[item.stack, layer] = counts.get((item.stack, layer), 0) + item.width
    return counts


def heads_gone(small: LoadedModel, whole: LoadedModel) -> tuple[tuple[Any, ...], ...]:
    """Name the heads of the whole model that the smaller one lacks."""
    left = {(site.stack, site.layer): set(site.head_ids) for site in small.sites}
    return original_names(
        whole,
        [
            (site.row, place)
            for site in whole.sites
            for place, head in enumerate(site.head_ids)
            if head not in left.get((site.stack, site.layer), ())
        ],
    )
