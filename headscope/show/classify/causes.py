"""What removing single heads did: sentences, the terminal's tables, and a part of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from headscope.core.safe_text import visible
from headscope.results.causes import Causes, CauseTest, HeadCause, Loss
from headscope.results.classify import ClassifyResult, HeadResult
from headscope.results.estimated import Estimated
from headscope.results.roles import role_name
from headscope.show.cells import decimal, make_table, p_text
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart, highest
from headscope.show.view import KeyNumber

_MOST_ROWS = 8  # Heads that the terminal's table shows.
NOTE = (
    "zero: nothing in its place; mean: its mean over other text; noise: the head stays, and as "
    "much is taken away in a random direction, mean over rotations; est.: zero, from gradients."
)
TEST_NOTE = (
    "zero, mean, noise: of the pairs of a head with the role and one without in the same layer, "
    "the share in which the first costs more; 0.5 is no difference. random: where 95% of "
    "these shares lie (zero) when labels are dealt within layers, which decides (adj. p, over "
    "roles). all, p: the same over all layers; heads of one layer are alike whatever their roles."
)
_HEADER = (
    *("role", "n", "zero", "random", "adj. p", "heads with it"),
    *("all", "p", "mean", "noise"),
)
_REMOVALS = ("zero", "mean", "noise")

_Row = tuple[HeadResult, HeadCause]


def removed(result: ClassifyResult) -> list[_Row]:
    """Return the heads that were removed, those that cost most first."""
    found = [(head, head.cause) for head in result.heads if head.cause is not None]
    return sorted(found, key=lambda row: -row[1].zero.loss)


def terminal(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show the heads that cost most, and whether roles tell which those are."""
    causes = result.causes
    if causes is None:
        return
    yield Text("\nHeads removed one at a time", style="bold underline")
    for sentence in sentences(result):
        yield Text(sentence)
    table = make_table(("removed", "roles", "zero", "95% interval", "mean", "noise", "est."))
    for head, cause in removed(result)[:_MOST_ROWS]:
        table.add_row(*_head_cells(head, cause))
    yield Text("")
    yield table
    yield Text(NOTE, style="dim")
    if causes.tests:
        yield Text("")
        yield make_table(_HEADER, test_rows(causes))
        yield Text(TEST_NOTE, style="dim")


def _head_cells(head: HeadResult, cause: HeadCause) -> tuple[str, ...]:
    roles = " ".join(map(role_name, head.roles)) or "-"
    losses = cause.zero.loss, cause.mean.loss, cause.noise.loss, cause.zero_estimate
    zero, *others = map(loss_text, losses)
    return head.name, roles, zero, range_text(cause.zero), *others


def loss_text(loss: float) -> str:
    """Write a loss: most are far below 0.1."""
    return f"{loss:.4f}" if abs(loss) < 10 else f"{loss:.2f}"


def range_text(effect: Loss) -> str:
    """Write the interval of a loss, whose ends can be negative."""
    return " to ".join(map(loss_text, effect.interval or ())) or "no interval"


def test_rows(causes: Causes) -> Iterator[tuple[str, ...]]:
    """One row per role: what decides within layers, then all layers, then the other removals."""
    by_removal = {name: {t.role: t for t in causes.tests_of(name)} for name in _REMOVALS}
    for role, zero in by_removal["zero"].items():
        others = (decimal(by_removal[name][role].within, 2) for name in ("mean", "noise"))
        yield (
            "any role" if role == "any" else role_name(role),
            str(zero.heads),
            decimal(zero.within, 2),
            _ends(zero.within_placebo),
            p_text(zero.within_p_adjusted),
            zero.verdict,
            decimal(zero.superiority, 2),
            p_text(zero.p_value),
            *others,
        )


def _ends(interval: Sequence[float] | None) -> str:
    return "-".join(decimal(end, 2) for end in interval) if interval else "-"


def sentences(result: ClassifyResult) -> Iterator[str]:
    """Say what was measured, what heads cost, what roles have to do with it, and what gradients."""
    causes, rows = result.causes, removed(result)
    if causes is None or not rows:
        return
    yield (
        f"Each head alone, {causes.task} on {causes.examples:,} examples of "
        f"{visible(causes.data)}; means and gradients from {causes.calibration:,} others. The "
        f"whole model's {causes.metric} is {causes.value:.3f}; a loss is how much worse it gets."
    )
    yield _sizes(rows, causes.rotations)
    test = next((t for t in causes.tests if (t.role, t.removal) == ("any", "zero")), None)
    if test is not None:
        yield _roles(test, causes)
    yield _gradients(causes)
    yield from causes.notes


