"""``headscope flow``: what heads read and pass on, where it goes, and whether it follows trees."""

from __future__ import annotations

from typing import Any

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import AnyCorpus, open_corpus
from headscope.models.copies import random_twin
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.passes import corpus_for, stacks_for
from headscope.pipeline.flow import outcome
from headscope.pipeline.flow.halves import Found, Reader, measure
from headscope.pipeline.flow.value_spectra import gaussian_controls, head_spectra, untrained
from headscope.pipeline.validate import require_valid
from headscope.results.flow import FlowResult
from headscope.results.serialise import SCHEMA
from headscope.session.opening import Model, need_tokenizer, open_model, public_function
from headscope.session.parameters import check_limit, check_seed
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance

#: Sentences that a report reads: their intervals tell the model from its control.
REPORT_SENTENCES = 192


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"limit": REPORT_SENTENCES}


@public_function
def flow(
    model: Model,
    corpus: AnyCorpus = None,
    *,
    control: bool = True,
    control_seeds: int = 5,
    limit: int | None = None,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.flow",
    **options: Any,
) -> FlowResult:
    """Say how much of what heads read they pass on, and what their attention looks like as a graph.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    corpus : optional
        A ``.conllu`` treebank or a text file (one sentence a line), sentences in memory, or None
        for the built-in sample treebank; of pairs of source and target the sources are read.
        Without gold trees no trees are measured, and neither in a decoder, which cannot look at
        every word.
    control : bool
        Measure the same architecture with random weights too.
    control_seeds : int
        Draws of Gaussian factors that the control of the spectra averages.
    limit : int, optional
        Use only the first sentences.
    seed : int
        For everything that is drawn at random.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    FlowResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, corpus or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.flow("demo", limit=24, control=False)
    >>> len(result.heads), result.heads[0].d_head
    (72, 32)
    """
    check_limit(limit, "sentence")
    check_seed(seed)
    if control_seeds < 2:
        raise InputError(f"{control_seeds} control seeds tell no spread; give 2 or more.")
    given = open_corpus(corpus)
    opened = open_model(model, **options)
    need_tokenizer(opened, "flow")
    if not opened.sites:  # the certificate says why
        require_valid(opened, validate)
    read = corpus_for(opened, given).sources
    (stack,) = stacks_for(opened, None, pairs=False)
    validation = require_valid(opened, validate)
    loaded = (opened.whole or opened).only(stack)
    reader = Reader(loaded, read, limit, progress or silent)
    found = _measured(reader, loaded, seed, "model")
    twin = random_twin(loaded, seed) if control else None
    other = None if twin is None else _measured(reader, twin, seed, "control")
    width = max((site.weights().W_V.shape[-1] for site in loaded.sites if site.n_heads), default=0)
    unknown = outcome.not_measured(found, other, width)
    spectra = {"gaussian": gaussian_controls(loaded.sites, range(seed, seed + control_seeds))}
    if twin is not None:
        spectra["fresh"] = untrained(twin.sites)
    return FlowResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=read),
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
