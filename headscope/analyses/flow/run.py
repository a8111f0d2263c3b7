"""``headscope flow``: how much of what heads read they pass on.

Two things are measured. From a head's output z, linear maps recover what the head read: they are
fitted on one half of the sentences and judged by R^2 on the other
(:mod:`~headscope.analyses.flow.passes`). And the spectra of W_V and W_V W_O are taken, whose
effective rank says how many of d_head dimensions a head uses. :func:`run` is the whole command; its
helpers follow in the order of use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from headscope.analyses.classify.corpus_batches import stacks_for
from headscope.analyses.flow import SENTENCES, WIDTH_OF_SENTENCES, FlowOptions
from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.passes import Reader, TwoHalves, measure
from headscope.analyses.flow.recovery import TARGETS
from headscope.analyses.flow.result import (
    FlowControl,
    FlowResult,
    FlowSentences,
    HeadFlow,
    Recovery,
    ValueControl,
)
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import as_corpus
from headscope.data.long_texts import in_windows, left_out_notes
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid
from headscope.stats.estimate import Estimate
from headscope.stats.factors import Factors, layer_factors, random_factors
from headscope.stats.ranks import MatrixRank
from headscope.stats.spectra import RankSettings, average, product_ranks
from headscope.stats.statistics import crossed_mean

#: Tokens that a ridge map is fitted on, at least, for each number that it reads.
TOKENS_PER_PREDICTOR = 20
#: Where random weights clearly explain less than this, the maps overfit.
COLLAPSED = -0.05

#: R^2 by name, each a number for every head with how much each sentence pulls at it. The second
#: column is the same from as many random directions of what the head reads, in place of z::
#:
#:     from z   at random          what is recovered
#:     whole    directions         the mixture of states that the head reads
#:     token    token_directions   the state of the word that gets the largest weight
#:     value    gaussian           that state in the space that W_V (a Gaussian matrix) reads
#:     other    -                  the state of a random word, in the space that W_V reads
R2 = Mapping[str, Clustered]


def run(model: Model, options: FlowOptions) -> FlowResult:
    """Say how much of what heads read they pass on."""
    seed = options.seed
    # Open the model and the corpus, and prove that our attention is the model's
    corpus = as_corpus(options.corpus)
    opened = open_model(model, **options.loading)
    need_tokenizer(opened, "flow")
    if not opened.sites:  # no attention to choose a stack of: the certificate raises and says why
        require_valid(opened, options.validate)
    corpus = corpus_for(opened, corpus).sources
    if options.windows:
        corpus = in_windows(opened, corpus)
    # One stack is measured: of an encoder-decoder model its encoder.
    (stack,) = stacks_for(opened, None, pairs=False)
    # The certificate takes time, so it comes after all that may refuse the model or the corpus.
    validation = require_valid(opened, options.validate)
    loaded = opened.with_all_stacks.only(stack)

    # The model: maps, and the spectra of its heads
    widths = [site.weights().W_V.shape[-1] for site in loaded.sites if site.n_heads]
    width = max(widths, default=0)
    n_sentences = corpus.n_sentences
    if not options.full:
        limit = usual_sentences(width) if options.limit is None else options.limit
        n_sentences = min(n_sentences, limit)
    reader = Reader(
        loaded=loaded,
        corpus=corpus,
        n_sentences=n_sentences,
        spread=options.limit is None,  # evenly over the corpus; else the first sentences
        progress=options.tell,
    )
    halves = measure(reader, loaded, seed, "model")
    sentences = _sentences(reader, halves)
    layer_spectra = [_spectra(layer_factors(site.weights())) for site in loaded.sites]
    control_seeds = range(seed, seed + options.control_seeds)
    # Controls of these spectra: Gaussian matrices here, a model with random weights below
    control_spectra = {"gaussian": _gaussian_controls(loaded, control_seeds)}
    origin = provenance(
        loaded,
        command=options.command,
        seed=seed,
        data=corpus,
        warnings=left_out_notes(
            reader.skipped,
            n_sentences,
            corpus.name,
            loaded.max_length,
            windows=not (options.windows or corpus.has_trees),
        ),
    )

    # Random weights
    random_halves = None
    if options.control:
        # A model that was opened here is freed for its twin; one that the caller holds stays.
        opened_here = isinstance(model, str | Path)
        twin = random_twin(loaded, seed, instead=opened_here)
        random_halves = measure(reader, twin, seed, "control")
        twin_factors = (layer_factors(site.weights()) for site in twin.sites if site.n_heads)
        control_spectra["fresh"] = _controls(map(_spectra, twin_factors))

    # The result, without what the text is too short for
    missing = not_measured(
        tokens=halves.tokens,
        sentences=2 * halves.fitted_on,  # of both halves
        width=width,
        random=None if random_halves is None else random_halves.r2,
    )
    r2 = _without(halves.r2, missing)
    random_r2 = None
    if random_halves is not None:
        # Too few tokens are too few for random weights too; where these collapse, they tell why.
        too_short = halves.tokens < TOKENS_PER_PREDICTOR * width
        random_r2 = _without(random_halves.r2, missing if too_short else ())
    return FlowResult(
        schema=SCHEMA,
        provenance=origin,
        validation=validation,
        sentences=sentences,
        heads=_heads(loaded.sites, layer_spectra, r2),
        spectra=control_spectra,
        recovery=_mean_recovery(r2),
        over_directions=_gap(r2["whole"], r2["directions"]),
        control=None if random_r2 is None else _control(r2, random_r2, seed),
        over_gaussian=_gap(r2["value"], r2["gaussian"]),
        token_over_directions=_gap(r2["token"], r2["token_directions"]),
        not_measured=missing,
    )


def usual_sentences(width: int) -> int:
    """Return how many sentences are read by default, where the widest head has ``width`` numbers.

    Wider heads than 64 need more, for as many tokens for each of their numbers.
    """
    return math.ceil(SENTENCES * max(1.0, width / WIDTH_OF_SENTENCES))


def _without(r2: R2, names: Iterable[str]) -> R2:
    """Make some R^2 unknown."""
    left_out = set(names)
    return {
        name: heads_r2.unknown() if name in left_out else heads_r2 for name, heads_r2 in r2.items()
    }


def _sentences(reader: Reader, halves: TwoHalves) -> FlowSentences:
    """Say what the model read, and what was left out."""
    return FlowSentences(
        name=reader.corpus.name,
        chosen_on=halves.fitted_on,  # the result calls the halves by these names
        measured_on=halves.judged_on,
        repeated=reader.repeated,
        skipped=reader.skipped,
        note=reader.corpus.note,
        tokens=halves.tokens,
        words_left_out=reader.left_out,
    )


def not_measured(tokens: int, sentences: int, width: int, random: R2 | None) -> dict[str, str]:
    """Say which R^2 the text is too short for: name and reason.

    The maps were fitted on the ``tokens`` of half of the ``sentences``; ``width`` is the largest
    d_head; ``random`` are the R^2 with random weights, where these were measured.
    """
    needed = TOKENS_PER_PREDICTOR * width
    if tokens < needed:
        enough = math.ceil(needed / max(tokens, 1) * sentences)
        reason = (
            f"the maps are fitted on {tokens:,} tokens and need {TOKENS_PER_PREDICTOR} for "
            f"each of the {width} numbers that they read; give about {enough:,} sentences"
        )
        return dict.fromkeys(TARGETS, reason)
    if random is None:
        return {}
    reasons = {}
    for name, mean in vars(_mean_recovery(random)).items():  # in the order of its fields
        if mean.high is not None and mean.high < COLLAPSED:
            reasons[name] = (
                f"with random weights it is {mean.value:.2f}, surely below {COLLAPSED}: the maps "
                "follow what they were fitted on; give more sentences"
            )
    return reasons


# --- spectra --------------------------------------------------------------------------------------

#: Singular values and ranks of the matrices ``w_v`` and ``ov`` of a layer: one entry for each head.
Spectra = Mapping[str, Sequence[MatrixRank]]


def _spectra(factors: Factors) -> Spectra:
    """Take the spectra of W_V, and of W_V W_O, of every head of a layer."""
    if not factors.n_heads:
        return {"w_v": [], "ov": []}
    d_v = factors.W_V.shape[-1]
    eye = torch.eye(d_v, dtype=torch.float64).expand(factors.n_heads, d_v, d_v)
    # The singular values of W_V are those of W_V I^T.
    return {
        "w_v": product_ranks(factors.W_V, eye, RankSettings()),
        "ov": product_ranks(factors.W_V, factors.W_O_T, RankSettings()),
    }


def _gaussian_controls(loaded: LoadedModel, seeds: Iterable[int]) -> tuple[ValueControl, ...]:
    """Average the spectra of random factors of each width of values that the model has."""
    site_by_width = {site.weights().W_V.shape[-1]: site for site in loaded.sites if site.n_heads}
    layers = []
    for site in site_by_width.values():
        one_head = layer_factors(site.weights()).first(1)
        layers += [_spectra(random_factors(one_head, seed)) for seed in seeds]
    return _controls(layers)


def _controls(layers: Iterable[Spectra]) -> tuple[ValueControl, ...]:
    """Average the heads of random layers, for every width d_v of their values."""
    w_v: dict[int, list[MatrixRank]] = {}
    ov: dict[int, list[MatrixRank]] = {}
    for spectra in layers:
        d_v = len(spectra["w_v"][0].singular_values)
        w_v.setdefault(d_v, []).extend(spectra["w_v"])
        ov.setdefault(d_v, []).extend(spectra["ov"])
    return tuple(ValueControl(d_v, average(w_v[d_v]), average(ov[d_v])) for d_v in w_v)


# --- heads ----------------------------------------------------------------------------------------


def _heads(
    sites: Sequence[AttentionSite], layer_spectra: Sequence[Spectra], r2: R2
) -> tuple[HeadFlow, ...]:
    """Make the result row of every head, in the order of layer and head."""
    estimates = {name: heads_r2.estimates() for name, heads_r2 in r2.items()}
    rows: list[HeadFlow] = []
    for site, spectra in zip(sites, layer_spectra, strict=True):
        for i, head in enumerate(site.head_ids):
            w_v = spectra["w_v"][i]
            number = len(rows)  # of this head among all
            recovery = {name: heads_r2[number] for name, heads_r2 in estimates.items()}
            row = HeadFlow(
                layer=site.layer,
                head=head,
                stack=site.stack,
                d_head=len(w_v.singular_values),
                w_v=w_v,
                ov=spectra["ov"][i],
                recovery=Recovery(**recovery),
            )
            rows.append(row)
    return tuple(rows)


# --- the model, and random weights ----------------------------------------------------------------


def _mean_recovery(r2: R2) -> Recovery:
    """Average every R^2 over heads."""
    return Recovery(**{name: heads_r2.mean().estimate() for name, heads_r2 in r2.items()})


def _gap(r2: Clustered, control: Clustered) -> Estimate:
    """Return how much more z recovers than the control does, mean over the control's heads.

    The control has a number for each head, from random directions or random weights; ``r2`` has one
    for each head too, or a single one for all, such as the mean of the model's heads. Every head
    has its own random directions, so the differences between heads widen the interval.
    """
    gap = r2 - control
    known = np.isfinite(gap.value)
    if known.sum() < 2:
        return Estimate(gap.mean().estimate().value)
    # A sentence's influence is how much it pulls at the gap of each head. So these are values of
    # single sentences, whose mean is the gap of each head: [sentences, heads]
    by_sentence = gap.value + gap.influence
    return crossed_mean(by_sentence[:, known]).estimate()


def _control(r2: R2, random: R2, seed: int) -> FlowControl:
    """Compare the mean of the model's heads with each head of random weights."""
    gain = {name: _gap(r2[name].mean(), heads_r2) for name, heads_r2 in random.items()}
    return FlowControl(seed=seed, recovery=_mean_recovery(random), gain=Recovery(**gain))