def _sizes(rows: Sequence[_Row], rotations: int) -> str:
    losses = [cause.zero.loss for _, cause in rows]
    seen = sum(cause.zero.above for _, cause in rows)
    more = sum(cause.beyond_noise.above for _, cause in rows)
    less = sum(cause.beyond_noise.below for _, cause in rows)
    middle = median(losses)
    return (
        f"Removing one costs {loss_text(losses[-1])} to {loss_text(losses[0])}, half of them less "
        f"than {loss_text(middle)}; {seen} of {len(rows)} losses lie above zero. Any change of a "
        f"model changes its output: against noise of the head's own size (mean of {rotations} "
        f"random rotations) {more} heads cost more, {less} less, and {len(rows) - more - less} "
        "are not told apart. These counts hold for all heads at once (95%)."
    )


def _roles(test: CauseTest, causes: Causes) -> str:
    """Say whether a role tells that a head matters, by its layer's heads and by all."""
    everywhere = f"in {test.superiority:.0%} over all layers (p {p_text(test.p_value)})"
    noise = next((t for t in causes.tests_of("noise") if t.role == test.role), None)
    if test.within is None or test.within_p_adjusted is None:
        return (
            "Whether heads with a role cost more than heads without is not measured: "
            f"no layer has both kinds. Of a pair the one with a role costs more {everywhere}."
        )
    by_noise = f"; with noise of their size in {noise.within:.0%}" if noise and noise.within else ""
    return (
        f"{_VERDICTS[test.verdict]}: of a pair in one layer the one with a role costs more in "
        f"{test.within:.0%} (random labels {_ends(test.within_placebo)}, p "
        f"{p_text(test.within_p_adjusted)} adjusted over roles){by_noise}; {everywhere}, where "
        "layers differ too."
    )


_VERDICTS = {
    "costs more": "Heads with a role cost more than heads without",
    "costs less": "Heads with a role cost less than heads without",
    "not told apart": "Heads with a role and heads without are not told apart by what they cost",
}


def _gradients(causes: Causes) -> str:
    how = "half the squared first-order change" if causes.estimate == "squared" else "first order"
    fits = (f"{fit.spearman:.2f} ({_ends(fit.interval)}) for {fit.removal}" for fit in causes.fits)
    return f"Gradients at the whole model ({how}) rank the heads with Spearman's {', '.join(fits)}."


def part(result: ClassifyResult) -> Part | None:
    """What removing heads did, for the report's page."""
    if result.causes is None:
        return None
    return Part(
        "causes",
        "Heads removed one at a time",
        [*sentences(result), TEST_NOTE],
        _chart(result),
        _HEADER,
        list(test_rows(result.causes)),
    )


def _chart(result: ClassifyResult) -> Chart:
    """Loss of every head by layer, with a role and without."""
    rows = removed(result)
    names = list(dict.fromkeys(head.layer_name for head in result.heads))
    kinds = (("heads with a role", True), ("heads without", False))
    spread = 0.8 / (1 + max(head.head for head, _ in rows))  # no dot on another
    lines = [
        Line(
            name,
            [
                (names.index(head.layer_name) - 0.4 + spread * (head.head + 0.5), cause.zero.loss)
                for head, cause in rows
                if bool(head.roles) is has
            ],
            style,
            dots=True,
        )
        for style, (name, has) in enumerate(kinds)
    ]
    lines = [line for line in lines if line.points]
    return chart(
        lines,
        label="Loss without each head, by layer; the numbers are in heads.csv.",
        x_title="layer",
        y_title="loss without the head",
        y_limits=(min(0.0, *(cause.zero.loss for _, cause in rows)), highest(lines)),
        x_names=names,
    )


def card_fact(cause: HeadCause) -> tuple[str, str]:
    """Return what a head's card says of its removal."""
    text = (
        f"{loss_text(cause.zero.loss)} ({range_text(cause.zero)}); mean left "
        f"{loss_text(cause.mean.loss)}, noise of its size {loss_text(cause.noise.loss)}"
    )
    return "Loss when removed", text


def key_numbers(result: ClassifyResult) -> Iterator[KeyNumber]:
    """How often a head with a role costs more than one without in its layer."""
    causes = result.causes
    for test in causes.tests_of("zero")[:1] if causes else ():
        yield KeyNumber(
            "pairs in one layer in which the head with a role costs more when removed",
            f"{decimal(test.within, 2)} ({test.verdict})",
            f"random labels {_ends(test.within_placebo)}",
            Estimated(test.within),
        )
