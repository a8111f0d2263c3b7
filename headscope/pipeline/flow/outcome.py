"""From the sums of a run to the values of its result."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.flow.clustered import Clustered
from headscope.measures.flow.hubs import HubSums
from headscope.measures.flow.recovery import TARGETS, HeldOut
from headscope.measures.flow.tree_search import BASELINES, TreeSearch
from headscope.measures.flow.trees import DIRECTIONS
from headscope.measures.statistics import finite, t_half_width
from headscope.models.layouts import AttentionSite
from headscope.pipeline.flow.halves import Found, Reader
from headscope.results.estimated import Estimated
from headscope.results.flow import (
    ChosenTrees,
    FlowControl,
    FlowSentences,
    Graph,
    HeadFlow,
    HeadGraph,
    HeadTrees,
    Hub,
    Recovery,
    Trees,
)
from headscope.results.heads import head_name
from headscope.results.rank import MatrixRank

#: Tokens that a ridge map is fitted on, at least, for each number that it reads.
TOKENS_PER_PREDICTOR = 20
#: Where random weights surely explain less than this, maps follow what they were fitted on.
COLLAPSED = -0.05
#: Hubs that are listed, at most, and the sentences that one must stand in to be chosen.
HUBS, HUB_SENTENCES = 12, 8


def sentences(reader: Reader, found: Found) -> FlowSentences:
    """Say what was read."""
    return FlowSentences(
        name=reader.corpus.name,
        chosen_on=len(found.chosen.top),
        measured_on=len(found.hubs.top),
        repeated=reader.repeated,
        skipped=reader.skipped,
        note=reader.corpus.note,
        tokens=found.tokens,
    )


def not_measured(found: Found, other: Found | None, width: int) -> dict[str, str]:
    """Say which R^2 the text is too short for, and why; ``width`` is the largest d_head."""
    needed = TOKENS_PER_PREDICTOR * width
    if found.tokens < needed:
        enough = math.ceil(needed / max(found.tokens, 1) * 2 * len(found.chosen.top))
        reason = (
            f"the maps are fitted on {found.tokens:,} tokens and need {TOKENS_PER_PREDICTOR} for "
            f"each of the {width} numbers that they read; give about {enough:,} sentences"
        )
        return dict.fromkeys(TARGETS, reason)
    if other is None:
        return {}
    theirs = {target: _one(other.held.explained(target).mean()) for target in TARGETS}
    return {
        target: f"with random weights it is {r2.value:.2f}, surely below {COLLAPSED}: the maps "
        "follow what they were fitted on; give more sentences"
        for target, r2 in theirs.items()
        if r2.high is not None and r2.high < COLLAPSED
    }


def estimated(found: Clustered) -> list[Estimated]:
    """Turn numbers with their intervals into values; what is not finite is None."""
    pairs = zip(found.value, found.half_width(), strict=True)
    return [Estimated.around(finite(value), finite(half)) for value, half in pairs]


def _one(found: Clustered) -> Estimated:
    (only,) = estimated(found)
    return only


# --- heads --------------------------------------------------------------------------------------


def heads(
    sites: Sequence[AttentionSite],
    spectra: Sequence[Mapping[str, Sequence[MatrixRank]]],
    found: Found,
    left_out: Container[str],
) -> tuple[HeadFlow, ...]:
    """Put together what is known of every head, without the R^2 that are not measured."""
    recovery = {
        target: estimated(found.held.explained(target))
        for target in TARGETS
        if target not in left_out
    }
    penalties = {target: found.held.penalties(target) for target in recovery}
    unknown = {target: Estimated(None) for target in TARGETS}
    graphs = _graphs(found.hubs, found.chosen.most_frequent())
    of_trees = _trees_by_head(found.search, len(graphs))
    rows: list[HeadFlow] = []
    for site, matrices in zip(sites, spectra, strict=True):
        for i, head in enumerate(site.head_ids):
            place = len(rows)
            rows.append(
                HeadFlow(
                    layer=site.layer,
                    head=head,
                    stack=site.stack,
                    d_head=len(matrices["w_v"][i].singular_values),
                    w_v=matrices["w_v"][i],
                    ov=matrices["ov"][i],
                    recovery=Recovery(
                        **unknown | {name: found[place] for name, found in recovery.items()}
                    ),
                    graph=graphs[place],
                    trees=of_trees[place],
                    penalties={name: float(found[place]) for name, found in penalties.items()},
                )
            )
    return tuple(rows)


def _graphs(hubs: HubSums, names: Sequence[str]) -> list[HeadGraph]:
    n = len(names)
    top, hit, chance = (
        estimated(_mean_over_sentences(rows, n)) for rows in (hubs.top, hubs.hit, hubs.chance)
    )
    return [HeadGraph(top[i], name, hit[i], chance[i].value) for i, name in enumerate(names)]


def _mean_over_sentences(rows: Sequence[Array], n: int) -> Clustered:
    """Average (n,) numbers of every sentence; there may be no sentence."""
    return Clustered.ratio(np.reshape(rows, (len(rows), n)), np.ones((len(rows), 1)))


def _trees_by_head(search: TreeSearch | None, n_heads: int) -> list[HeadTrees | None]:
    if search is None or not search.counts.words:
        return [None] * n_heads
    scores = [
        estimated(search.counts.attachment("heads", punctuation=punctuation))
        for punctuation in (True, False)
    ]
    first = search.first.total("heads")
    return [
        HeadTrees(
            DIRECTIONS[int(first[head + n_heads] > first[head])],
            *(
                {name: uas[head + k * n_heads] for k, name in enumerate(DIRECTIONS)}
                for uas in scores
            ),
        )
        for head in range(n_heads)
    ]


# --- the model ----------------------------------------------------------------------------------


def mean_recovery(held: HeldOut, left_out: Container[str] = ()) -> Recovery:
    """Average over heads."""
    return Recovery(
        **{
            target: Estimated(None) if target in left_out else _one(held.explained(target).mean())
            for target in TARGETS
        }
    )


def over(held: HeldOut, target: str, random: str, left_out: Container[str]) -> Estimated:
    """Subtract from what z recovers what random directions do, mean over heads.

    Each head has random directions of its own, so the spread over heads counts as well.
    """
    if target in left_out or random in left_out:
        return Estimated(None)
    mine, theirs = held.explained(target), held.explained(random)
    return _with_spread(mine.mean() - theirs.mean(), mine.value - theirs.value)


def graph(found: Found) -> Graph:
    """Average the heads' shares, and list the hubs."""
    names = found.hubs.names
    listed = []
    for name in found.chosen.names.most(HUBS, HUB_SENTENCES):
        received, even, ratio, error, count = names.of(name)
        if count:
            half = t_half_width(error, np.array(names.sentences))
            value = Estimated.around(finite(ratio), finite(float(half)))
            listed.append(Hub(name, received, even, value, count))
    return Graph(
        top_share=_top_share(found),
        even_top_share=_one(_mean_over_sentences(found.hubs.even, 1)).value,
        hubs=tuple(listed),
    )


