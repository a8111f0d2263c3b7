"""From sums to labelled heads: scores, intervals, tests, and the thresholds on top.

A label needs three things: the score reaches its threshold, it beats its baseline, and the
Benjamini-Hochberg adjusted p-value of that comparison is at most q. The family of the adjustment is
all heads. Syntactic labels have a stricter rule: ``syntactic.py``.

Of cross-attention, ``monotonic`` and ``anti_monotonic`` need an interval of the alignment that lies
wholly beyond the threshold, and a confidence well above that of uniform attention: otherwise nearly
even attention, whose largest weight creeps along with the position, earns the role with random
weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.result import (
    AlignmentScore,
    HeadResult,
    Label,
    PositionalScore,
    RareScore,
    SharpnessScore,
    SwappedControl,
)
from headscope.analyses.classify.rows import FEWEST, LONG, OFFSETS, QueryMeans
from headscope.analyses.classify.sums import HeadMeasures, Positional, Rare
from headscope.analyses.classify.syntactic import (
    Syntactic,
    SyntacticTest,
    judge_syntactic,
    why_untested,
)
from headscope.core.accumulator import Array
from headscope.core.roles import NO_ROLE, PAIR, Thresholds, registered_roles, roles_of
from headscope.core.rounding import FRACTION, above, tied
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.statistics import (
    FEWEST_UNITS,
    adjust,
    binomial_p,
    finite,
    ratio,
    share_interval,
    t_half_width,
    t_p,
    wilson,
)

Head = tuple[int, int]  # (layer, index among the heads of the layer)
#: One head on one kind of role: the field of a HeadResult for its score, the score, and the labels
#: that it earns.
Judged = tuple[Head, str, Any, list[Label]]
#: What the heads of each layer are called: original indices, with gaps where heads were removed.
HeadIds = Sequence[Sequence[int]]

#: Pairs that the roles of cross-attention need; those of a few would earn them by luck.
MIN_PAIRS = 50
MIN_LONG = 50  # Sequences of LONG tokens or more that the broad role needs.


@dataclass(frozen=True)
class _Numbers:
    """One number of every head and its test against a baseline; arrays are (n_layers, n_heads)."""

    values: Array  # NaN where undefined
    interval: tuple[Array, Array]
    p_adjusted: Array
    baseline: float = 0.0
    against: str = ""

    def at(self, head: Head) -> Estimate:
        """Return one head's number."""
        value, *ends = (finite(numbers[head]) for numbers in (self.values, *self.interval))
        return UNKNOWN if value is None else Estimate(value, *ends)

    def label(self, role: str, head: Head, detail: str = "") -> Label:
        """Return one head's label."""
        p = float(self.p_adjusted[head])
        return Label(role, detail, self.at(head), self.baseline, p, self.against)


def judge(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    head_ids: HeadIds,
    stack: str = "encoder",
    *,
    kernel: Array | None = None,
    swapped: HeadMeasures | CrossHeads | None = None,
    edges: Syntactic | None = None,
    labels: Sequence[str] = (),
) -> tuple[HeadResult, ...]:
    """Turn the sums of a stack into one :class:`HeadResult` per head, by layer and head.

    ``edges`` are the sums on trees or on a user's pairs with these ``labels``, and ``kernel`` is
    what the heads' distance kernels hit of their trials. No decoder has them, nor rare-word scores:
    the head of a word, and the rarest word, may stand where its query cannot look. ``swapped`` are
    the sums of cross-attention in which each target was given another pair's source.
    """
    means = sums if isinstance(sums, CrossHeads) else sums.profile
    exists = _existing(means.sums.shape[:2], head_ids)
    pictures: list[list[str]] | None = None
    if isinstance(sums, CrossHeads):
        other = swapped if isinstance(swapped, CrossHeads) else None
        kinds = [_order(sums, other, exists, thresholds), _sharp(sums, exists, thresholds)]
    else:
        pictures = sums.mean_pattern.pictures()
        kinds = [_positional(sums.positional, exists, thresholds)]
        if stack == "encoder":
            kinds.append(_rare(sums.rare, exists, thresholds))
    if edges is not None and kernel is not None:
        tests = judge_syntactic(edges, kernel, exists, thresholds)
        kinds.append(_syntactic(tests, exists, bool(labels)))
    kinds.append(_means(means, exists, thresholds, stack))
    # The alignment has a separate score; registered roles come with intervals.
    left_out = {"alignment", "diagonal", *(role.key for role in registered_roles())}
    fields: dict[Head, dict[str, Any]] = {}
    earned_at = defaultdict[Head, list[Label]](list)
    values = means.means()
    for head in _heads_in(exists):
        numbers = zip(means.quantities, values[head], strict=True)
        fields[head] = {name: finite(value) for name, value in numbers if name not in left_out}
    for head, name, score, earned in chain(*kinds):
        fields[head][name] = score
        earned_at[head] += earned
    results = []
    for (layer, index), scores in fields.items():
        labels_of_head = tuple(earned_at[layer, index])
        has = {label.role for label in labels_of_head}
        roles = tuple(role.key for role in roles_of(stack, labels=labels) if role.key in has)
        results.append(
            HeadResult(
                layer=layer,
                head=head_ids[layer][index],
                stack=stack,
                primary=roles[0] if roles else NO_ROLE.key,
                roles=roles,
                labels=labels_of_head,
                mean_pattern=pictures[layer][index] if pictures else "",
                **scores,
            )
        )
    return tuple(results)


