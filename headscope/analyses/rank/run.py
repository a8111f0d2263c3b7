"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone.

``stats/spectra.py`` does the mathematics of one layer: from its W_Q, W_K, W_V and W_O
(:class:`Factors`) to singular values, ranks and overlaps (:class:`LayerSpectra`). Here that is done
for the layers of the model and for the two controls, random factors (``gaussian``) and freshly
initialised weights (``fresh``).

A layer's attention is an :class:`AttentionSite`. Its ``row`` is its place among all measured sites,
and the key of every dictionary below; its ``projections`` are its maps, one and the same object in
layers that share all weights (ALBERT).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from headscope.analyses.rank import RankOptions
from headscope.analyses.rank.measure import PatternAsymmetry, measure_copying
from headscope.analyses.rank.result import (
    MATRICES,
    ControlRank,
    HeadRank,
    LayerRank,
    Overlap,
    RankResult,
)
from headscope.analyses.rank.shared_projections import check_widths, sweep_widths
from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError
from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus, as_plain
from headscope.data.long_texts import in_windows, left_out_notes
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.positions import beyond_products, unread_positions
from headscope.models.run.devices import DTYPES
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.rotations import rotations
from headscope.models.run.routing import Router, routed
from headscope.models.run.watched import gain_and_shift, preceding_norms
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import line_batches, text_description
from headscope.session.validate import certificate_first, require_valid, validating
from headscope.stats.factors import Factors, fold_gain, layer_factors, random_factors
from headscope.stats.planes import Planes
from headscope.stats.ranks import DistanceRange
from headscope.stats.spectra import (
    LayerSpectra,
    RankSettings,
    ReadLayers,
    layer_control,
    layer_reader,
)
from headscope.stats.statistics import finite

#: Layers of the freshly initialised model that are measured: each is a draw of the same weights.
FRESH_LAYERS = 4


def run(model: Model, options: RankOptions) -> RankResult:
    """Measure the ranks of W_Q W_K^T and W_V W_O, of every head and of all heads of a layer."""
    seed = options.seed
    lines = None if options.text is None else as_plain(options.text)

    # Open the model, with a tokenizer where a text is read, and refuse what has no rank to measure.
    loaded = _open(model, options, needs_text=lines is not None or bool(options.share_projections))
    not_covered = _check_coverage(loaded, options.validate)
    if not loaded.sites:
        require_valid(loaded, options.validate)  # the certificate says why
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    if lines is not None and options.windows:
        lines = in_windows(loaded, lines)
    with certificate_first(loaded, options.validate):
        planes = rotations(loaded)
        widths = check_widths(loaded, options.share_projections, turns=bool(planes))
        norms = preceding_norms(loaded) if options.fold_layernorm else {}
        factors_of = functools.partial(_factors, biases=options.biases, norms=norms, planes=planes)
        shapes = _layers_by_size(loaded, factors_of)

    # Measure the weights and the controls. Spectra need no run of the model, so a thread compares
    # our attention with the model's meanwhile; a fresh model takes memory, and comes after.
    with layer_reader(_rank_settings(loaded, options)) as read:
        with validating(loaded, options.validate) as certificate:
            spectra, gaussian = _measure_weights(loaded, factors_of, norms, shapes, read, options)
        validation = certificate.result()
        fresh = _measure_fresh(loaded, shapes, read, options) if options.fresh else None

    # Measure what is asked for besides: patterns of a text, copying scores, shared projections.
    patterns = None
    text = None
    if lines is not None:
        patterns, text = _read_text(loaded, lines, options.limit, options.tell)
    copying_scores: dict[int, list[float | None]] = {}
    copying = None
    if options.copying:
        copying_scores, copying = measure_copying(loaded, factors_of, seed)
    shared = None
    if widths:
        shared = sweep_widths(loaded, widths, lines, options.limit, seed, options.tell)

    # The result.
    heads: list[HeadRank] = []
    layers: list[LayerRank] = []
    for site in loaded.sites:
        site_spectra = spectra[site.row]
        heads += _head_ranks(site, site_spectra, patterns, copying_scores.get(site.row))
        folded = site.row in norms if options.fold_layernorm else None
        layers.append(_layer_rank(site, site_spectra, folded))
    return RankResult(
        heads=tuple(heads),
        layers=tuple(layers),
        controls={"gaussian": gaussian, "fresh": fresh},
        settings={
            "share": options.share,
            "biases": "include" if options.biases else "exclude",
            "fold_layernorm": options.fold_layernorm,
            "stored_dtype": loaded.stored_dtype or loaded.dtype,
        },
        validation=validation,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=seed,
            data=lines,
            warnings=_left_out(loaded, text, offer_windows=not options.windows),
        ),
        not_covered=not_covered,
        turns_values=any(layer_planes.values for layer_planes in planes.values()),
        text=text,
        copying=copying,
        shared=shared,
    )


# --- the model ------------------------------------------------------------------------------------


