"""What is shown of ``classify`` on request: norms, repeats, and removed heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from headscope.analyses.classify.cards import PLACES, loss_interval, loss_text
from headscope.analyses.classify.patch_view import patch_blocks
from headscope.analyses.classify.result import CauseTest, ClassifyResult
from headscope.core.roles import primary_roles, role_name
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, model_name, p_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_REMOVED = 8  # Removed heads that are listed.
_VERDICTS = {
    "costs more": "Heads with a role cost more than heads without",
    "costs less": "Heads with a role cost less than heads without",
    "not told apart": "No difference in cost shows between heads with a role and heads without",
}


def draw(name: str, result: ClassifyResult) -> Figure:
    """Draw a figure of ``figures.py``, which loads matplotlib only now."""
    from headscope.analyses.classify import figures

    figure: Figure = getattr(figures, name)(result)
    return figure


def more(result: ClassifyResult) -> Iterator[b.Details]:
    """Show what was measured beside the roles, where it was asked for."""
    for title, part, show in (
        ("Norm-weighted attention", result.norms, _norms),
        ("Prefix matching", result.prefix, _prefix),
        ("Do heads carry their role?", result.patching, patch_blocks),
        ("Heads removed one at a time", result.causes, _removals),
    ):
        if part is not None:
            yield b.Details(title, list(show(result)))


def _norms(result: ClassifyResult) -> Iterator[b.Block]:
    """Show which labels remain when keys count by the norm of what they contribute."""
    roles = result.norms.roles if result.norms else ()
    several, survivors = len(result.stacks) > 1, []
    for stack in result.stacks:
        for role in (r for r in roles if r.stack == stack and r.heads):
            if role.role in ("special", "punctuation"):
                where = f" of the {stack}" if several else ""
                named = ", ".join(role.kept[:4]) + (", ..." if len(role.kept) > 4 else "")
                survivors.append(
                    f"{len(role.kept)} of {role.heads} {role_name(role.role)} heads{where} keep "
                    f"the label{f' ({named})' if named else ''}"
                )
    if survivors:
        yield b.Text(f"By the norm of what keys contribute: {'; '.join(survivors)}.", "lead")
    else:
        yield b.Text(
            "By the pattern no head looks at special tokens or punctuation, so none can lose it.",
            "lead",
        )
    columns: list[b.Column] = [
        ("role", lambda r: f"{r.stack}: " * several + role_name(r.role), str),
        ("heads", "heads", str),
        ("kept", lambda r: len(r.kept), str),
        ("95% interval", "share.interval", ends),
        ("gained", lambda r: len(r.gained), str),
        ("weight", "mass", 2),
        ("by norms", "norm_mass", 2),
        ("random weights", "control_heads", lambda n: "-" if n is None else str(n)),
        ("kept", "control_kept", lambda n: "-" if n is None else str(n)),
    ]
    yield b.Table(columns, roles, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        "All other numbers of this run weigh each key by the norm of what it contributes, "
        "||P v W_O||, as a share of the row. heads: with the role by the pattern itself; kept: by "
        "norms too; gained: by norms alone; weight: mean weight on such tokens over these heads, "
        "by the pattern and by norms; random weights: the same counts with random weights.",
        "soft",
        b.VERBOSE | b.PAGE,
    )


def _prefix(result: ClassifyResult) -> Iterator[b.Block]:
    """Show where the tokens of repeated sequences look."""
    prefix = result.prefix
    if prefix is None:
        return
    scored = [(head, head.prefix) for head in result.heads if head.prefix is not None]
    rows = []
    for place, name in PLACES.items():
        ranked = sorted(scored, key=lambda row: -float(getattr(row[1], place).gain))
        for head, score in ranked[:2]:
            random = prefix.random_weights.get(place)
            rows.append((name, head.name, getattr(score, place), random))
    if scored:
        name, who, score, random = max(rows, key=lambda row: float(row[2].gain))
        yield b.Text(
            f"Of a token that comes a second time, {who} looks {name}: with a weight of "
            f"{decimal(score.score, 2)}, and {decimal(score.control, 2)} where nothing is repeated"
            + (f" (largest gain with random weights {decimal(random, 2)})." if random else "."),
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
    for place, name in PLACES.items():
        yield b.HeadMap(
            f"Repeated tokens, weight {name}: {model_name(result)}",
            "gain over the same place without a repetition",
            {(h.layer_name, h.head): getattr(score, place).gain.value for h, score in scored},
            digits=3,
            file=f"prefix_{place}",
            on=b.NOWHERE,
        )


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
    above = sum(cause.zero.above for _, cause in rows)
    dearer = sum(cause.beyond_noise.above for _, cause in rows)
    cheaper = sum(cause.beyond_noise.below for _, cause in rows)
    yield b.Text(
        f"Removing one head costs {loss_text(losses[-1])} to {loss_text(losses[0])}, half of them "
        f"less than {loss_text(median(losses))}; {above} of {len(rows)} losses lie above zero. Any "
        "change of a model changes its output: compared with noise of the head's own size (mean of "
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
    yield b.Text(
        f"Losses estimated from gradients at the whole model ({how}) rank the heads like the "
        f"measured ones with Spearman's {', '.join(fits)}."
    )
    yield from map(b.Text, causes.notes)
    yield b.Drawing("causes", partial(draw, "cause_map", result))
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
    by_layer, by_noise = list[b.Series](), list[b.Series]()
    for role in primary_roles():
        mine = [(head, cause) for head, cause in heads if head.primary == role.key]
        if mine:
            zero = [cause.zero for _, cause in mine]
            x = [names.index(head.layer_name) + 0.8 * (head.head + 0.5) / wide for head, _ in mine]
            noise = [float(cause.noise) for _, cause in mine]
            look: Any = ("points", role.colour)
            by_layer.append(b.Series(role.name, [place - 0.4 for place in x], zero, *look))
            by_noise.append(b.Series(role.name, noise, zero, *look))
    ends = [float(cause.noise) for _, cause in heads] + [float(cause.zero) for _, cause in heads]
    lows = [(cause.zero.interval or (float(cause.zero),))[0] for _, cause in heads]
    scale: Any = "log10" if min(*ends, *lows) > 0 else "linear"
    equal = [min(ends), max(ends)]
    by_noise.append(b.Series("as much as noise", equal, equal, "line", b.GREY, ""))
    loss = f"loss of {metric} without the head"
    return b.Panels(
        "Heads removed one at a time",
        [
            b.Chart("by layer", "layer", loss, by_layer, x_names=names, y_scale=scale),
            b.Chart(
                *("against noise", "loss with noise of the same size", loss, by_noise),
                **{"x_scale": scale, "y_scale": scale},
            ),
        ],
        file="",
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
    by_noise = f"; with noise of their size in {noise.within:.0%}" if noise and noise.within else ""
    return (
        f"{_VERDICTS[test.verdict]}: of a pair in one layer the one with a role costs more in "
        f"{test.within:.0%} (random labels {ends(test.within_placebo)}, p "
        f"{p_text(test.within_p_adjusted)} adjusted over roles){by_noise}; {everywhere}, where "
        "layers differ too."
    )