def _top_share(found: Found) -> Estimated:
    n_heads = len(found.chosen.most_frequent())
    return _one(_mean_over_sentences(found.hubs.top, n_heads).mean())


def trees(sites: Sequence[AttentionSite], search: TreeSearch | None) -> Trees | None:
    """Say what was chosen on the first half and what it is worth on the second."""
    if search is None or not search.chosen or not search.counts.words:
        return None
    names = [head_name(s.layer, head, s.stack) for s in sites for head in s.head_ids]
    named = [(name, direction) for direction in DIRECTIONS for name in names]
    plain = {name: _one(search.baseline(name)) for name in BASELINES}
    return Trees(
        best=_chosen(search, (named[search.best],), "best"),
        combination=_chosen(search, tuple(named[c] for c in search.chosen), "combination"),
        baselines=plain,
        baselines_no_punct={
            name: _one(search.baseline(name, punctuation=False)) for name in BASELINES
        },
        offset=search.offset.removeprefix("offset "),
        strongest=search.strongest,
    )


def _chosen(search: TreeSearch, chosen: tuple[tuple[str, str], ...], name: str) -> ChosenTrees:
    uas = search.counts.attachment(name)
    swapped = Estimated(None)
    if search.swapped.words:
        swapped = _one(search.swapped.attachment(name))
    return ChosenTrees(
        heads=chosen,
        uas=_one(uas),
        uas_no_punct=_one(search.counts.attachment(name, punctuation=False)),
        over_baseline=_one(uas - search.baseline(search.strongest)),
        swapped=swapped,
    )


def control(found: Found, other: Found, seed: int, left_out: Container[str]) -> FlowControl:
    """Hold the model against random weights, sentence by sentence."""
    best = combination = None
    search = other.search
    if search is not None and search.chosen and search.counts.words:
        best = _one(search.counts.attachment("best"))
        combination = _one(search.counts.attachment("combination"))
    gain = {
        target: Estimated(None) if target in left_out else _gain(found.held, other.held, target)
        for target in TARGETS
    }
    return FlowControl(
        seed=seed,
        recovery=mean_recovery(other.held),
        gain=Recovery(**gain),
        top_share=_top_share(other),
        best_uas=best,
        combination_uas=combination,
    )


def _gain(mine: HeldOut, other: HeldOut, target: str) -> Estimated:
    """Subtract the control's mean over heads from the model's.

    The control's heads are draws of random weights, so the spread between them counts as well.
    """
    theirs = other.explained(target)
    return _with_spread(mine.explained(target).mean() - theirs.mean(), theirs.value)


def _with_spread(gap: Clustered, drawn: Array) -> Estimated:
    """Make an interval of a gap wider by that of the mean of what was drawn at random."""
    value, half = float(gap.value[0]), float(gap.half_width()[0])
    known = drawn[np.isfinite(drawn)]
    if len(known) < 2:
        return Estimated.around(finite(value))
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    spread = float(t_half_width(error, np.array(len(known))))
    return Estimated.around(finite(value), finite(math.hypot(half, spread)))
