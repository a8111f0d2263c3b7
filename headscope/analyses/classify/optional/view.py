"""Optional parts of ``classify``, as shown: repeats, patched heads and removed heads.

:func:`more` is what ``classify`` shows of those that were run. A *block*, of
``headscope.show.blocks``, is a text, a table or a figure; ``on`` says where it is shown: on the
page, with ``--verbose``, or NOWHERE, which only writes a figure's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from headscope.analyses.classify.cards import PLACES, loss_interval, loss_text
from headscope.analyses.classify.optional.results import (
    Causes,
    CauseTest,
    HeadCause,
    HeadPatch,
    Match,
    PatchEffect,
    Patching,
    PrefixMatching,
)
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.roles import NO_ROLE, role_name
from headscope.analyses.classify.scores import HeadResult
from headscope.core.rounding import FRACTION
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, interval_text, model_name, p_text
from headscope.show.estimates import ranged

_MOST_REMOVED = 8  # Removed heads that are listed.
_MOST_NAMED = 3  # Removed heads that a sentence names.
_VERDICTS = {
    "costs more": "Heads with a role cost more than heads without",
    "costs less": "Heads with a role cost less than heads without",
    "not told apart": "No difference in cost shows between heads with a role and heads without",
}

#: What is said of patched roles, by verdict, in this order
_PATCH_VERDICTS = {
    "carries": "carried by their head",
    "does not": "not carried",
    "not told apart": "not told apart from no effect or from other heads of the layer",
    "not measured": "with too few minimal pairs in this corpus",
}


def more(result: ClassifyResult) -> Iterator[b.Details]:
    """Show the optional measurements that were run."""
    if result.prefix is not None:
        yield b.Details(
            "Which heads find an earlier copy of a token?",
            list(_prefix(result, result.prefix)),
            term="prefix matching",
        )
    if result.patching is not None:
        yield b.Details(
            "Do heads carry their role?",
            list(_patches(result, result.patching)),
            term="activation patching",
        )
    if result.causes is not None:
        yield b.Details(
            "What does each head cost when it is removed?",
            list(_removals(result, result.causes)),
            term="ablation",
        )


# --- repeated tokens ---


def prefix_sentences(result: ClassifyResult) -> Iterator[str]:
    """Say which heads of a stack find the token after an earlier copy; nothing where not asked."""
    matches = list(_matches_at(result, "after"))
    if not matches:
        return
    least = float(result.thresholds["induction"])
    n_found = sum(_gains(match, least) for _, match in matches)
    best, match = max(matches, key=lambda row: float(row[1].gain))
    random = result.prefix.random_weights.get("after") if result.prefix else None
    control = "" if random is None else f"; largest gain with random weights {random:.2f}"
    yield (
        f"Induction, on random tokens that come twice: {best.name} puts "
        f"{decimal(match.score, 2)} of its attention on the token after the earlier copy, "
        f"{decimal(match.control, 2)} where nothing is repeated; in {n_found} of {len(matches)} "
        f"heads the gain is at least {least:.2f}, whole interval{control}."
    )


def _gains(match: Match, least: float) -> bool:
    """Whether the whole interval of a gain reaches the threshold."""
    return match.gain.low is not None and match.gain.low >= least - FRACTION


class _PrefixRow(NamedTuple):
    """A row of the table: one head and one place where it looks."""

    looks: str  # Where, in words
    head: str
    match: Match
    random: float | None  # Largest gain of any head with random weights


def _prefix(result: ClassifyResult, prefix: PrefixMatching) -> Iterator[b.Block]:
    """Show where the tokens of repeated sequences look: the two clearest heads for each place."""
    # The rows of the table.
    rows: list[_PrefixRow] = []
    for target, words in PLACES.items():
        random = prefix.random_weights.get(target)
        by_head = [
            _PrefixRow(words, head.name, match, random)
            for head, match in _matches_at(result, target)
        ]
        by_head.sort(key=lambda row: -float(row.match.gain))
        rows += by_head[:2]
    if rows:
        best = max(rows, key=lambda row: float(row.match.gain))
        control = ""
        if best.random is not None:
            control = f" (largest gain with random weights {best.random:.2f})"
        yield b.Text(
            f"Of a token that comes a second time, {best.head} looks {best.looks}: with a weight "
            f"of {decimal(best.match.score, 2)}, and {decimal(best.match.control, 2)} where "
            f"nothing is repeated{control}.",
            "lead",
            b.PAGE,
        )
    columns: list[b.Column] = [
        ("looks", "looks", str),
        ("head", "head", str),
        ("weight", "match.score", 3),
        ("control", "match.control", 3),
        ("gain", "match.gain.value", 3),
        ("95% interval", lambda row: interval_text(row.match.gain.interval), str),
        ("random weights", "random", 3),
    ]
    yield b.Table(columns, rows, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        f"{prefix.sequences} sequences of {prefix.copy} random tokens, twice; control: the same "
        f"second half after other tokens. Even attention puts a weight of {prefix.uniform:.3f} on "
        "each place. random weights: largest gain of any head with random weights.",
        "soft",
        b.VERBOSE | b.PAGE,
    )
    for target, words in PLACES.items():
        gains = {
            (head.layer_name, head.head): match.gain.value
            for head, match in _matches_at(result, target)
        }
        yield b.HeadMap(
            f"How much more a head looks {words} of a token that comes again, {model_name(result)}",
            "gain over the same place without a repetition",
            gains,
            digits=3,
            file=f"prefix_{target}",
            on=b.NOWHERE,
        )


def _matches_at(result: ClassifyResult, target: str) -> Iterator[tuple[HeadResult, Match]]:
    """Yield each head with its match at a target, one of PLACES."""
    for head in result.heads:
        if head.prefix is not None:
            yield head, getattr(head.prefix, target)


# --- patched heads ---


def patch_sentences(result: ClassifyResult) -> Iterator[str]:
    """Say which roles are carried, and what was not patched; nothing where it was not asked for."""
    if result.patching is None:
        return
    names: dict[str, list[str]] = {}
    for head in result.heads:
        for patch in head.patched:
            names.setdefault(patch.verdict, []).append(_patched_name(head, patch))
    clauses = []
    for verdict, words in _PATCH_VERDICTS.items():
        if verdict in names:
            clauses.append(f"{words}: {len(names[verdict])} ({', '.join(names[verdict])})")
    if clauses:
        yield f"Roles {'; '.join(clauses)}."
    else:
        yield "No head was patched: none has a positional or syntactic role on this corpus."
    yield from result.patching.notes


def _patches(result: ClassifyResult, patching: Patching) -> Iterator[b.Block]:
    """Show for each head, role and reader what the verdicts rest on."""
    for sentence in patch_sentences(result):
        yield b.Text(sentence, on=b.PAGE)
    rows: list[tuple[str, PatchEffect]] = []
    for head in result.heads:
        for patch in head.patched:
            rows += [(_patched_name(head, patch), effect) for effect in patch.effects]
    if not rows:
        return
    columns: list[b.Column] = [
        ("head and role", lambda row: row[0], str),
        ("read by", lambda row: row[1].reader, str),
        ("gain [95%]", lambda row: ranged(row[1].gain, 2), str),
        ("others", lambda row: _gain_of_others(row[1]), str),
        ("verdict", lambda row: row[1].verdict, str),
    ]
    yield b.Table(columns, rows, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        "One head alone looks where it would in another sentence. gain: what then changes in the "
        "q, k and v of later heads, or in the output at that word, where the relation points to "
        "another place, less the same where as many other words leave the answer equal; as a "
        "share of the change when all heads of the layer do so. others: mean gain of up to five "
        "other heads of the layer. A head carries its role if its gain exceeds both 0 and "
        f"theirs, and does not if it is below {patching.smallest:g} (tests "
        "adjusted over heads).",
        "soft",
        b.VERBOSE | b.PAGE,
    )


def _patched_name(head: HeadResult, patch: HeadPatch) -> str:
    """Write a head with its role, as ``L0H2 -1`` or ``L3H5 obj dep->head``."""
    return visible(f"{head.name} {patch.detail}")


def _gain_of_others(effect: PatchEffect) -> str:
    """Write the mean gain of the other heads that were patched."""
    gain = effect.gain.value
    over_others = effect.over_others.value  # the gain less their mean gain
    if gain is None or over_others is None:
        return decimal(None, 2)
    return decimal(gain - over_others, 2)


def interval_words(interval: Sequence[float] | None) -> str:
    """Write an interval with two digits, or a dash where there is none."""
    return interval_text(interval, 2)


# --- removed heads ---

RemovedHead = tuple[HeadResult, HeadCause]


def cause_sentences(result: ClassifyResult) -> Iterator[str]:
    """Say which heads cost most when removed, and whether roles tell; nothing if not asked for."""
    causes = result.causes
    removed = _removed_heads(result)
    if causes is None or not removed:
        return
    dearest = [
        f"{visible(head.name)} {loss_text(float(cause.zero))}"
        for head, cause in removed[:_MOST_NAMED]
    ]
    yield f"{_costs_sentence(removed, causes)} Dearest: {', '.join(dearest)}."
    tests = {(test.role, test.removal): test for test in causes.tests}
    if ("any", "zero") in tests:
        yield _any_role_sentence(tests["any", "zero"], tests.get(("any", "noise")))


def _removed_heads(result: ClassifyResult) -> list[RemovedHead]:
    """Return the heads that were removed, with what that costs, the dearest first."""
    removed = [(head, head.cause) for head in result.heads if head.cause is not None]
    return sorted(removed, key=lambda row: -float(row[1].zero))


def _removals(result: ClassifyResult, causes: Causes) -> Iterator[b.Block]:
    """Show what removing heads costs, and whether roles tell which heads cost most."""
    removed = _removed_heads(result)
    if not removed:
        return
    yield b.Text(_costs_sentence(removed, causes), "lead")
    yield b.Text(
        f"Each head alone, {causes.task} on {causes.examples:,} examples of "
        f"{visible(causes.data)}; means and gradients from {causes.calibration:,} others. The "
        f"whole model's {causes.metric} is {causes.value:.3f}; a loss is how much worse it gets."
    )
    tests = {(test.role, test.removal): test for test in causes.tests}
    if ("any", "zero") in tests:
        yield b.Text(_any_role_sentence(tests["any", "zero"], tests.get(("any", "noise"))))
    if causes.fits:  # a single head has no rank
        yield b.Text(_gradients_sentence(causes))
    for note in causes.notes:
        yield b.Text(note)
    yield _losses(result, removed, causes.metric)
    yield from _most_expensive(removed)
    if causes.tests:
        yield from _role_tests(causes, tests)


def _costs_sentence(removed: Sequence[RemovedHead], causes: Causes) -> str:
    """Say how much heads cost, dearest first, and how many cost more than noise of their size."""
    losses = [float(cause.zero) for _, cause in removed]
    # Where the whole model is the standard, as for fidelity, every change is a loss.
    counted = ""
    if causes.estimate != "squared":
        n_above = sum(cause.zero.above for _, cause in removed)
        counted = f"; {n_above} of {len(removed)} losses lie above zero"
    n_dearer = sum(cause.beyond_noise.above for _, cause in removed)
    n_cheaper = sum(cause.beyond_noise.below for _, cause in removed)
    return (
        f"Removing one head costs {loss_text(losses[-1])} to {loss_text(losses[0])}, half of them "
        f"less than {loss_text(median(losses))}{counted}. Any change of a model changes its "
        "output: compared with noise of the head's own size (mean of "
        f"{causes.rotations} random rotations) {n_dearer} heads cost more, {n_cheaper} less, and "
        f"for {len(removed) - n_dearer - n_cheaper} no difference shows. These counts hold for all "
        "heads at once (95%)."
    )


def _gradients_sentence(causes: Causes) -> str:
    """Say how well losses estimated from gradients rank the heads."""
    how = "half the squared first-order change" if causes.estimate == "squared" else "first order"
    fits = [
        f"{fit.spearman.value:.2f} ({interval_words(fit.spearman.interval)}) for {fit.removal}"
        for fit in causes.fits
    ]
    return (
        f"Losses estimated from gradients at the whole model ({how}) rank the heads like the "
        f"measured ones with Spearman's {', '.join(fits)}."
    )


def _most_expensive(removed: Sequence[RemovedHead]) -> Iterator[b.Block]:
    """List the heads that cost most."""
    columns: list[b.Column] = [
        ("removed", lambda row: row[0].name, str),
        ("roles", lambda row: " ".join(map(role_name, row[0].roles)) or "-", str),
        ("zero", lambda row: float(row[1].zero), loss_text),
        ("95% interval", lambda row: row[1].zero, loss_interval),
        ("mean", lambda row: float(row[1].mean), loss_text),
        ("noise", lambda row: float(row[1].noise), loss_text),
        ("from gradients", lambda row: row[1].zero_estimate, loss_text),
    ]
    yield b.Table(columns, removed[:_MOST_REMOVED], "The heads that cost most", b.VERBOSE)
    yield b.Text(
        "zero: nothing in its place; mean: its mean over other text; noise: the head stays, and as "
        "much is taken away in a random direction, mean over rotations; from gradients: an "
        "estimate of zero.",
        "soft",
        b.VERBOSE,
    )


def _role_tests(causes: Causes, tests: Mapping[tuple[str, str], CauseTest]) -> Iterator[b.Block]:
    """Show for each role whether heads that have it cost more than others of their layer."""

    def share(removal: str) -> Callable[[CauseTest], float | None]:
        return lambda test: tests[test.role, removal].within

    columns: list[b.Column] = [
        ("role", lambda test: "any role" if test.role == "any" else role_name(test.role), str),
        ("heads", "heads", str),
        ("zero", "within", 2),
        ("random labels", "within_placebo", interval_words),
        ("within layers, p", "within_p_adjusted", p_text),
        ("heads with it", "verdict", str),
        ("mean", share("mean"), 2),
        ("noise", share("noise"), 2),
        ("all layers", "superiority.value", 2),
        ("all layers, p", "p_value", p_text),
    ]
    title = "Do heads with a role cost more than others?"
    yield b.Table(columns, causes.tests_of("zero"), title, b.VERBOSE | b.PAGE)
    yield b.Text(
        "zero, mean, noise: of the pairs of a head with the role and one without in the same "
        "layer, the share in which the first costs more; 0.5 is no difference. random labels: "
        "where 95% of these shares lie (zero) when labels are dealt at random within layers, which "
        "decides (within layers, p; adjusted over roles). all layers, and its p: the same over all "
        "layers, where layers differ too.",
        "soft",
        b.VERBOSE | b.PAGE,
    )


def _losses(result: ClassifyResult, removed: Sequence[RemovedHead], metric: str) -> b.Panels:
    """Draw losses by layer, its heads side by side, and against noise of the same size."""
    # A point for each head, coloured by its role.
    in_order = [(head, head.cause) for head in result.heads if head.cause is not None]
    layer_names = list(dict.fromkeys(head.layer_name for head, _ in in_order))
    n_across = 1 + max(head.head for head, _ in in_order)
    by_layer: list[b.Series] = []
    by_noise: list[b.Series] = []
    for role in (*result.possible_roles, NO_ROLE):
        with_role = [(head, cause) for head, cause in in_order if head.primary == role.key]
        if not with_role:
            continue
        losses = [cause.zero for _, cause in with_role]
        noise = [float(cause.noise) for _, cause in with_role]
        # The heads of layer 3, say, stand side by side from 2.6 to 3.4.
        x = [
            layer_names.index(head.layer_name) + 0.8 * (head.head + 0.5) / n_across - 0.4
            for head, _ in with_role
        ]
        by_layer.append(b.Series(role.name, x, losses, "points", role.colour))
        by_noise.append(b.Series(role.name, noise, losses, "points", role.colour))

    # A logarithmic scale where nothing is zero or below it, and the line of equal costs.
    shown = [float(cause.zero) for _, cause in removed]
    shown += [float(cause.noise) for _, cause in removed]
    lows = [cause.zero.low for _, cause in removed if cause.zero.low is not None]
    scale: Any = "log10" if min(*shown, *lows) > 0 else "linear"
    diagonal = [min(shown), max(shown)]
    by_noise.append(b.Series("as much as noise", diagonal, diagonal, "line", b.BLACK, "", "--"))

    loss = f"loss of {metric} without the head"
    loss_with_noise = "loss with noise of the same size"
    return b.Panels(
        f"What removing each head alone costs, {model_name(result)}",
        [
            b.Chart("by layer", "layer", loss, by_layer, x_names=layer_names, y_scale=scale),
            b.Chart("against noise", loss_with_noise, loss, by_noise, x_scale=scale, y_scale=scale),
        ],
        file="causes",
        across=2,
        size=(10.0, 4.4),
        alt="Loss without each head, by layer and against noise of its size; the numbers are in "
        "heads.csv.",
        on=b.PAGE,
    )


def _any_role_sentence(test: CauseTest, noise: CauseTest | None) -> str:
    """Say whether heads with any role cost more than heads of their layer without one."""
    everywhere = f"in {test.superiority.value:.0%} over all layers (p {p_text(test.p_value)})"
    if test.within is None or test.within_p_adjusted is None:
        return (
            "Whether heads with a role cost more than heads without is not measured: "
            f"no layer has both kinds. Of a pair the one with a role costs more {everywhere}."
        )
    by_noise = f"; with noise of their size in {noise.within:.0%}" if noise else ""
    return (
        f"{_VERDICTS[test.verdict]}: of a pair in one layer the one with a role costs more in "
        f"{test.within:.0%} (random labels {interval_words(test.within_placebo)}, p "
        f"{p_text(test.within_p_adjusted)} adjusted over roles){by_noise}; {everywhere}, where "
        "layers differ too."
    )
