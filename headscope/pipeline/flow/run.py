"""``headscope flow``: what heads read and pass on, where it goes, and whether it follows trees."""

from __future__ import annotations

from headscope.analyses.flow.options import FlowOptions
from headscope.data.pair_corpus import PairCorpus
from headscope.errors import CorpusError
from headscope.models.control import random_twin
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.corpora import (
    corpus_for,
    open_corpus,
    stacks_for,
)
from headscope.pipeline.flow import outcome
from headscope.pipeline.flow.halves import Found, Reader, measure
from headscope.pipeline.flow.value_spectra import gaussian_controls, head_spectra, untrained
from headscope.pipeline.opening import Model, need_tokenizer, open_model
from headscope.pipeline.provenance import provenance
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA, FlowResult


def run(model: Model, options: FlowOptions) -> FlowResult:
    """Say what heads read and pass on, and what their attention looks like as a graph."""
    seed = options.seed
    given = open_corpus(options.corpus)
    opened = open_model(model, **options.loading)
    need_tokenizer(opened, "flow")
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    read = corpus_for(opened, given)
    read = read.sources if isinstance(read, PairCorpus) else read
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