def _open(model: Model, options: RankOptions, *, needs_text: bool) -> LoadedModel:
    """Open the model, or the stack of it that is measured: a text runs the encoder only.

    ``needs_text``: whether the model runs on lines, given ones or the built-in sample.
    """
    # The unembedding that copying scores read is in the head for a task.
    open_with = open_for_tasks if options.copying else open_model
    loaded = open_with(model, need_tokenizer=needs_text, **options.loading)
    if needs_text and loaded.tokenizer is None:
        raise InputError(
            "A text and the fidelity of shared projections need the model's tokenizer; load it "
            "with headscope.load."
        )
    if options.share_projections:
        loaded.pooling.check()
    if needs_text and loaded.encoder_decoder:
        if options.stack not in (None, "encoder"):
            raise InputError(
                f"A text runs the encoder of {loaded.name} only: leave text and share_projections "
                "out, or choose the stack encoder."
            )
        return loaded.only("encoder")
    return loaded.only(options.stack or "all")


def _check_coverage(loaded: LoadedModel, validate: bool) -> tuple[str, ...]:
    """Name what W_Q W_K^T leaves out of the scores; refuse where the model lacks what it names.

    It leaves out one thing at most, such as "a relative position bias".
    """
    config = loaded.model.config
    term = beyond_products(config)
    if term is None:
        return ()
    if validate and unread_positions(config):
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) was trained with {term}, which transformers 5 no "
            "longer computes, so this is not the model that was trained; validate=False measures "
            "W_QW_Kᵀ all the same."
        )
    return (term,)


# --- spectra of the weights, and of random ones ---------------------------------------------------


def _rank_settings(loaded: LoadedModel, options: RankOptions) -> RankSettings:
    """Return how ranks are computed, with the tolerance of the coarser dtype: stored or loaded."""
    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    eps = max(torch.finfo(DTYPES[name]).eps for name in names)
    return RankSettings(options.share, eps, options.rtol)


def _factors(
    site: AttentionSite,
    *,
    biases: bool,
    norms: Mapping[int, torch.nn.Module],
    planes: Mapping[int, Planes],
) -> Factors:
    """Return a layer's factors, with the gains of norms of its q and k folded in.

    ``norms`` has the norm before each ``row`` whose gain is folded in too: it is empty where
    that was not asked for. ``planes`` has those in which each row turns its q and k.
    """
    weights = site.weights()
    norm = norms.get(site.row)
    if norm is not None:
        weights = fold_gain(weights, *gain_and_shift(norm))
    return layer_factors(
        site.folded(weights),
        biases=biases,
        key_of_head=site.key_of_head,
        planes=planes.get(site.row),
    )


def _layers_by_size(
    loaded: LoadedModel, factors_of: Callable[[AttentionSite], Factors]
) -> list[Factors]:
    """Return one layer for each number of heads that layers have, the largest first.

    Each control is drawn in the shapes of each of these layers. A pruned model with layers of 12,
    8, 12 and 4 heads has three of them: one with 12, one with 8 and one with 4. Of layers with as
    many heads, it is one that turns q and k, if any does.
    """
    by_size: dict[int, Factors] = {}
    for site in loaded.sites:
        known = by_size.get(site.n_heads)
        if site.n_heads and (known is None or known.planes is None):
            by_size[site.n_heads] = factors_of(site)
    return [by_size[n_heads] for n_heads in sorted(by_size, reverse=True)]


def _measure_weights(
    loaded: LoadedModel,
    factors_of: Callable[[AttentionSite], Factors],
    norms: Mapping[int, torch.nn.Module],
    shapes: Sequence[Factors],
    read: ReadLayers,
    options: RankOptions,
) -> tuple[dict[int, LayerSpectra], ControlRank]:
    """Return the spectra of every site by its row, and the control with Gaussian entries.

    ``read`` starts measuring layers in the background, and returns an iterator over their spectra;
    it takes functions that make the layers' factors, so that few are in memory at a time.
    """
    # Start both in the background. Layers that share all weights, and the LayerNorm that is folded
    # in, are measured once.
    weights_of_row = {site.row: (site.projections, norms.get(site.row)) for site in loaded.sites}
    distinct = {weights_of_row[site.row]: site for site in loaded.sites}
    measured = read(functools.partial(factors_of, site) for site in distinct.values())
    seeds = tuple(range(options.seed, options.seed + options.control_seeds))
    draws_by_shape = []
    for shape in shapes:
        draws = [functools.partial(random_factors, shape, seed) for seed in seeds]
        draws_by_shape.append(read(draws))

    # Collect the results, layer by layer.
    spectra: dict[object, LayerSpectra] = {}
    for weights, layer_spectra in zip(distinct, measured, strict=True):
        spectra[weights] = layer_spectra
        options.tell("model", len(spectra), len(distinct))
    geometries = tuple(layer_control(list(draws)) for draws in draws_by_shape)
    by_row = {row: spectra[weights] for row, weights in weights_of_row.items()}
    return by_row, ControlRank(seeds=seeds, geometries=geometries)


