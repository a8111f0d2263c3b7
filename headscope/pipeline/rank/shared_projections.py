"""Shared projections: what it costs when the heads of a layer share W_Q and W_K."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.core.errors import InputError
from headscope.data.plain import PlainText, sample_plain
from headscope.measures.accumulator import Array
from headscope.measures.rank.factors import Factors, layer_factors, random_factors
from headscope.measures.rank.shared_projections import (
    Mixed,
    knee,
    score_error,
    score_parameters,
    share_projections,
    shared_parameters,
    truncate,
    truncated_rank,
)
from headscope.measures.statistics import normal_interval
from headscope.models.loaded import LoadedModel
from headscope.pipeline.replaced_attention import PooledStates
from headscope.results.shared_projections import SharedProjections, SharedWidth
from headscope.session.progress import Progress


def check_widths(loaded: LoadedModel, widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths in ascending order, or say which one makes no sense."""
    most = min(site.n_heads * site.d_head for site in loaded.sites if site.n_heads)
    for width in widths:
        if not 1 <= width <= most:
            raise InputError(
                f"share_projections has the width {width}; a width lies between 1 and "
                f"n_heads * d_head = {most} of this model."
            )
    return tuple(sorted(set(widths)))


def sweep_widths(
    loaded: LoadedModel,
    widths: tuple[int, ...],
    text: PlainText | None,
    limit: int | None,
    seed: int,
    progress: Progress,
) -> SharedProjections:
    """Fit shared projections at every width; measure scores, fidelity and parameters."""
    text = text or sample_plain()
    states = PooledStates(loaded, text, limit)
    first = {site.projections: site for site in reversed(loaded.sites) if site.n_heads}
    layers = {
        site.row: layer_factors(site.weights())
        for site in loaded.sites
        if first.get(site.projections) is site
    }
    control = random_factors(next(iter(layers.values())), seed)
    heads_alone = {layer: truncate(factors) for layer, factors in layers.items()}
    found: list[SharedWidth] = []
    for width in widths:
        shared: dict[int, Mixed] = {}
        for layer, factors in layers.items():
            shared[layer] = share_projections(factors, width)
            done = len(found) * len(layers) + len(shared)
            progress("shared projections", done, len(widths) * len(layers))
        found.append(_width(loaded, width, layers, shared, heads_alone, control, states))
    return SharedProjections(
        widths=tuple(found),
        knee=knee(list(widths), [item.score_error for item in found]),
        text={
            "name": text.name,
            "sha256": text.sha256,
            "lines": states.lines,
            "skipped": states.skipped,
        },
    )


def _width(
    loaded: LoadedModel,
    width: int,
    layers: dict[int, Factors],
    shared: dict[int, Mixed],
    heads_alone: dict[int, Mixed],
    control: Factors,
    states: PooledStates,
) -> SharedWidth:
    sizes = [(f.n_heads, f.W_Q.shape[1], f.W_Q.shape[2]) for f in layers.values()]
    ranks = {layer: truncated_rank(*size, width) for layer, size in zip(layers, sizes, strict=True)}
    cut = {layer: mixed.first(ranks[layer]) for layer, mixed in heads_alone.items()}
    errors = tuple(score_error(layers[layer], mixed) for layer, mixed in shared.items())
    before = sum(score_parameters(*size) for size in sizes)
    after = sum(shared_parameters(n_heads, d_model, width) for n_heads, d_model, _ in sizes)
    with_shared, with_cut = (_cosines(loaded, mixed, states) for mixed in (shared, cut))
    return SharedWidth(
        width=width,
        score_error=float(np.mean(errors)),
        layer_score_errors=errors,
        truncated_rank=min(ranks.values()),
        truncated_score_error=float(np.mean([score_error(layers[i], cut[i]) for i in layers])),
        control_score_error=score_error(control, share_projections(control, width)),
        fidelity=float(with_shared.mean()),
        fidelity_interval=_interval(with_shared),
        truncated_fidelity=float(with_cut.mean()),
        truncated_fidelity_interval=_interval(with_cut),
        parameters=after,
        parameters_saved=before - after,
        share_saved=1 - after / before,
    )


def _cosines(loaded: LoadedModel, mixed: dict[int, Mixed], states: PooledStates) -> Array:
    layer_of = {site.projections: site.row for site in loaded.sites if site.row in mixed}
    factors = {
        site.row: mixed[layer_of[site.projections]]
        for site in loaded.sites
        if site.projections in layer_of
    }
    return states.cosines(scores={i: (item.left, item.right) for i, item in factors.items()})


def _interval(cosines: Array) -> tuple[float, ...] | None:
    """95% interval of the mean over lines, by the normal approximation."""
    if len(cosines) < 2:
        return None
    error = cosines.std(ddof=1) / len(cosines) ** 0.5
    low, high = normal_interval(cosines.mean(), error)
    return float(low), min(1.0, float(high))
