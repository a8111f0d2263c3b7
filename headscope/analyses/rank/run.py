"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from headscope.analyses.rank.measure import InputCovariance, PatternAsymmetry, rank_rows
from headscope.analyses.rank.options import RankOptions
from headscope.analyses.rank.result import ControlRank, DataControl, HeadRank, LayerRank, RankResult
from headscope.analyses.rank.shared_projections import check_widths, sweep_widths
from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.corpus import PlainText, as_plain
from headscope.models.layouts.families import relative_terms, rotary, unread_positions
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.devices import DTYPES
from headscope.models.run.intervene import watch_inputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.run.watched import gain_and_shift, preceding_norms
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, open_for_tasks, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.session.validate import require_valid
from headscope.stats.spectra import (
    Factors,
    LayerSpectra,
    Reading,
    ReadLayers,
    average,
    fold_gain,
    layer_control,
    layer_factors,
    product_ranks,
    random_factors,
    reading_layers,
    weigh,
)


def run(model: Model, options: RankOptions) -> RankResult:
    """Measure the ranks of W_Q W_K^T and W_V W_O, of every head and of all heads of a layer."""
    biases, limit, seed = options.biases, options.limit, options.seed
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
    loaded = _stack_view(loaded, options.stack, needs_text)
    not_covered = _check_coverage(loaded, options.validate)
    validation = require_valid(loaded, options.validate)
    if not loaded.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    widths = check_widths(loaded, options.share_projections)

    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    eps = max(torch.finfo(DTYPES[name]).eps for name in names)
    reading = Reading(options.share, eps, options.rtol)
    factors, folded = _factors(loaded, biases, options.fold_layernorm)
    seeds = tuple(range(seed, seed + options.control_seeds))
    # Controls are drawn for each number of heads that layers have.
    by_size = {item.n_heads: item for item in factors.values() if item.n_heads}
    geometries = [like for _, like in sorted(by_size.items(), reverse=True)]
    with reading_layers(reading) as read:
        found = read(_distinct(factors))
        drawn = [
            read(functools.partial(random_factors, like, seed) for seed in seeds)
            for like in geometries
        ]
        heads, layers = _measure(loaded.sites, factors, folded, found, options.tell)
        fresh = _fresh(loaded, geometries, biases, read, seed) if options.fresh else None
        controls = tuple(layer_control(list(of_seeds)) for of_seeds in drawn)
    text = None
    if lines is not None:
        covariance, patterns, text = _read_text(loaded, lines, limit, options.tell)
        plain = _factors(loaded, biases, False)[0]
        heads, layers = _add_text(heads, layers, covariance, patterns, plain, reading, seeds)
    copying = None
    if options.copying:
        from headscope.analyses.rank.copying import with_copying

        heads, copying = with_copying(loaded, heads, layers, factors, seed)
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
        shared=sweep_widths(loaded, widths, lines, limit, seed, options.tell) if widths else None,
    )


def _stack_view(loaded: LoadedModel, stack: str | None, needs_text: bool) -> LoadedModel:
    """Return the model seen in the stack that is measured."""
    if not loaded.encoder_decoder:
        return loaded.only(stack or "all")
    if needs_text and stack not in (None, "encoder"):
        raise InputError(
            f"A text runs the encoder of {loaded.name} only: leave text and share_projections out, "
            "or choose the stack encoder."
        )
    return loaded.only("encoder" if needs_text else stack or "all")


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
    loaded: LoadedModel, biases: bool, fold: bool
) -> tuple[dict[int, Factors], dict[int, bool]]:
    """Return each layer's factors, one object for layers that share all weights (ALBERT).

    With ``fold`` also whether a LayerNorm was folded into each.
    """
    norms = preceding_norms(loaded) if fold else {}
    made: dict[Any, Factors] = {}
    factors: dict[int, Factors] = {}
    for site in loaded.sites:
        norm = norms.get(site.row)
        key = (site.projections, norm)
        if key not in made:
            weights = site.weights()
            if norm is not None:
                weights = fold_gain(weights, *gain_and_shift(norm))
            # What needs no arithmetic stays as it is until a layer is read.
            plain = norm is None and not biases
            made[key] = Factors.stored(weights) if plain else layer_factors(weights, biases=biases)
        factors[site.row] = made[key]
    return factors, ({site.row: site.row in norms for site in loaded.sites} if fold else {})


def _distinct(factors: Mapping[int, Factors]) -> list[Factors]:
    return list({id(item): item for item in factors.values()}.values())