def _measure_fresh(
    loaded: LoadedModel, shapes: Sequence[Factors], read: ReadLayers, options: RankOptions
) -> ControlRank | None:
    """Return the control of freshly initialised weights; None where they cannot be built.

    Every layer of the fresh model is a draw. Where layers of the model have fewer heads than a
    fresh layer (the model was pruned), the first heads of the fresh layer are taken.
    """
    release_memory()  # that reading the model has left behind
    try:
        twin = random_twin(loaded, options.seed)
    except HeadscopeError:
        return None

    def first_heads(site: AttentionSite, like: Factors) -> Factors:
        planes = {} if like.planes is None else {site.row: like.planes}
        factors = _factors(site, biases=options.biases, norms={}, planes=planes)
        return factors.first(like.n_heads)

    distinct = {site.projections: site for site in twin.sites}
    controls = []
    for shape in shapes:
        n_heads, _, d_head = shape.W_Q.shape
        same_width = [site for site in distinct.values() if site.d_head == d_head]
        drawn = [site for site in same_width if site.n_heads >= n_heads][:FRESH_LAYERS]
        if drawn:
            draws = read(functools.partial(first_heads, site, shape) for site in drawn)
            controls.append(layer_control(list(draws)))
    if not controls:
        return None
    return ControlRank(seeds=(options.seed,), geometries=tuple(controls))


# --- rows of the result ---------------------------------------------------------------------------


def _head_ranks(
    site: AttentionSite,
    spectra: LayerSpectra,
    patterns: PatternAsymmetry | None,
    copying: Sequence[float | None] | None,
) -> Iterator[HeadRank]:
    """Yield the ranks of a layer's heads, one by one.

    ``head_ids`` are the heads' original numbers: [0, 2, 3] where head 1 was removed. Everything
    measured is by their index, 0, 1, 2.
    """
    cross = site.stack == "cross"  # queries and keys lie in different spaces
    for index, head in enumerate(site.head_ids):
        ranks: dict[str, Any] = {name: spectra.heads[name][index] for name in MATRICES}
        yield HeadRank(
            site.layer,
            head,
            stack=site.stack,
            **ranks,
            asymmetry=None if cross else finite(spectra.asymmetry[index]),
            pattern_asymmetry=patterns.mean(site.row, index) if patterns else None,
            over_distances=_of_head(spectra.heads_over_distances, index),
            copying=copying[index] if copying else None,
        )


def _of_head(ranges: Sequence[DistanceRange], index: int) -> DistanceRange | None:
    """Return the range over distances of one head; None where its layer turns nothing."""
    return ranges[index] if ranges else None


def _layer_rank(site: AttentionSite, spectra: LayerSpectra, folded: bool | None) -> LayerRank:
    """Return the ranks of all heads of a layer together."""
    ranks: dict[str, Any] = {name: spectra.layer[name][0] for name in MATRICES}
    overlaps: dict[str, Any] = {}
    for name, overlap in spectra.overlap.items():
        overlaps[name] = tuple(tuple(row) for row in overlap.tolist())
    cross = site.stack == "cross"
    keys = site.key_of_head
    weights = site.weights()
    return LayerRank(
        site.layer,
        site.head_ids,
        stack=site.stack,
        **ranks,
        asymmetry=None if cross else finite(spectra.layer_asymmetry[0]),
        overlap=Overlap(**overlaps),
        folded=folded,
        over_distances=_of_head(spectra.layer_over_distances, 0),
        shared_keys=None if keys is None else len(set(keys)),
        qk_gains=site.folded(weights) is not weights,
    )


# --- patterns on a text ---------------------------------------------------------------------------


def _read_text(
    loaded: LoadedModel, text: Corpus, limit: int | None, progress: Progress
) -> tuple[PatternAsymmetry, dict[str, Any]]:
    """Measure the patterns of a text in one pass; also describe what was read."""
    patterns = PatternAsymmetry(loaded.n_layers, loaded.n_heads)
    router = Router(loaded.sites, [patterns], unmeasured_sites=loaded.unmeasured_sites)
    n_lines = min(text.n_sentences, limit or text.n_sentences)
    lines_read = 0
    tokens_read = 0
    with routed(loaded.model, router):
        for lines_seen, batch in line_batches(loaded, text, limit):
            ids, mask = loaded.pad(batch)
            patterns.start(mask.bool())
            router.run(functools.partial(loaded.forward, ids, mask))
            lines_read += len(batch)
            tokens_read += int(mask.sum())
            progress("text", lines_seen, n_lines)
    return patterns, {**text_description(text, limit, lines_read), "tokens": tokens_read}


def _left_out(
    loaded: LoadedModel, text: dict[str, Any] | None, *, offer_windows: bool
) -> tuple[str, ...]:
    """Warn that many lines of a text were not read; ``text`` is what :func:`_read_text` says."""
    if text is None:
        return ()
    return left_out_notes(
        text["skipped"],
        text["lines"] + text["skipped"],
        text["name"],
        loaded.max_length,
        windows=offer_windows,
    )
