"""From sums to labelled heads: scores, intervals, tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads. Syntactic labels have a stricter rule of their own: ``syntactic.py``.

Of cross-attention, ``monotonic`` and ``anti_monotonic`` need an interval of the alignment that lies
wholly beyond the threshold, and a confidence well above that of uniform attention: otherwise nearly
even attention, whose largest weight creeps along with the position, earns the role with random
weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from headscope.analyses.classify.cross import FEWEST, CrossHeads
from headscope.analyses.classify.options import Thresholds
from headscope.analyses.classify.result import (
    AlignmentScore,
    HeadResult,
    Label,
    PositionalScore,
    RareScore,
    SharpnessScore,
    SwappedControl,
)
from headscope.analyses.classify.rows import LONG, OFFSETS, QueryMeans
from headscope.analyses.classify.sums import HeadMeasures, Positional, Rare
from headscope.analyses.classify.syntactic import KernelHits, SyntacticTest, judge_syntactic
from headscope.core.accumulator import Array
from headscope.core.roles import primary_of, roles_of
from headscope.core.rounding import FRACTION, above, tied
from headscope.stats.statistics import (
    adjust,
    binomial_p,
    finite,
    normal_interval,
    normal_p,
    t_half_width,
    wilson,
)

Place = tuple[int, int]  # (layer, position among the heads of the layer)
#: One head on one kind of role: the field of a HeadResult for its score (empty: none), the score,
#: and the labels that it earns.
Judged = tuple[Place, str, Any, list[Label]]
#: What the heads of each layer are called: original indices, with gaps where heads were removed.
HeadIds = Sequence[Sequence[int]]

#: Pairs that the roles of cross-attention need; those of a few would earn them by luck.
MIN_PAIRS = 50
MIN_LONG = 50  # Sequences of LONG tokens or more that the broad role needs.
#: The roles that are a mean over queries above a threshold and above uniform attention: the
#: quantity, the threshold, and whether a mean equal to the threshold is enough.
MEAN_RULES = {
    "special": ("special_mass", "special", False),
    "punctuation": ("punctuation_mass", "punctuation", False),
    "broad": ("long_entropy", "broad_relative", False),
    "self": ("self_rate", "self", True),
    "duplicate": ("duplicate_rate", "duplicate", True),
}
#: Fields of a HeadResult that not every stack fills.
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("positional", "rare", "punctuation_mass", "self_rate", "duplicate_rate")),
    "syntactic": (),
}


def judge(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    head_ids: HeadIds,
    stack: str = "encoder",
    *,
    kernel: KernelHits | None = None,
    swapped: HeadMeasures | CrossHeads | None = None,
) -> tuple[HeadResult, ...]:
    """Turn the sums of a stack into one :class:`HeadResult` per head, by layer and head.

    ``kernel`` is what the heads' distance kernels hit of the trials in ``sums.syntactic``; only an
    encoder has syntactic and rare-word scores: the head of a word, and the rarest word, may stand
    where a decoder's query cannot look. ``swapped`` are the sums of cross-attention in which each
    target was given another pair's source.
    """
    means = sums if isinstance(sums, CrossHeads) else sums.profile
    exists = _existing(means.sums.shape[:2], head_ids)
    if isinstance(sums, CrossHeads):
        other = swapped if isinstance(swapped, CrossHeads) else None
        kinds = [_order(sums, other, exists, thresholds), _sharp(sums, exists, thresholds)]
    else:
        kinds = [_positional(sums.positional, exists, thresholds)]
        if kernel is not None:
            tests = judge_syntactic(sums.syntactic, kernel, exists, thresholds)
            kinds.append(_syntactic(tests, exists))
        if stack == "encoder":
            kinds.append(_rare(sums.rare, exists, thresholds))
    values = means.means()
    pictures = sums.mean_pattern.pictures() if not isinstance(sums, CrossHeads) else None
    fields, labels = {}, defaultdict[Place, list[Label]](list)
    for place in _places(exists):
        numbers = dict(zip(means.quantities, map(finite, values[place]), strict=True))
        numbers.pop("diagonal", None)  # the alignment holds it already
        fields[place] = _EMPTY | numbers
    for place, name, score, earned in chain(*kinds, _means(means, exists, thresholds, stack)):
        fields[place] |= {name: score} if name else {}
        labels[place] += earned
    results = []
    for place in fields:
        layer, head = place
        roles = tuple(dict.fromkeys(label.role for label in labels[place]))
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][head],
                stack=stack,
                primary=primary_of(roles),
                roles=roles,
                labels=tuple(labels[place]),
                mean_pattern=pictures[layer][head] if pictures else "",
                **fields[place],
            )
        )
    return tuple(results)


def judge_swapped(
    sums: HeadMeasures, kernel: KernelHits, thresholds: Thresholds, head_ids: HeadIds
) -> SwappedControl:
    """Count the syntactic labels against other sentences' trees: false positives, all of them.

    ``kernel`` counts hits of the trials in ``sums.swapped``.
    """
    exists = _existing(sums.positional.hits.shape[:2], head_ids)
    tests = judge_syntactic(sums.swapped, kernel, exists, thresholds)
    confirmed = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    return SwappedControl(int(confirmed.sum()), int(confirmed.any(axis=0).sum()))


def _existing(shape: tuple[int, ...], head_ids: HeadIds) -> Array:
    """Return which entries of sums of this shape, (n_layers, n_heads), belong to a head."""
    exists = np.zeros(shape, dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


def _places(exists: Array) -> list[Place]:
    return [(layer, head) for layer, head in np.argwhere(exists).tolist()]


def _at(interval: tuple[Array, ...], place: Place) -> tuple[float, ...]:
    return tuple(float(end[place]) for end in interval)


def _positional(sums: Positional, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the best offset of every head, against looking at any content token at random."""
    rates, masses = sums.rates(), sums.masses()
    best = np.nan_to_num(rates, nan=-1.0).argmax(axis=-1)
    hits = np.take_along_axis(sums.hits, best[..., None], -1)[..., 0]
    queries = sums.queries[best]
    interval = wilson(hits, queries)
    chance = float(sums.chance / sums.content) if sums.content else 0.0
    # The best of ten offsets is taken: Bonferroni within the head.
    p = adjust(np.minimum(1.0, len(OFFSETS) * binomial_p(hits, queries, chance)), exists)
    defined = bool((sums.queries > 0).any())
    for place in _places(exists):
        offset, rate = OFFSETS[best[place]], finite(rates[place][best[place]])
        rate_by_offset, mass_by_offset = (
            {str(r): finite(value) for r, value in zip(OFFSETS, values[place], strict=True)}
            for values in (rates, masses)
        )
        score = PositionalScore(
            score=rate,
            offset=offset if defined else None,
            rates=rate_by_offset,
            mass=mass_by_offset,
            interval=_at(interval, place),
            chance=chance if defined else None,
            p_adjusted=float(p[place]),
        )
        labels = []
        enough = rate is not None and rate >= thresholds.positional and rate > chance
        if rate is not None and enough and score.p_adjusted <= thresholds.q:
            numbers = (rate, chance, score.interval, score.p_adjusted, "chance")
            labels = [Label("positional", f"{offset:+d}", *numbers)]
        yield place, "positional", score, labels