def _measure(
    sites: Sequence[AttentionSite],
    factors: dict[int, Factors],
    folded: dict[int, bool],
    found: Iterator[LayerSpectra],
    progress: Progress,
) -> tuple[list[HeadRank], list[LayerRank]]:
    """Gather the results of all layers; ``found`` has one for each distinct ``factors`` object."""
    heads: list[HeadRank] = []
    layers: list[LayerRank] = []
    known: dict[int, tuple[list[HeadRank], LayerRank]] = {}  # by the identity of the factors
    for site in sites:
        own = factors[site.row]
        if id(own) not in known:
            known[id(own)] = rank_rows(site.layer, next(found), folded=folded.get(site.row))
        of_heads, whole = known[id(own)]
        changes: dict[str, Any] = {"layer": site.layer, "stack": site.stack}
        if site.stack == "cross":  # queries and keys lie in different spaces
            changes["asymmetry"] = None
        heads += [
            dataclasses.replace(head, head=name, **changes)
            for head, name in zip(of_heads, site.head_ids, strict=True)
        ]
        layers.append(dataclasses.replace(whole, heads=site.head_ids, **changes))
        progress("model", len(layers), len(sites))
    return heads, layers


def _fresh(
    loaded: LoadedModel, geometries: Sequence[Factors], biases: bool, read: ReadLayers, seed: int
) -> ControlRank | None:
    """Return the control of freshly initialised weights; None where they cannot be built."""
    give_back()  # memory that reading the model has left behind
    try:
        twin = random_twin(loaded, seed)
    except HeadscopeError:
        return None
    drawn = _distinct(_factors(twin, biases, False)[0])
    controls = []
    for n_heads in (like.n_heads for like in geometries):
        draws = [item.first(n_heads) for item in drawn if item.n_heads >= n_heads]
        if draws:
            controls.append(layer_control(list(read(draws))))
    return ControlRank(seeds=(seed,), geometries=tuple(controls)) if controls else None


def _read_text(
    loaded: LoadedModel, text: PlainText, limit: int | None, progress: Progress
) -> tuple[InputCovariance, PatternAsymmetry, dict[str, Any]]:
    """Stream the text through the model once; also describe what was read."""
    patterns = PatternAsymmetry(loaded.n_layers, loaded.n_heads)
    covariance = InputCovariance(loaded.n_layers, loaded.sites[0].projections.q.in_features)
    n_lines = min(text.n_lines, limit or text.n_lines)
    lines = 0

    def see(site: AttentionSite, inputs: AttentionInput) -> None:
        covariance.update(site.row, inputs.x_q, mask.bool())

    router = Router(loaded.sites, [patterns], others=loaded.others)
    with routed(loaded.model, router), watch_inputs(loaded.sites, see):
        for seen, batch in line_batches(loaded, text, limit):
            ids, mask = loaded.pad(batch)
            patterns.start(mask.bool())
            router.run(functools.partial(loaded.forward, ids, mask))
            lines += len(batch)
            progress("text", seen, n_lines)
    check_measured(text, lines)
    description = {
        "name": text.name,
        "sha256": text.sha256,
        "lines": lines,
        "skipped": n_lines - lines,
        "tokens": int(covariance.count[0]),
    }
    return covariance, patterns, description


def _add_text(
    heads: Sequence[HeadRank],
    layers: Sequence[LayerRank],
    covariance: InputCovariance,
    patterns: PatternAsymmetry,
    factors: Mapping[int, Factors],
    reading: Reading,
    seeds: tuple[int, ...],
) -> tuple[list[HeadRank], list[LayerRank]]:
    """Add the data-aware ranks, their Gaussian controls and the patterns' asymmetries."""
    of_heads: dict[tuple[int, int], dict[str, Any]] = {}
    new_layers = []
    for row, item in enumerate(layers):
        mean, root = covariance.moments(row)
        own = factors[row].exact()
        weighted = [weigh(f, root, mean) for f in (own, *(random_factors(own, s) for s in seeds))]
        alone, *random = (product_ranks(f.W_Q, f.W_K, reading) for f in weighted)
        joined = [f.concatenated() for f in weighted]
        together, *of_draws = (product_ranks(f.W_Q, f.W_K, reading)[0] for f in joined)
        for index, (head, ranks) in enumerate(zip(item.heads, alone, strict=True)):
            asymmetry = patterns.mean(row, index)
            of_heads[item.layer, head] = {"qk_data": ranks, "pattern_asymmetry": asymmetry}
        control = None
        if alone:
            every = [ranks for draw in random for ranks in draw]
            control = DataControl(heads=average(every), layer=average(of_draws))
        new_layers.append(dataclasses.replace(item, qk_data=together, qk_data_control=control))
    new_heads = [dataclasses.replace(item, **of_heads[item.layer, item.head]) for item in heads]
    return new_heads, new_layers