def judge_swapped(
    swapped: Syntactic, kernel: Array, thresholds: Thresholds, head_ids: HeadIds
) -> SwappedControl:
    """Count the labels against other sentences' trees or pairs: false positives, all of them.

    ``kernel`` are the kernels' hits of the trials in ``swapped``.
    """
    exists = _existing(swapped.hits.shape[1:], head_ids)
    tests = judge_syntactic(swapped, kernel, exists, thresholds)
    confirmed = np.array([test.confirmed for test in tests]).reshape(-1, *exists.shape)
    return SwappedControl(int(confirmed.sum()), int(confirmed.any(axis=0).sum()))


def _existing(shape: tuple[int, ...], head_ids: HeadIds) -> Array:
    """Return which entries of sums of this shape, (n_layers, n_heads), belong to a head."""
    exists = np.zeros(shape, dtype=bool)
    for layer, ids in enumerate(head_ids):
        exists[layer, : len(ids)] = True
    return exists


def _heads_in(exists: Array) -> list[Head]:
    return [(layer, head) for layer, head in np.argwhere(exists).tolist()]


def _positional(sums: Positional, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the best offset of every head, against looking at any content token at random."""
    # (n_layers, n_heads, offsets); NaN where there is no query
    rates = ratio(sums.hits, sums.queries)
    masses = ratio(sums.mass, sums.mass_queries)
    best = np.nan_to_num(rates, nan=-1.0).argmax(axis=-1)
    hits, rate = (np.take_along_axis(x, best[..., None], -1)[..., 0] for x in (sums.hits, rates))
    queries = sums.queries[best]
    chance = float(sums.chance / sums.content) if sums.content else 0.0
    # The best of ten offsets is taken: Bonferroni within the head.
    p = adjust(np.minimum(1.0, len(OFFSETS) * binomial_p(hits, queries, chance)), exists)
    numbers = _Numbers(rate, wilson(hits, queries), p, chance, "chance")
    earned = (rate >= thresholds.positional) & (rate > chance) & (p <= thresholds.q)
    defined = bool((sums.queries > 0).any())
    for head in _heads_in(exists):
        offset = OFFSETS[best[head]]
        rate_by_offset, mass_by_offset = (
            {str(r): finite(value) for r, value in zip(OFFSETS, values[head], strict=True)}
            for values in (rates, masses)
        )
        score = PositionalScore(
            score=numbers.at(head),
            offset=offset if defined else None,
            rates=rate_by_offset,
            mass=mass_by_offset,
            chance=chance if defined else None,
            p_adjusted=float(p[head]),
        )
        label = numbers.label("positional", head, f"{offset:+d}")
        yield head, "positional", score, [label] * bool(earned[head])


def _syntactic(tests: Sequence[SyntacticTest], exists: Array, by_label: bool) -> Iterator[Judged]:
    """Gather every head's relations; its labels come with the largest gain first.

    Relations make one role, the labels of a user's pairs one each (``by_label``).
    """
    for head in _heads_in(exists):
        scores = tuple(test.score(head) for test in tests)
        labels = []
        confirmed = [(s, s.confirmed) for s in scores if s.labelled and s.confirmed]
        gains = tied([on_half.gain for _, on_half in confirmed])
        for i in np.argsort(-gains, kind="stable").tolist():
            score, c = confirmed[i]
            detail = f"{score.relation} {score.direction}"
            baseline = c.baselines[c.strongest]
            role = PAIR + score.relation if by_label else "syntactic"
            labels.append(Label(role, detail, c.accuracy, baseline, c.p_adjusted, c.strongest))
        yield head, "syntactic", scores, labels


def _rare(sums: Rare, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the rarest-word rate of every head against chance and uniform attention."""
    n, chance, uniform = int(sums.queries[0]), *map(sums.expected, sums.baselines)
    rates = sums.mean("rate")
    two_rarest = sums.mean("two_rarest")
    error = sums.error("rate")
    units = sums.effective("rate")
    baselines = zip((chance, uniform), map(sums.error, sums.baselines), strict=True)
    tests = [t_p(rates, error, baseline, units) for baseline, error in baselines]
    p = adjust(np.max(tests, axis=0), exists)
    baseline, against = max((uniform, "uniform"), (chance, "chance"))
    numbers = _Numbers(rates, share_interval(rates, error, units), p, baseline, against)
    earned = (rates >= thresholds.rare) & (rates - uniform >= thresholds.rare_gain - FRACTION)
    earned &= (rates > baseline) & (p <= thresholds.q)
    for head in _heads_in(exists):
        score = RareScore(
            rate=numbers.at(head),
            two_rarest=finite(two_rarest[head]),
            chance=finite(chance),
            queries=n,
            uniform=finite(uniform),
            p_adjusted=float(p[head]),
            sentences=int(sums.units),
        )
        yield head, "rare", score, [numbers.label("rare", head)] * bool(earned[head])


def _order(
    sums: CrossHeads, swapped: CrossHeads | None, exists: Array, thresholds: Thresholds
) -> Iterator[Judged]:
    """Judge the alignment of every cross-attention head, against no order at all."""

    def alignment(of: CrossHeads, p: Array) -> _Numbers:
        mean = of.mean("alignment")
        half = t_half_width(of.error("alignment"), int(of.units))
        half = np.where(np.isfinite(half), half, np.nan)
        interval = (mean - half).clip(-1.0, 1.0), (mean + half).clip(-1.0, 1.0)
        return _Numbers(mean, interval, p, 0.0, "no order")

    mean = sums.mean("alignment")
    error = sums.error("alignment")
    # Either direction is a finding.
    both = 2 * t_p(np.abs(mean), error, 0.0, int(sums.units))
    p = adjust(both.clip(max=1.0), exists)
    numbers = alignment(sums, p)
    pairs = int(sums.units)
    with_swapped = alignment(swapped, p) if swapped is not None and int(swapped.units) else None
    low, high = numbers.interval
    earned = (np.maximum(low, -high) >= thresholds.monotonic) & (p <= thresholds.q)
    gain = sums.mean("confidence") - sums.expected("confidence")
    earned &= (gain >= thresholds.monotonic_gain) & (pairs >= MIN_PAIRS) & np.isfinite(mean)
    diagonal = sums.mean("diagonal")
    for head in _heads_in(exists):
        score = AlignmentScore(
            score=numbers.at(head),
            p_adjusted=float(p[head]),
            swapped=with_swapped.at(head) if with_swapped else UNKNOWN,
            diagonal=finite(diagonal[head]),
            diagonal_uniform=finite(sums.expected("diagonal")),
            pairs=pairs,
        )
        role = "monotonic" if mean[head] > 0 else "anti_monotonic"
        yield head, "alignment", score, [numbers.label(role, head)] * bool(earned[head])


def _sharp(sums: CrossHeads, exists: Array, thresholds: Thresholds) -> Iterator[Judged]:
    """Judge the confidence of every cross-attention head, against uniform attention."""
    mean = sums.mean("confidence")
    error = sums.error("confidence")
    units = sums.effective("confidence")
    uniform = sums.expected("confidence")
    low, high = share_interval(mean, error, units)
    p = adjust(t_p(mean, error, uniform, units), exists)
    numbers = _Numbers(mean, (low, high), p, uniform, "uniform")
    earned = (low >= thresholds.sharp) & (low >= uniform) & (p <= thresholds.q)
    earned &= (sums.units >= MIN_PAIRS) & np.isfinite(mean)
    for head in _heads_in(exists):
        score = SharpnessScore(numbers.at(head), finite(uniform), float(p[head]))
        yield head, "sharpness", score, [numbers.label("sharp", head)] * bool(earned[head])


def _means(sums: QueryMeans, exists: Array, thresholds: Thresholds, stack: str) -> Iterator[Judged]:
    """Judge every head on every role that is a mean, those that users registered among them."""
    registered: dict[Head, dict[str, Estimate]] = {head: {} for head in _heads_in(exists)}
    labels: dict[Head, list[Label]] = {head: [] for head in registered}
    for role in roles_of(stack):
        if not role.measure or (role.key == "broad" and int(sums.long_units) < MIN_LONG):
            continue
        mean = sums.mean(role.measure)
        error = sums.error(role.measure)
        named = role.threshold if isinstance(role.threshold, str) else ""
        least = float(getattr(thresholds, named) if named else role.threshold)
        # where nothing is broader than uniform
        baseline = least
        against = "threshold"
        if role.measure in sums.baselines:
            baseline = float(np.nan_to_num(sums.expected(role.measure)))
            against = "uniform"
        units = sums.effective(role.measure)
        p = adjust(t_p(mean, error, baseline, units), exists)
        numbers = _Numbers(mean, share_interval(mean, error, units), p, baseline, against)
        details = np.full(mean.shape, "")
        if role.key == "special":
            details = which_special(*(sums.mean(f"{e}_special_mass") for e in ("first", "last")))
        passed = (mean > least if role.strict else mean >= least) & (mean > baseline)
        for head in _heads_in(exists & passed & (p <= thresholds.q)):
            labels[head].append(numbers.label(role.key, head, str(details[head])))
        if role.keys is not None:
            for head, weights in registered.items():
                low, high = (finite(end[head]) for end in numbers.interval)
                weights[role.key] = Estimate(finite(mean[head]), low, high)
    for head, earned in labels.items():
        yield head, "registered", registered[head], earned


def which_special(first: Array, last: Array) -> Array:
    """Say which special token has more of the mass: ``first`` or ``last``."""
    return np.where(above(first, last), "first", "last")


def untestable(
    sums: HeadMeasures | CrossHeads,
    thresholds: Thresholds,
    *,
    edges: Syntactic | None = None,
    labels: Sequence[str] = (),
    stack: str = "encoder",
) -> dict[str, str]:
    """Return the roles that no head could have earned, each with the reason.

    "Not tested" is not "no head has it". ``edges`` are the sums on trees, or on pairs with
    ``labels``; of the thresholds only ``min_trials`` counts. Roles that do not apply to the stack
    are not among them.
    """
    reasons: dict[str, tuple[bool, str]]  # Whether no head could, and why.
    trials: dict[tuple[str, str], list[int]] = {}
    if edges is not None:
        for (half, *name), count in zip(edges.relations.names, edges.trials.tolist(), strict=True):
            trials.setdefault((name[0], name[1]), [0, 0])[half] = count
    if isinstance(sums, CrossHeads):
        pairs = int(sums.units)
        long = int(sums.long_units)
        few = f"{pairs} pairs have {FEWEST} tokens or more on both sides, fewer than {MIN_PAIRS}"
        ordered = dict.fromkeys(("monotonic", "anti_monotonic", "sharp"), (pairs < MIN_PAIRS, few))
        short = f"{long} sources have {LONG} tokens or more, fewer than {MIN_LONG}"
        no_special = not sums.expected("special_mass") > 0
        no_source = "no source has a special token"
        reasons = ordered | {
            "special": (no_special or pairs < FEWEST_UNITS, no_source if no_special else few),
            "broad": (long < MIN_LONG, short),
        }
    else:
        profile = sums.profile
        long = int(sums.profile.long_units)
        uniform = dict(zip(profile.baselines, profile.uniform.tolist(), strict=True))
        twice = int(profile.sampled[profile.quantities.index("duplicate_rate")])
        sentences = int(profile.sampled.max())
        rare = int(sums.rare.units)
        too_few = f"fewer than {FEWEST_UNITS} sentences"
        asked = any(min(halves) >= thresholds.min_trials for halves in trials.values())
        no_relation = f"no relation has {thresholds.min_trials} trials in each half of the corpus"
        no_trees = "plain text has no gold trees (give a treebank)"
        no_rare = f"{too_few} have a rarest word outside the 500 most frequent ({rare})"
        unspaced = int(sums.rare.unspaced)
        read = int(profile.units)
        if 2 * unspaced > read:
            no_rare = (
                f"{unspaced:,} of {read:,} sentences are in a script that puts no space "
                "between words, so plain text does not say where words end; give a treebank"
            )
        no_special_token = "the model adds no special tokens"
        if stack == "decoder":
            no_special_token = "no token sees a special one before it"
        short = f"{long} sequences have {LONG} tokens or more, fewer than {MIN_LONG}"
        reasons = {
            "positional": (not sums.positional.queries.any(), "no sentence has two tokens"),
            "syntactic": (not asked, no_relation if edges is not None else no_trees),
            "rare": (rare < FEWEST_UNITS or 2 * unspaced > read, no_rare),
            "special": (not uniform["special_mass"], no_special_token),
            "punctuation": (not uniform["punctuation_mass"], "no word is punctuation"),
            "broad": (long < MIN_LONG, short),
            "self": (sentences < FEWEST_UNITS, f"{too_few} ({sentences})"),
            "duplicate": (twice < FEWEST_UNITS, f"{too_few} have a token twice ({twice})"),
        }
        for role in registered_roles():
            reasons[role.key] = not uniform[role.key], "no token sees a key of this role"
        for key in ("special", "punctuation", *(role.key for role in registered_roles())):
            if not reasons[key][0]:
                reasons[key] = reasons["self"]
    for label in labels:
        names = [name for name in trials if name[0] == label] or [(label, "")]
        why = [why_untested(edges, name, thresholds) for name in names] if edges else [""]
        reasons[PAIR + label] = all(why), why[0]
    applying = {role.key for role in roles_of(stack, labels=labels)}
    return {role: why for role, (none, why) in reasons.items() if none and role in applying}
