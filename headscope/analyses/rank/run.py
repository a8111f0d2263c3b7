"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone."""

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
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.positions import relative_terms, rotary, unread_positions
from headscope.models.run.devices import DTYPES
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.run.watched import gain_and_shift, preceding_norms
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import line_batches, text_description
from headscope.session.validate import require_valid, validating
from headscope.stats.spectra import (
    Factors,
    LayerSpectra,
    Reading,
    ReadLayers,
    fold_gain,
    layer_control,
    layer_factors,
    random_factors,
    reading_layers,
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
    widths = check_widths(loaded, options.share_projections)

    # Measure the weights, and random ones of the same shapes, while the model is validated.
    norms = preceding_norms(loaded) if options.fold_layernorm else {}
    factors = functools.partial(_factors, biases=options.biases, norms=norms)
    with reading_layers(_reading(loaded, options)) as read:
        with validating(loaded, options.validate) as certificate:  # spectra are of weights alone
            spectra, gaussian = _measure_weights(loaded, factors, norms, read, options)
        validation = certificate.result()
        fresh = _measure_fresh(loaded, factors, options, read) if options.fresh else None

    # Measure what depends on a text, and on the embeddings.
    patterns = None
    text = None
    if lines is not None:
        patterns, text = _read_text(loaded, lines, options.limit, options.tell)
    copying_of: dict[int, list[float | None]] = {}
    copying = None
    if options.copying:
        copying_of, copying = measure_copying(loaded, factors, seed)
    heads: list[HeadRank] = []
    layers: list[LayerRank] = []
    for site in loaded.sites:
        site_spectra = spectra[site.row]
        heads += _head_ranks(site, site_spectra, patterns, copying_of.get(site.row))
        folded = site.row in norms if options.fold_layernorm else None
        layers.append(_layer_rank(site, site_spectra, folded))
    shared = None
    if widths:
        shared = sweep_widths(loaded, widths, lines, options.limit, seed, options.tell)

    # The result.
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
        provenance=provenance(loaded, command=options.command, seed=seed, data=lines),
        not_covered=not_covered,
        text=text,
        copying=copying,
        shared=shared,
    )


# --- the model ------------------------------------------------------------------------------------


def _open(model: Model, options: RankOptions, *, needs_text: bool) -> LoadedModel:
    """Open the model, or the stack of it that is measured: a text runs the encoder only."""
    opened = open_for_tasks if options.copying else open_model  # the unembedding is a task head's
    loaded = opened(model, need_tokenizer=needs_text, **options.loading)
    if needs_text and loaded.tokenizer is None:
        raise InputError(
            "A text and the fidelity of shared projections need the model's tokenizer; load it "
            "with headscope.load."
        )
    if options.share_projections:
        loaded.pooling.check()
    if not (needs_text and loaded.encoder_decoder):
        return loaded.only(options.stack or "all")
    if options.stack not in (None, "encoder"):
        raise InputError(
            f"A text runs the encoder of {loaded.name} only: leave text and share_projections out, "
            "or choose the stack encoder."
        )
    return loaded.only("encoder")


def _check_coverage(loaded: LoadedModel, validate: bool) -> tuple[str, ...]:
    """Return what W_Q W_K^T leaves out of the scores; refuse where it is not the score at all."""
    config = loaded.model.config
    if rotary(loaded.model):
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) rotates queries and keys by their positions, so "
            "x W_Q W_K^T x^T is not its score and its rank says nothing about the attention; "
            "choose a model with absolute positions."
        )
    term = relative_terms(config)
    if term is None:
        return ()
    if validate and unread_positions(config):
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) was trained with {term}, which transformers 5 no "
            "longer computes, so this is not the model that was trained; validate=False measures "
            "W_Q W_K^T all the same."
        )
    return (term,)


# --- spectra of the weights, and of random ones ---------------------------------------------------


def _reading(loaded: LoadedModel, options: RankOptions) -> Reading:
    """Say how spectra are read, with the tolerance of the coarser type, as stored or as loaded."""
    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    eps = max(torch.finfo(DTYPES[name]).eps for name in names)
    return Reading(options.share, eps, options.rtol)


