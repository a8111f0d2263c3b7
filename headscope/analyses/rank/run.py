"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
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
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus, as_plain
from headscope.models.layouts.families import relative_terms, rotary, unread_positions
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.devices import DTYPES
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.run.watched import gain_and_shift, preceding_norms
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import description, line_batches
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
    biases = options.biases
    limit = options.limit
    seed = options.seed
    tell = options.tell
    lines = None if options.text is None else as_plain(options.text)
    needs_text = lines is not None or bool(options.share_projections)
    opened = open_for_tasks if options.copying else open_model  # the unembedding is a task head's
    loaded = opened(model, need_tokenizer=needs_text, **options.loading)
    if needs_text and loaded.tokenizer is None:
        raise InputError(
            "A text and the fidelity of shared projections need the model's tokenizer; load it "
            "with headscope.load."
        )
    if options.share_projections:
        loaded.pooling.check()
    only_encoder = needs_text and loaded.encoder_decoder
    if only_encoder and options.stack not in (None, "encoder"):
        raise InputError(
            f"A text runs the encoder of {loaded.name} only: leave text and share_projections out, "
            "or choose the stack encoder."
        )
    loaded = loaded.only("encoder" if only_encoder else options.stack or "all")
    not_covered = _check_coverage(loaded, options.validate)
    if not loaded.sites:
        require_valid(loaded, options.validate)  # the certificate says why
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    widths = check_widths(loaded, options.share_projections)

    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    eps = max(torch.finfo(DTYPES[name]).eps for name in names)
    reading = Reading(options.share, eps, options.rtol)
    norms = preceding_norms(loaded) if options.fold_layernorm else {}
    factors = functools.partial(_factors, biases=biases, norms=norms)
    seeds = tuple(range(seed, seed + options.control_seeds))
    # Controls are drawn for each number of heads that layers have.
    by_size = {site.n_heads: site for site in loaded.sites if site.n_heads}
    geometries = [factors(site) for _, site in sorted(by_size.items(), reverse=True)]
    # Layers that share all weights are measured once (ALBERT).
    keys = {site.row: (site.projections, norms.get(site.row)) for site in loaded.sites}
    distinct = {keys[site.row]: site for site in loaded.sites}
    spectra: dict[object, LayerSpectra] = {}
    with reading_layers(reading) as read:
        with validating(loaded, options.validate) as certificate:  # spectra are of weights alone
            measured = read(functools.partial(factors, site) for site in distinct.values())
            drawn = [
                read(functools.partial(random_factors, like, seed) for seed in seeds)
                for like in geometries
            ]
            for key, layer_spectra in zip(distinct, measured, strict=True):
                spectra[key] = layer_spectra
                tell("model", len(spectra), len(distinct))
        validation = certificate.result()
        fresh = _fresh(loaded, geometries, biases, read, seed) if options.fresh else None
        controls = tuple(layer_control(list(of_seeds)) for of_seeds in drawn)

    text = None
    patterns = None
    if lines is not None:
        patterns, text = _read_text(loaded, lines, limit, tell)
    copied: dict[int, list[float | None]] = {}
    copying = None
    if options.copying:
        copied, copying = measure_copying(loaded, factors, seed)
    heads = []
    layers = []
    for site in loaded.sites:
        site_spectra = spectra[keys[site.row]]
        row = site.row
        cross = site.stack == "cross"  # queries and keys lie in different spaces
        for i, head in enumerate(site.head_ids):
            ranks: dict[str, Any] = {name: site_spectra.heads[name][i] for name in MATRICES}
            heads.append(
                HeadRank(
                    site.layer,
                    head,
                    stack=site.stack,
                    **ranks,
                    asymmetry=None if cross else finite(site_spectra.asymmetry[i]),
                    pattern_asymmetry=patterns.mean(row, i) if patterns else None,
                    copying=copied[row][i] if row in copied else None,
                )
            )
        ranks = {name: site_spectra.layer[name][0] for name in MATRICES}
        tables = {name: tuple(map(tuple, x.tolist())) for name, x in site_spectra.overlap.items()}
        layers.append(
            LayerRank(
                site.layer,
                site.head_ids,
                stack=site.stack,
                **ranks,
                asymmetry=None if cross else finite(site_spectra.layer_asymmetry[0]),
                overlap=Overlap(**tables),
                folded=row in norms if options.fold_layernorm else None,
            )
        )
    return RankResult(
        heads=tuple(heads),
        layers=tuple(layers),
        controls={"gaussian": ControlRank(seeds=seeds, geometries=controls), "fresh": fresh},
        settings={
            "share": options.share,
            "biases": "include" if biases else "exclude",
            "fold_layernorm": options.fold_layernorm,
            "stored_dtype": loaded.stored_dtype or loaded.dtype,
        },
        validation=validation,
        provenance=provenance(loaded, command=options.command, seed=seed, data=lines),
        not_covered=not_covered,
        text=text,
        copying=copying,
        shared=sweep_widths(loaded, widths, lines, limit, seed, tell) if widths else None,
    )


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


def _factors(
    site: AttentionSite, *, biases: bool, norms: Mapping[int, torch.nn.LayerNorm]
) -> Factors:
    """Return a layer's factors, with the gain of the LayerNorm before it where that is folded."""
    weights = site.weights()
    norm = norms.get(site.row)
    if norm is not None:
        weights = fold_gain(weights, *gain_and_shift(norm))
    return layer_factors(weights, biases=biases)


def _fresh(
    loaded: LoadedModel, geometries: Sequence[Factors], biases: bool, read: ReadLayers, seed: int
) -> ControlRank | None:
    """Return the control of freshly initialised weights; None where they cannot be built."""
    give_back()  # memory that reading the model has left behind
    try:
        twin = random_twin(loaded, seed)
    except HeadscopeError:
        return None

    def first_heads(site: AttentionSite, n_heads: int) -> Factors:
        return layer_factors(site.weights(), biases=biases).first(n_heads)

    sites = {site.projections: site for site in twin.sites}.values()
    controls = []
    for n_heads, _, d_head in (like.W_Q.shape for like in geometries):
        enough = [s for s in sites if s.n_heads >= n_heads and s.d_head == d_head][:FRESH_LAYERS]
        if enough:
            draws = read(functools.partial(first_heads, site, n_heads) for site in enough)
            controls.append(layer_control(list(draws)))
    return ControlRank(seeds=(seed,), geometries=tuple(controls)) if controls else None


def _read_text(
    loaded: LoadedModel, text: Corpus, limit: int | None, progress: Progress
) -> tuple[PatternAsymmetry, dict[str, Any]]:
    """Stream the text through the model once; also describe what was read."""
    patterns = PatternAsymmetry(loaded.n_layers, loaded.n_heads)
    router = Router(loaded.sites, [patterns], others=loaded.others)
    n_lines = min(text.n_sentences, limit or text.n_sentences)
    lines = 0
    tokens = 0
    with routed(loaded.model, router):
        for seen, batch in line_batches(loaded, text, limit):
            ids, mask = loaded.pad(batch)
            patterns.start(mask.bool())
            router.run(functools.partial(loaded.forward, ids, mask))
            lines += len(batch)
            tokens += int(mask.sum())
            progress("text", seen, n_lines)
    return patterns, description(text, limit, lines) | {"tokens": tokens}
