"""``headscope flow``: what heads read and pass on, where it goes, and whether it follows trees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from headscope.analyses.classify.passes import stacks_for
from headscope.analyses.flow.options import SENTENCES, FlowOptions
from headscope.analyses.flow.passes import Reader, Sums, measure
from headscope.analyses.flow.recovery import TARGETS, Clustered, HeldOut
from headscope.analyses.flow.result import (
    ChosenTrees,
    FlowControl,
    FlowResult,
    FlowSentences,
    Graph,
    HeadFlow,
    HeadGraph,
    HeadTrees,
    Hub,
    Recovery,
    Trees,
    ValueControl,
)
from headscope.analyses.flow.trees import BASELINES, DIRECTIONS, TreeSearch
from headscope.core.accumulator import Array
from headscope.core.heads import head_name
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import as_corpus
from headscope.models.layouts.layout import AttentionSite
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.ranks import MatrixRank
from headscope.stats.spectra import (
    Factors,
    Reading,
    average,
    layer_factors,
    product_ranks,
    random_factors,
)
from headscope.stats.statistics import finite, t_half_width

#: Tokens that a ridge map is fitted on, at least, for each number that it reads.
TOKENS_PER_PREDICTOR = 20
#: Where random weights clearly explain less than this, the maps overfit.
COLLAPSED = -0.05
#: Hubs that are listed, at most, and the sentences that one must stand in to be chosen.
HUBS, HUB_SENTENCES = 12, 8


def run(model: Model, options: FlowOptions) -> FlowResult:
    """Say what heads read and pass on, and what their attention looks like as a graph."""
    seed = options.seed
    corpus = as_corpus(options.corpus)
    opened = open_model(model, **options.loading)
    need_tokenizer(opened, "flow")
    if not opened.sites:  # the certificate says why
        require_valid(opened, options.validate)
    corpus = corpus_for(opened, corpus).sources
    (stack,) = stacks_for(opened, None, pairs=False)
    validation = require_valid(opened, options.validate)
    loaded = (opened.whole or opened).only(stack)
    total = corpus.n_sentences
    count = min(total, total if options.full else options.limit or SENTENCES)
    reader = Reader(loaded, corpus, count, options.limit is None, options.tell)
    sums = measure(reader, loaded, seed, "model")
    sentences = FlowSentences(
        name=corpus.name,
        chosen_on=len(sums.chosen.top),
        measured_on=len(sums.hubs.top),
        repeated=reader.repeated,
        skipped=reader.skipped,
        note=corpus.note,
        tokens=sums.tokens,
    )
    # Values of each width have random factors of their own beside them.
    shapes = {site.weights().W_V.shape[-1]: site for site in loaded.sites if site.n_heads}
    likes = [(d_v, layer_factors(site.weights()).first(1)) for d_v, site in shapes.items()]
    seeds = range(seed, seed + options.control_seeds)
    spectra = {
        "gaussian": _controls(
            (d_v, _spectra(random_factors(f, s))) for d_v, f in likes for s in seeds
        )
    }
    of_heads = _head_spectra(loaded.sites)
    origin = provenance(loaded, command=options.command, seed=seed, data=corpus)
    random = None
    if options.control:
        twin = random_twin(loaded, seed, instead=isinstance(model, str | Path))
        random = measure(reader, twin, seed, "control", every_tree=False)
        of_twin = zip(twin.sites, _head_spectra(twin.sites), strict=True)
        spectra["fresh"] = _controls(
            (site.weights().W_V.shape[-1], ranks) for site, ranks in of_twin if site.n_heads
        )
    recovery = sums.recovery
    recovery.not_measured = not_measured(sums, random, max(shapes, default=0))
    return FlowResult(
        schema=SCHEMA,
        provenance=origin,
        validation=validation,
        sentences=sentences,
        heads=_heads(loaded.sites, of_heads, sums),
        spectra=spectra,
        recovery=_mean_recovery(recovery),
        over_directions=_over(recovery, "whole", "directions"),
        graph=_graph(sums),
        trees=_trees(loaded.sites, sums.search),
        control=None if random is None else _control(sums, random, seed),
        over_gaussian=_over(recovery, "value", "gaussian"),
        token_over_directions=_over(recovery, "token", "token_directions"),
        not_measured=recovery.not_measured,
    )


def not_measured(sums: Sums, random: Sums | None, width: int) -> dict[str, str]:
    """Say which R^2 the text is too short for, and why; ``width`` is the largest d_head."""
    needed = TOKENS_PER_PREDICTOR * width
    if sums.tokens < needed:
        enough = math.ceil(needed / max(sums.tokens, 1) * 2 * len(sums.chosen.top))
        reason = (
            f"the maps are fitted on {sums.tokens:,} tokens and need {TOKENS_PER_PREDICTOR} for "
            f"each of the {width} numbers that they read; give about {enough:,} sentences"
        )
        return dict.fromkeys(TARGETS, reason)
    if random is None:
        return {}
    return {
        target: f"with random weights it is {r2.value:.2f}, surely below {COLLAPSED}: the maps "
        "follow what they were fitted on; give more sentences"
        for target, r2 in vars(_mean_recovery(random.recovery)).items()
        if r2.high is not None and r2.high < COLLAPSED
    }


# --- spectra --------------------------------------------------------------------------------------

Spectra = Mapping[str, Sequence[MatrixRank]]  # By matrix, ``w_v`` and ``ov``: one entry a head.


def _head_spectra(sites: Iterable[AttentionSite]) -> list[Spectra]:
    """Measure every head of every layer; layers that share all weights are measured once."""
    measured: dict[object, Spectra] = {}
    for site in (sites := list(sites)):
        if site.projections not in measured:
            measured[site.projections] = _spectra(layer_factors(site.weights()))
    return [measured[site.projections] for site in sites]


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


def _controls(layers: Iterable[tuple[int, Spectra]]) -> tuple[ValueControl, ...]:
    """Average the heads of random layers, for every width of their values."""
    by_width: dict[int, list[Spectra]] = {}
    for d_v, spectra in layers:
        by_width.setdefault(d_v, []).append(spectra)
    return tuple(
        ValueControl(
            d_v, *(average([rank for layer in every for rank in layer[k]]) for k in ("w_v", "ov"))
        )
        for d_v, every in by_width.items()
    )


# --- heads ----------------------------------------------------------------------------------------


def _heads(
    sites: Sequence[AttentionSite], every: Sequence[Spectra], sums: Sums
) -> tuple[HeadFlow, ...]:
    """Put together what was measured of every head."""
    r2 = [sums.recovery.explained(target).estimates() for target in TARGETS]
    recovered = [Recovery(**dict(zip(TARGETS, row, strict=True))) for row in zip(*r2, strict=True)]
    names = sums.chosen.most_frequent()
    top, hit, chance = (
        Clustered.mean_of(rows, len(names)).estimates()
        for rows in (sums.hubs.top, sums.hubs.hit, sums.hubs.chance)
    )
    trees = _trees_by_head(sums.search, len(names))
    heads = [
        (site, head, spectra["w_v"][i], spectra["ov"][i])
        for site, spectra in zip(sites, every, strict=True)
        for i, head in enumerate(site.head_ids)
    ]
    return tuple(
        HeadFlow(
            layer=site.layer,
            head=head,
            stack=site.stack,
            d_head=len(w_v.singular_values),
            w_v=w_v,
            ov=ov,
            recovery=recovered[n],
            graph=HeadGraph(top[n], names[n], hit[n], chance[n].value),
            trees=trees[n],
        )
        for n, (site, head, w_v, ov) in enumerate(heads)
    )


def _trees_by_head(search: TreeSearch | None, n_heads: int) -> Sequence[HeadTrees | None]:
    if search is None or not search.counts.words:
        return [None] * n_heads
    every, no_punct = (
        search.counts.attachment("heads", punctuation=side).estimates() for side in (True, False)
    )
    first = search.first.total("heads")
    return [
        HeadTrees(
            DIRECTIONS[int(first[head + n_heads] > first[head])],
            {name: every[head + k * n_heads] for k, name in enumerate(DIRECTIONS)},
            {name: no_punct[head + k * n_heads] for k, name in enumerate(DIRECTIONS)},
        )
        for head in range(n_heads)
    ]


# --- the model, and random weights ----------------------------------------------------------------


def _mean_recovery(recovery: HeldOut) -> Recovery:
    """Average over heads."""
    return Recovery(**{name: recovery.explained(name).mean().estimate() for name in TARGETS})


def _over(recovery: HeldOut, target: str, random: str) -> Estimate:
    """Return what z recovers minus what random directions do, mean over heads.

    Each head has random directions of its own, so the spread over heads counts as well.
    """
    mine, other = recovery.explained(target), recovery.explained(random)
    return _with_spread(mine.mean() - other.mean(), mine.value - other.value)


def _with_spread(gap: Clustered, drawn: Array) -> Estimate:
    """Widen the interval of a gap by the uncertainty of the mean of the random draws."""
    value, half = float(gap.value[0]), float(gap.half_width()[0])
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < 2:
        return Estimate.around(finite(value))
    error = float(drawn.std(ddof=1)) / math.sqrt(len(drawn))
    spread = float(t_half_width(error, np.array(len(drawn))))
    return Estimate.around(finite(value), finite(math.hypot(half, spread)))


def _graph(sums: Sums) -> Graph:
    """Average the heads' shares, and list the hubs."""
    hubs, sentences = [], len(sums.hubs.top)
    for name in sums.chosen.most(HUBS, HUB_SENTENCES):
        received, even, ratio, error, count = sums.hubs.of(name)
        if count:
            half = t_half_width(error, np.array(sentences))
            value = Estimate.around(finite(ratio), finite(float(half)))
            hubs.append(Hub(name, received, even, value, count))
    even_share = Clustered.mean_of(sums.hubs.even, 1).estimate().value
    return Graph(_top_share(sums), even_share, tuple(hubs))


