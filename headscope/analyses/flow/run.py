"""``headscope flow``: what heads read and pass on, where it goes, and whether it follows trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from headscope.analyses.classify.passes import corpus_for, stacks_for
from headscope.analyses.flow import outcome
from headscope.analyses.flow.options import FlowOptions
from headscope.analyses.flow.outcome import Found, Reader, measure
from headscope.analyses.flow.result import FlowResult, ValueControl
from headscope.core.errors import CorpusError
from headscope.core.serialise import SCHEMA
from headscope.data.examples import open_corpus
from headscope.models.copies import random_twin
from headscope.models.layouts.sites import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.ranks import MatrixRank
from headscope.stats.spectra import (
    Factors,
    Reading,
    average,
    layer_factors,
    product_ranks,
    random_factors,
)


def run(model: Model, options: FlowOptions) -> FlowResult:
    """Say what heads read and pass on, and what their attention looks like as a graph."""
    seed = options.seed
    given = open_corpus(options.corpus)
    opened = open_model(model, **options.loading)
    need_tokenizer(opened, "flow")
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    read = corpus_for(opened, given).sources
    (stack,) = stacks_for(opened, None, pairs=False)
    validation = require_valid(opened, options.validate)
    loaded = (opened.whole or opened).only(stack)
    reader = Reader(loaded, read, options.limit, options.tell)
    found = _measured(reader, loaded, seed, "model")
    twin = random_twin(loaded, seed) if options.control else None
    other = None if twin is None else _measured(reader, twin, seed, "control")
    width = max((site.weights().W_V.shape[-1] for site in loaded.sites if site.n_heads), default=0)
    unknown = outcome.not_measured(found, other, width)
    spectra = {
        "gaussian": gaussian_controls(loaded.sites, range(seed, seed + options.control_seeds))
    }
    if twin is not None:
        spectra["fresh"] = untrained(twin.sites)
    return FlowResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=read),
        validation=validation,
        sentences=outcome.sentences(reader, found),
        heads=outcome.heads(loaded.sites, head_spectra(loaded.sites), found, unknown),
        spectra=spectra,
        recovery=outcome.mean_recovery(found.held, unknown),
        over_directions=outcome.over(found.held, "whole", "directions", unknown),
        graph=outcome.graph(found),
        trees=outcome.trees(loaded.sites, found.search),
        control=None if other is None else outcome.control(found, other, seed, unknown),
        over_gaussian=outcome.over(found.held, "value", "gaussian", unknown),
        token_over_directions=outcome.over(found.held, "token", "token_directions", unknown),
        not_measured=unknown,
    )


def _measured(reader: Reader, loaded: LoadedModel, seed: int, name: str) -> Found:
    found = measure(reader, loaded, seed, name, every_tree=name == "model")
    if found is None:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that heads are chosen on (every other "
            "one, from the first on) could be read: each is longer than the model's limit or has "
            "a word that yields no piece."
        )
    return found


Spectra = Mapping[str, Sequence[MatrixRank]]  # By matrix, ``w_v`` and ``ov``: one entry a head.


def head_spectra(sites: Iterable[AttentionSite]) -> list[Spectra]:
    """Measure every head of every layer; layers that share all weights are measured once."""
    known: dict[object, Spectra] = {}
    found = []
    for site in sites:
        if site.projections not in known:
            known[site.projections] = _spectra(layer_factors(site.weights()))
        found.append(known[site.projections])
    return found


def _spectra(factors: Factors) -> Spectra:
    """Read W_V, and W_V W_O, of every head of a layer."""
    if not factors.n_heads:
        return {"w_v": [], "ov": []}
    d_v = factors.W_V.shape[-1]
    eye = torch.eye(d_v, dtype=torch.float64).expand(factors.n_heads, d_v, d_v)
    # The singular values of W_V are those of W_V I^T.
    return {
        "w_v": product_ranks(factors.W_V, eye, Reading()),
        "ov": product_ranks(factors.W_V, factors.W_O_T, Reading()),
    }


def gaussian_controls(
    sites: Iterable[AttentionSite], seeds: Sequence[int]
) -> tuple[ValueControl, ...]:
    """Average factors of i.i.d. Gaussian entries, for every shape that layers have."""
    shapes: dict[tuple[int, ...], Factors] = {}
    for site in sites:
        if site.n_heads:
            factors = layer_factors(site.weights())
            shapes.setdefault((*factors.W_V.shape[1:], factors.W_O_T.shape[1]), factors.first(1))
    return tuple(
        _averaged([_spectra(random_factors(like, seed)) for seed in seeds], like.W_V.shape[-1])
        for like in shapes.values()
    )


def untrained(sites: Sequence[AttentionSite]) -> tuple[ValueControl, ...]:
    """Average the heads of an untrained model, for every width of its values."""
    by_width: dict[int, list[Spectra]] = {}
    for site, spectra in zip(sites, head_spectra(sites), strict=True):
        if site.n_heads:
            by_width.setdefault(site.weights().W_V.shape[-1], []).append(spectra)
    return tuple(_averaged(spectra, width) for width, spectra in by_width.items())


def _averaged(draws: Sequence[Spectra], width: int) -> ValueControl:
    joined = {name: [one for draw in draws for one in draw[name]] for name in ("w_v", "ov")}
    return ValueControl(width, average(joined["w_v"]), average(joined["ov"]))