def _factors(
    site: AttentionSite, *, biases: bool, norms: Mapping[int, torch.nn.LayerNorm]
) -> Factors:
    """Return a layer's factors, with the gain of the LayerNorm before it where that is folded."""
    weights = site.weights()
    norm = norms.get(site.row)
    if norm is not None:
        weights = fold_gain(weights, *gain_and_shift(norm))
    return layer_factors(weights, biases=biases)


def _shapes(loaded: LoadedModel, factors: Callable[[AttentionSite], Factors]) -> list[Factors]:
    """Return a layer for each number of heads that layers have, the largest first.

    Controls are drawn for each.
    """
    by_size = {site.n_heads: site for site in loaded.sites if site.n_heads}
    return [factors(by_size[n_heads]) for n_heads in sorted(by_size, reverse=True)]


def _measure_weights(
    loaded: LoadedModel,
    factors: Callable[[AttentionSite], Factors],
    norms: Mapping[int, torch.nn.LayerNorm],
    read: ReadLayers,
    options: RankOptions,
) -> tuple[dict[int, LayerSpectra], ControlRank]:
    """Return the spectra of every site by its row, and the control with Gaussian entries."""
    # Layers that share all weights are measured once (ALBERT).
    keys = {site.row: (site.projections, norms.get(site.row)) for site in loaded.sites}
    distinct = {keys[site.row]: site for site in loaded.sites}
    seeds = tuple(range(options.seed, options.seed + options.control_seeds))
    measured = read(functools.partial(factors, site) for site in distinct.values())
    drawn = [
        read(functools.partial(random_factors, shape, seed) for seed in seeds)
        for shape in _shapes(loaded, factors)
    ]
    spectra: dict[object, LayerSpectra] = {}
    for key, layer_spectra in zip(distinct, measured, strict=True):
        spectra[key] = layer_spectra
        options.tell("model", len(spectra), len(distinct))
    geometries = tuple(layer_control(list(draws)) for draws in drawn)
    by_row = {row: spectra[key] for row, key in keys.items()}
    return by_row, ControlRank(seeds=seeds, geometries=geometries)


def _measure_fresh(
    loaded: LoadedModel,
    factors: Callable[[AttentionSite], Factors],
    options: RankOptions,
    read: ReadLayers,
) -> ControlRank | None:
    """Return the control of freshly initialised weights; None where they cannot be built."""
    release_memory()  # memory that reading the model has left behind
    try:
        twin = random_twin(loaded, options.seed)
    except HeadscopeError:
        return None

    def first_heads(site: AttentionSite, n_heads: int) -> Factors:
        return layer_factors(site.weights(), biases=options.biases).first(n_heads)

    sites = {site.projections: site for site in twin.sites}.values()
    controls = []
    for shape in _shapes(loaded, factors):
        n_heads, _, d_head = shape.W_Q.shape
        alike = [site for site in sites if site.n_heads >= n_heads and site.d_head == d_head]
        if alike:
            draws = read(
                functools.partial(first_heads, site, n_heads) for site in alike[:FRESH_LAYERS]
            )
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
    """Yield the ranks of a layer's heads, one by one."""
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
            copying=copying[index] if copying else None,
        )


def _layer_rank(site: AttentionSite, spectra: LayerSpectra, folded: bool | None) -> LayerRank:
    """Return the ranks of all heads of a layer together."""
    ranks: dict[str, Any] = {name: spectra.layer[name][0] for name in MATRICES}
    overlaps: dict[str, Any] = {}
    for name, overlap in spectra.overlap.items():
        overlaps[name] = tuple(tuple(row) for row in overlap.tolist())
    cross = site.stack == "cross"
    return LayerRank(
        site.layer,
        site.head_ids,
        stack=site.stack,
        **ranks,
        asymmetry=None if cross else finite(spectra.layer_asymmetry[0]),
        overlap=Overlap(**overlaps),
        folded=folded,
    )


# --- patterns on a text ---------------------------------------------------------------------------


def _read_text(
    loaded: LoadedModel, text: Corpus, limit: int | None, progress: Progress
) -> tuple[PatternAsymmetry, dict[str, Any]]:
    """Stream the text through the model once; also describe what was read."""
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