def _syntactic(tests: Sequence[SyntacticTest], exists: Array) -> Iterator[Judged]:
    """Gather every head's relations; its labels come with the largest gain first."""
    for place in _places(exists):
        scores, labels = tuple(test.score(place) for test in tests), []
        confirmed = [(s, s.confirmed) for s in scores if s.labelled and s.confirmed]
        gains = tied([on_half.gain for _, on_half in confirmed])
        for i in np.argsort(-gains, kind="stable").tolist():
            score, c = confirmed[i]
            numbers = (c.accuracy, c.baselines[c.strongest], c.interval, c.p_adjusted, c.strongest)
            detail = f"{score.relation} {score.direction}"
            labels.append(Label("syntactic", detail, *numbers))
        yield place, "syntactic", scores, labels


def _rare(sums: Rare, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the rarest-word rate of every head against chance and uniform attention."""
    n = max(int(sums.queries), 1)
    rates, two_rarest = sums.hits / n, sums.two_hits / n
    chance, uniform = (sums.expected / n).tolist()
    null = sums.null_hits / (float(sums.null_queries) or 1.0)
    rate_errors, *gain_errors = sums.errors()
    interval = tuple(end.clip(0.0, 1.0) for end in normal_interval(rates, rate_errors))
    baselines = zip((chance, uniform), gain_errors, strict=True)
    worst = np.max([normal_p(rates, error, baseline) for baseline, error in baselines], axis=0)
    p = adjust(worst, exists)
    defined = int(sums.queries) > 0
    for place in _places(exists):
        rate = float(rates[place])
        score = RareScore(
            rate=rate if defined else None,
            two_rarest=float(two_rarest[place]) if defined else None,
            chance=chance if defined else None,
            queries=int(sums.queries),
            null=float(null[place]) if defined else None,
            uniform=uniform if defined else None,
            interval=_at(interval, place),
            p_adjusted=float(p[place]),
            sentences=int(sums.sentences),
        )
        baseline, against = max((uniform, "uniform"), (chance, "chance"))
        enough = rate >= thresholds.rare and rate - uniform >= thresholds.rare_gain - FRACTION
        labels = []
        if defined and enough and rate > baseline and score.p_adjusted <= thresholds.q:
            numbers = (rate, baseline, score.interval, score.p_adjusted, against)
            labels = [Label("rare", "", *numbers)]
        yield place, "rare", score, labels


def _alignment(sums: CrossHeads) -> tuple[Array, tuple[Array, Array]]:
    """Return mean alignments and their intervals; an unknown interval is all of [-1, 1]."""
    mean, error = sums.alignments()
    half = np.nan_to_num(t_half_width(error, sums.units), nan=np.inf, posinf=np.inf)
    centre = np.nan_to_num(mean)
    return mean, ((centre - half).clip(-1.0, 1.0), (centre + half).clip(-1.0, 1.0))


def _order(
    sums: CrossHeads, swapped: CrossHeads | None, exists: Array, thresholds: Thresholds
) -> Iterator[Judged]:
    """Judge the alignment of every cross-attention head, against no order at all."""
    (mean, interval), (_, error) = _alignment(sums), sums.alignments()
    # Either direction is a finding.
    both = 2 * normal_p(np.abs(mean), error, 0.0)
    p = adjust(np.nan_to_num(both, nan=1.0).clip(max=1.0), exists)
    diagonal, pairs = sums.mean("diagonal"), int(sums.units)
    gain = sums.mean("confidence") - sums.expected("confidence")
    with_swapped = None if swapped is None or not int(swapped.units) else _alignment(swapped)
    for place in _places(exists):
        score = AlignmentScore(
            score=finite(mean[place]),
            interval=_at(interval, place),
            p_adjusted=float(p[place]),
            swapped=finite(with_swapped[0][place]) if with_swapped else None,
            swapped_interval=_at(with_swapped[1], place) if with_swapped else (),
            constant=float(sums.constant[place]) / pairs if pairs else None,
            diagonal=finite(diagonal[place]),
            diagonal_uniform=finite(sums.expected("diagonal")),
            pairs=pairs,
        )
        (low, high), least, labels = score.interval, thresholds.monotonic, []
        tested = pairs >= MIN_PAIRS and score.p_adjusted <= thresholds.q
        beyond = gain[place] >= thresholds.monotonic_gain and max(low, -high) >= least
        if score.score is not None and tested and beyond:
            role = "monotonic" if score.score > 0 else "anti_monotonic"
            numbers = (score.score, 0.0, score.interval, score.p_adjusted, "no order")
            labels = [Label(role, "", *numbers)]
        yield place, "alignment", score, labels


def _sharp(sums: CrossHeads, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the confidence of every cross-attention head, against uniform attention."""
    mean, error = sums.mean("confidence"), sums.error("confidence")
    width = np.nan_to_num(error, nan=np.inf, posinf=np.inf)
    interval = tuple(end.clip(0.0, 1.0) for end in normal_interval(np.nan_to_num(mean), width))
    uniform = sums.expected("confidence")
    p = adjust(normal_p(mean, error, uniform), exists)
    for place in _places(exists):
        score = SharpnessScore(
            confidence=finite(mean[place]),
            interval=_at(interval, place),
            uniform=finite(uniform),
            p_adjusted=float(p[place]),
        )
        labels = []
        tested = sums.units >= MIN_PAIRS and score.p_adjusted <= thresholds.q
        beyond = score.interval[0] >= max(thresholds.sharp, uniform)
        if score.confidence is not None and tested and beyond:
            numbers = (score.confidence, uniform, score.interval, score.p_adjusted, "uniform")
            labels = [Label("sharp", "", *numbers)]
        yield place, "sharpness", score, labels


def _means(sums: QueryMeans, exists: Array, thresholds: Thresholds, stack: str) -> Iterator[Judged]:
    """Judge every head on every role that is a mean; the means themselves are fields already."""
    applying = {role.key for role in roles_of(stack)}
    for role, (quantity, threshold, reaching) in MEAN_RULES.items():
        if role not in applying or (role == "broad" and int(sums.long_units) < MIN_LONG):
            continue
        mean, error = sums.mean(quantity), sums.error(quantity)
        least = baseline = float(getattr(thresholds, threshold))
        against = "threshold"  # where nothing is broader than uniform
        if quantity in sums.baselines:
            baseline, against = float(np.nan_to_num(sums.expected(quantity))), "uniform"
        p = adjust(normal_p(mean, error, baseline), exists)
        interval = normal_interval(mean, error)
        details = np.full(mean.shape, "")
        if role == "special":
            details = which_special(*(sums.mean(f"{e}_special_mass") for e in ("first", "last")))
        passed = (mean >= least if reaching else mean > least) & (mean > baseline)
        for place in _places(exists & passed & (p <= thresholds.q)):
            numbers = (float(mean[place]), baseline, _at(interval, place), float(p[place]), against)
            yield place, "", None, [Label(role, str(details[place]), *numbers)]


def which_special(first: Array, last: Array) -> Array:
    """Say which special token has more of the mass: ``first`` or ``last``."""
    return np.where(above(first, last), "first", "last")


def untestable(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    *,
    trees: bool = False,
    stack: str = "encoder",
) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    "Not tested" is not "no head has it". ``trees`` says whether the corpus has gold trees; of the
    thresholds only ``min_trials`` counts. Roles that do not apply to the stack are not among them.
    """
    reasons: dict[str, tuple[bool, str]]  # Whether no head could, and why.
    if isinstance(sums, CrossHeads):
        pairs, long = int(sums.units), int(sums.long_units)
        few = f"{pairs} pairs have {FEWEST} tokens or more on both sides, fewer than {MIN_PAIRS}"
        ordered = dict.fromkeys(("monotonic", "anti_monotonic", "sharp"), (pairs < MIN_PAIRS, few))
        short = f"{long} sources have {LONG} tokens or more, fewer than {MIN_LONG}"
        no_special = not sums.expected("special_mass") > 0
        reasons = ordered | {
            "special": (no_special, "no source has a special token"),
            "broad": (long < MIN_LONG, short),
        }
    else:
        profile, long = sums.profile, int(sums.profile.long_units)
        uniform = dict(zip(profile.baselines, profile.uniform.tolist(), strict=True))
        duplicates = profile.queries[profile.quantities.index("duplicate_rate")]
        trials: dict[tuple[str, ...], list[int]] = {}
        counts = sums.syntactic.trials.tolist()
        for (half, *name), count in zip(sums.syntactic.relations.names, counts, strict=True):
            trials.setdefault(tuple(name), [0, 0])[half] = count
        asked = any(min(halves) >= thresholds.min_trials for halves in trials.values())
        no_relation = f"no relation has {thresholds.min_trials} trials in each half of the corpus"
        no_trees = "plain text has no gold trees (give a treebank)"
        no_rare = "fewer than two sentences have a rarest word outside the 500 most frequent"
        no_special_token = "the model adds no special tokens"
        if stack == "decoder":
            no_special_token = "no token sees a special one before it"
        short = f"{long} sequences have {LONG} tokens or more, fewer than {MIN_LONG}"
        reasons = {
            "positional": (not sums.positional.queries.any(), "no sentence has two tokens"),
            "syntactic": (not (trees and asked), no_relation if trees else no_trees),
            "rare": (int(sums.rare.sentences) < 2, no_rare),
            "special": (not uniform["special_mass"], no_special_token),
            "punctuation": (not uniform["punctuation_mass"], "no word is punctuation"),
            "broad": (long < MIN_LONG, short),
            "duplicate": (not duplicates, "no token occurs twice in a sentence"),
        }
    applying = {role.key for role in roles_of(stack)}
    return {role: why for role, (none, why) in reasons.items() if none and role in applying}