def _top_share(sums: Sums) -> Estimate:
    n_heads = len(sums.chosen.most_frequent())
    return Clustered.mean_of(sums.hubs.top, n_heads).mean().estimate()


def _trees(sites: Sequence[AttentionSite], search: TreeSearch | None) -> Trees | None:
    """Describe what was chosen on the first half, and how it scores on the second."""
    if search is None or not search.chosen or not search.counts.words:
        return None
    names = [head_name(s.layer, head, s.stack) for s in sites for head in s.head_ids]
    named = [(name, direction) for direction in DIRECTIONS for name in names]
    counts, strongest = search.counts, search.baseline(search.strongest)

    def chosen(name: str, heads: Sequence[int]) -> ChosenTrees:
        uas, swapped = counts.attachment(name), UNKNOWN
        if search.swapped.words:
            swapped = search.swapped.attachment(name).estimate()
        return ChosenTrees(
            heads=tuple(named[c] for c in heads),
            uas=uas.estimate(),
            uas_no_punct=counts.attachment(name, punctuation=False).estimate(),
            over_baseline=(uas - strongest).estimate(),
            swapped=swapped,
        )

    every, no_punct = (
        {name: search.baseline(name, punctuation=side).estimate() for name in BASELINES}
        for side in (True, False)
    )
    return Trees(
        best=chosen("best", (search.best,)),
        combination=chosen("combination", search.chosen),
        baselines=every,
        baselines_no_punct=no_punct,
        offset=search.offset.removeprefix("offset "),
        strongest=search.strongest,
    )


def _control(sums: Sums, random: Sums, seed: int) -> FlowControl:
    """Compare the model with random weights, sentence by sentence.

    The control's heads are draws of random weights, so the spread between them counts as well.
    """
    gain = {}
    for target in TARGETS:
        mine, other = sums.recovery.explained(target), random.recovery.explained(target)
        gain[target] = _with_spread(mine.mean() - other.mean(), other.value)
    best = combination = None
    search = random.search
    if search is not None and search.chosen and search.counts.words:
        best, combination = (
            search.counts.attachment(name).estimate() for name in ("best", "combination")
        )
    return FlowControl(
        seed=seed,
        recovery=_mean_recovery(random.recovery),
        gain=Recovery(**gain),
        top_share=_top_share(random),
        best_uas=best,
        combination_uas=combination,
    )
