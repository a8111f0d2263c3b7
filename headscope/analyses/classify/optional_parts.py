"""Optional parts of ``classify``, as shown: repeats, patched heads and removed heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from headscope.analyses.classify.cards import PLACES, loss_interval, loss_text
from headscope.analyses.classify.optional_results import CauseTest, HeadPatch, PatchEffect
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.core.roles import NO_ROLE, role_name
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, model_name, p_text
from headscope.show.estimates import ranged

_MOST_REMOVED = 8  # Removed heads that are listed.
_VERDICTS = {
    "costs more": "Heads with a role cost more than heads without",
    "costs less": "Heads with a role cost less than heads without",
    "not told apart": "No difference in cost shows between heads with a role and heads without",
}

#: In the order of the sentences about them.
_PATCH_VERDICTS = {
    "carries": "carried by their head",
    "does not": "not carried",
    "not told apart": "not told apart from no effect or from other heads of the layer",
    "not measured": "with too few minimal pairs in this corpus",
}


def more(result: ClassifyResult) -> Iterator[b.Details]:
    """Show the optional measurements that were run."""
    for title, part, show in (
        ("Prefix matching", result.prefix, _prefix),
        ("Do heads carry their role?", result.patching, _patches),
        ("Heads removed one at a time", result.causes, _removals),
    ):
        if part is not None:
            yield b.Details(title, list(show(result)))


def _prefix(result: ClassifyResult) -> Iterator[b.Block]:
    """Show where the tokens of repeated sequences look."""
    prefix = result.prefix
    rows = []
    assert prefix is not None
    scored = [(head, vars(head.prefix)) for head in result.heads if head.prefix is not None]
    for target, name in PLACES.items():
        random = prefix.random_weights.get(target)
        ranked = sorted(scored, key=lambda row: -float(row[1][target].gain))
        rows += [(name, head.name, scores[target], random) for head, scores in ranked[:2]]
    if rows:
        name, who, score, random = max(rows, key=lambda row: float(row[2].gain))
        yield b.Text(
            f"Of a token that comes a second time, {who} looks {name}: with a weight of "
            f"{decimal(score.score, 2)}, and {decimal(score.control, 2)} where nothing is repeated"
            + ("." if random is None else f" (largest gain with random weights {random:.2f})."),
            "lead",
            b.PAGE,
        )
    columns: list[b.Column] = [
        ("looks", 0, str),
        ("head", 1, str),
        ("weight", lambda row: row[2].score, 3),
        ("control", lambda row: row[2].control, 3),
        ("gain", lambda row: row[2].gain.value, 3),
        ("95% interval", lambda row: " to ".join(map(decimal, row[2].gain.interval)), str),
        ("random weights", 3, 3),
    ]
    yield b.Table(columns, rows, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        f"{prefix.sequences} sequences of {prefix.copy} random tokens, twice; control: the same "
        f"second half after other tokens. Even attention puts a weight of {prefix.uniform:.3f} on "
        "each place. random weights: largest gain of any head with random weights.",
        "soft",
        b.VERBOSE | b.PAGE,
    )
    for target, name in PLACES.items():
        yield b.HeadMap(
            f"Repeated tokens, weight {name}: {model_name(result)}",
            "gain over the same place without a repetition",
            {(h.layer_name, h.head): scores[target].gain.value for h, scores in scored},
            digits=3,
            file=f"prefix_{target}",
            on=b.NOWHERE,
        )


def patch_sentences(result: ClassifyResult) -> Iterator[str]:
    """Say which roles are carried, and what was not patched; nothing where it was not asked for."""
    if result.patching is None:
        return
    rows = [(head, patch) for head in result.heads for patch in head.patched]
    parts = []
    for verdict, words in _PATCH_VERDICTS.items():
        named = [_patched_name(head, patch) for head, patch in rows if patch.verdict == verdict]
        if named:
            parts.append(f"{words}: {len(named)} ({', '.join(named)})")
    if parts:
        yield f"Roles {'; '.join(parts)}."
    yield from result.patching.notes


def _patches(result: ClassifyResult) -> Iterator[b.Block]:
    """Show for each head, role and reader what the verdicts rest on."""
    yield from (b.Text(sentence, on=b.PAGE) for sentence in patch_sentences(result))
    effects = [
        (h, patch, effect) for h in result.heads for patch in h.patched for effect in patch.effects
    ]
    if not effects:
        return
    assert result.patching is not None
    columns: list[b.Column] = [
        ("head and role", lambda row: _patched_name(*row[:2]), str),
        ("read by", lambda row: row[2].reader, str),
        ("gain [95%]", lambda row: ranged(row[2].gain, 2), str),
        ("others", lambda row: _gain_of_others(row[2]), str),
        ("verdict", lambda row: row[2].verdict, str),
    ]
    yield b.Table(columns, effects, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        "One head alone looks where it would in another sentence. gain: what then changes in the "
        "q, k and v of later heads, or in the output at that word, where the relation points to "
        "another place, less the same where as many other words leave the answer equal; as a "
        "share of the change when all heads of the layer do so. others: mean gain of up to five "
        "other heads of the layer. A head carries its role if its gain exceeds both 0 and "
        f"theirs, and does not if it is below {result.patching.smallest:g} (tests "
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
    over = effect.over_others.value
    return decimal(None if gain is None or over is None else gain - over, 2)


def ends(interval: Sequence[float] | None) -> str:
    """Write an interval with two digits, or a dash where there is none."""
    return "-".join(decimal(end, 2) for end in interval) if interval else "-"


def _removals(result: ClassifyResult) -> Iterator[b.Block]:
    """Show what removing heads costs, and whether roles tell which heads cost most."""
    causes = result.causes
    rows = [(head, head.cause) for head in result.heads if head.cause is not None]
    rows.sort(key=lambda row: -float(row[1].zero))
    if causes is None or not rows:
        return
    losses = [float(cause.zero) for _, cause in rows]
    # Where the whole model is the standard, as for fidelity, every change is a loss.
    counted = ""
    if causes.estimate != "squared":
        above = sum(cause.zero.above for _, cause in rows)
        counted = f"; {above} of {len(rows)} losses lie above zero"
    dearer = sum(cause.beyond_noise.above for _, cause in rows)
    cheaper = sum(cause.beyond_noise.below for _, cause in rows)
    yield b.Text(
        f"Removing one head costs {loss_text(losses[-1])} to {loss_text(losses[0])}, half of them "
        f"less than {loss_text(median(losses))}{counted}. Any change of a model changes its "
        "output: compared with noise of the head's own size (mean of "
        f"{causes.rotations} random rotations) {dearer} heads cost more, {cheaper} less, and for "
        f"{len(rows) - dearer - cheaper} no difference shows. These counts hold for all heads at "
        "once (95%).",
        "lead",
    )
    yield b.Text(
        f"Each head alone, {causes.task} on {causes.examples:,} examples of "
        f"{visible(causes.data)}; means and gradients from {causes.calibration:,} others. The "
        f"whole model's {causes.metric} is {causes.value:.3f}; a loss is how much worse it gets."
    )
    tests = {(test.role, test.removal): test for test in causes.tests}
    if ("any", "zero") in tests:
        yield b.Text(_any_role_sentence(tests["any", "zero"], tests.get(("any", "noise"))))
    how = "half the squared first-order change" if causes.estimate == "squared" else "first order"
    fits = [
        f"{fit.spearman.value:.2f} ({ends(fit.spearman.interval)}) for {fit.removal}"
        for fit in causes.fits
    ]
    if fits:  # a single head has no rank
        yield b.Text(
            f"Losses estimated from gradients at the whole model ({how}) rank the heads like the "
            f"measured ones with Spearman's {', '.join(fits)}."
        )
    yield from map(b.Text, causes.notes)
    yield _losses(result, causes.metric)
    columns: list[b.Column] = [
        ("removed", lambda row: row[0].name, str),
        ("roles", lambda row: " ".join(map(role_name, row[0].roles)) or "-", str),
        ("zero", lambda row: float(row[1].zero), loss_text),
        ("95% interval", lambda row: row[1].zero, loss_interval),
        ("mean", lambda row: float(row[1].mean), loss_text),
        ("noise", lambda row: float(row[1].noise), loss_text),
        ("from gradients", lambda row: row[1].zero_estimate, loss_text),
    ]
    yield b.Table(columns, rows[:_MOST_REMOVED], "The heads that cost most", b.VERBOSE)
    yield b.Text(
        "zero: nothing in its place; mean: its mean over other text; noise: the head stays, and as "
        "much is taken away in a random direction, mean over rotations; from gradients: an "
        "estimate of zero.",
        "soft",
        b.VERBOSE,
    )
    if not causes.tests:
        return

    def share(removal: str) -> Callable[[CauseTest], float | None]:
        return lambda test: tests[test.role, removal].within

    columns = [
        ("role", lambda t: "any role" if t.role == "any" else role_name(t.role), str),
        ("heads", "heads", str),
        ("zero", "within", 2),
        ("random labels", "within_placebo", ends),
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


def _losses(result: ClassifyResult, metric: str) -> b.Panels:
    """Draw losses by layer, its heads side by side, and against noise of the same size."""
    heads = [(head, head.cause) for head in result.heads if head.cause is not None]
    names = list(dict.fromkeys(head.layer_name for head, _ in heads))
    wide = 1 + max(head.head for head, _ in heads)
    by_layer: list[b.Series] = []
    by_noise: list[b.Series] = []
    for role in (*result.possible_roles, NO_ROLE):
        mine = [(head, cause) for head, cause in heads if head.primary == role.key]
        zero = [cause.zero for _, cause in mine]
        x = [names.index(h.layer_name) + 0.8 * (h.head + 0.5) / wide - 0.4 for h, _ in mine]
        noise = [float(cause.noise) for _, cause in mine]
        for series, x_values in ((by_layer, x), (by_noise, noise)) if mine else ():
            series.append(b.Series(role.name, x_values, zero, "points", role.colour))
    shown = [float(loss) for _, cause in heads for loss in (cause.zero, cause.noise)]
    lows = [cause.zero.low for _, cause in heads if cause.zero.low is not None]
    scale: Any = "log10" if min(*shown, *lows) > 0 else "linear"
    equal = [min(shown), max(shown)]
    by_noise.append(b.Series("as much as noise", equal, equal, "line", b.GREY, ""))
    loss = f"loss of {metric} without the head"
    of_noise = "loss with noise of the same size"
    return b.Panels(
        f"Heads of {model_name(result)}, removed one at a time",
        [
            b.Chart("by layer", "layer", loss, by_layer, x_names=names, y_scale=scale),
            b.Chart("against noise", of_noise, loss, by_noise, x_scale=scale, y_scale=scale),
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
        f"{test.within:.0%} (random labels {ends(test.within_placebo)}, p "
        f"{p_text(test.within_p_adjusted)} adjusted over roles){by_noise}; {everywhere}, where "
        "layers differ too."
    )
