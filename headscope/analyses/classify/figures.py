"""Figures of ``classify``: the map of roles and the bars of relations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np
from matplotlib.colors import SymLogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import RenderableType
from rich.text import Text

from headscope.analyses.classify.result import (
    Causes,
    CauseTest,
    ClassifyResult,
    HeadCause,
    HeadResult,
    Loss,
)
from headscope.analyses.classify.words import best_heads, primary_label
from headscope.core.heads import layer_name
from headscope.core.roles import PRIMARY, role_name, role_of
from headscope.core.safe_text import visible
from headscope.show import drawing as draw
from headscope.show.cells import decimal, make_table, mean_of, p_text
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart, highest
from headscope.show.view import KeyNumber
from headscope.stats.estimate import Estimate

_MOST_BARS = 24  # Relations in the bar chart, by gain over the baseline.
#: Diameter of a dot with the gap around it, in points; least height of a panel, in dots.
_DOT, _TALL = 4.5, 40
_LINEAR = 0.01  # Gains on repeated tokens up to which their colours are linear.


def role_map(result: ClassifyResult) -> Figure:
    """Layers x heads, stack by stack: the colour is the primary role, the shade its score."""
    names = _row_names(result)
    n_heads = max(head.head for head in result.heads) + 1
    figure = draw.new_figure(max(5.0, 1.0 + 0.55 * n_heads), 1.4 + 0.55 * len(names))
    axes = figure.add_subplot()
    image = np.ones((len(names), n_heads, 3))
    for head in result.heads:
        row, score = names.index(head.layer_name), _primary_score(head)
        image[row, head.head] = _shade(role_of(head.primary).colour, score)
        colour = "white" if score > 0.75 else "black"
        draw.cell_text(axes, row, head.head, _mark(head), colour, 7)
    axes.imshow(image, aspect="equal")
    draw.label_grid(axes, len(names), n_heads, names)
    axes.set_title(f"What the heads of {draw.model_name(result)} do", fontsize=10)
    present = [role for role in PRIMARY if any(head.primary == role.key for head in result.heads)]
    handles = [Patch(color=role.colour, label=role.name) for role in present]
    note = {"title": "darker: higher score", "title_fontsize": 7}
    draw.legend_beside(
        figure, "outside lower center", min(4, len(present)), handles=handles, **note
    )
    return figure


def _row_names(result: ClassifyResult) -> list[str]:
    """Name the layers, with those that have no head left where one stack was measured."""
    if len(result.stacks) == 1:
        n_layers = int(result.provenance["model"]["n_layers"])
        return [layer_name(layer, *result.stacks) for layer in range(n_layers)]
    return list(dict.fromkeys(head.layer_name for head in result.heads))


def alignment_map(result: ClassifyResult) -> Figure:
    """Layers x heads of the cross-attention: how far each head follows the order of the source."""
    found = {h.name: h for h in result.heads if h.alignment is not None}
    names = list(dict.fromkeys(head.layer_name for head in found.values()))
    cells = {
        (names.index(head.layer_name), head.head): head.alignment.score
        for head in found.values()
        if head.alignment is not None
    }
    return draw.heat_map(
        draw.head_grid(cells),
        names=names,
        title=f"Alignment of the cross-attention heads of {draw.model_name(result)}\n"
        f"{_means(found)}",
        legend="rank correlation of target and source",
        limits=(-1.0, 1.0),
    )


def _means(heads: Mapping[str, HeadResult]) -> str:
    """Say the mean over heads, and what the control leaves of it."""
    orders = [head.alignment for head in heads.values() if head.alignment is not None]
    mean, swapped = (
        decimal(mean_of(getattr(x, name) for x in orders), 2) for name in ("score", "swapped")
    )
    return f"mean {mean}; when targets are given the sources of other pairs {swapped}"


def cause_map(result: ClassifyResult) -> Figure:
    """Losses of removed heads: by layer, and beside those of noise of the same size.

    Heads of a layer stand beside each other, so that no dot hides another.
    """
    rows = [(head, head.cause) for head in result.heads if head.cause is not None]
    names = _row_names(result)
    layers = np.array([names.index(head.layer_name) for head, _ in rows])
    losses, noise = (
        np.array([getattr(cause, name).loss for _, cause in rows]) for name in ("zero", "noise")
    )
    ends = np.array([cause.zero.interval or 2 * (cause.zero.loss,) for _, cause in rows])
    shown = np.concatenate([losses, noise, ends.ravel()])
    scale = draw.signed_scale(shown)
    heights = _TALL * draw.fractions(scale, losses, shown)
    shifts = np.zeros(len(rows))
    for layer in set(layers.tolist()):
        shifts[layers == layer] = draw.swarm(heights[layers == layer])
    column = 2 * np.abs(shifts).max() + 2.0  # in dots, with a gap
    wide = max(3.6, len(names) * column * _DOT / 72)
    figure = draw.new_figure(wide + 4.6, 4.4)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(wide, 3.6))
    for axes in (left, right):
        axes.set_yscale(scale)
    right.set_xscale(scale)
    for role in PRIMARY:
        mine = np.array([head.primary == role.key for head, _ in rows])
        if not mine.any():
            continue
        error = np.abs(ends[mine] - losses[mine, None]).T
        style = {"color": role.colour, "ms": 4, "mew": 0, "lw": 0.8, "fmt": "o", "yerr": error}
        place = layers[mine] + shifts[mine] / column
        left.errorbar(place, losses[mine], label=role.name, **style)
        right.errorbar(noise[mine], losses[mine], **style)
    same = [min(losses.min(), noise.min()), max(losses.max(), noise.max())]
    right.plot(same, same, color=draw.GREY, lw=0.8, zorder=0)
    left.set_xticks(range(len(names)), names)
    left.set_xlim(-0.5, len(names) - 0.5)
    metric = result.causes.metric if result.causes else ""
    draw.plain_axes(left, "layer", f"loss of {metric} without the head", "by layer", title_size=9)
    draw.plain_axes(right, "loss with noise of the same size", "", "against noise", title_size=9)
    figure.suptitle(f"Heads of {draw.model_name(result)}, removed one at a time", fontsize=10)
    draw.legend_beside(figure, "outside lower center", 5)
    return figure


def prefix_map(result: ClassifyResult) -> Figure:
    """Layers x heads: gain of the weight after, at and before the earlier copy of a token.

    The three panels share one scale: linear up to a hundredth, then logarithmic, as the weight at
    the copy can be a hundred times that of its neighbours.
    """
    names, scored = _row_names(result), [h for h in result.heads if h.prefix is not None]
    n_heads = max(head.head for head in result.heads) + 1
    figure = draw.new_figure(max(9.0, 3 * (1.4 + 0.2 * n_heads)), 1.6 + 0.3 * len(names))
    panels, places = figure.subplots(1, 3), ("after", "same", "before")
    images = np.full((3, len(names), n_heads), np.nan)
    for head in scored:
        gains = [getattr(head.prefix, place).gain for place in places]
        images[:, names.index(head.layer_name), head.head] = gains
    top = max(_LINEAR, float(np.nanmax(np.abs(images))))
    scale = SymLogNorm(_LINEAR, vmin=-top, vmax=top)
    for axes, image, place in zip(panels, images, places, strict=True):
        shown = axes.imshow(image, aspect="auto", cmap="RdBu_r", norm=scale)
        draw.label_grid(axes, len(names), n_heads, names)
        axes.set_title({"same": "at"}.get(place, place), fontsize=9)
    draw.small_colour_bar(figure, shown, panels, "gain, one scale for all", 0.03)
    title = "gain of the weight after, at and before the earlier copy of a random token"
    figure.suptitle(f"{draw.model_name(result)}: {title}", fontsize=9)
    return figure


def relation_bars(result: ClassifyResult) -> Figure:
    """Best head of each selected relation on the held-out half, with interval and baselines."""
    rows = sorted(best_heads(result), key=lambda row: (not row.labelled, -row.confirmed.gain))
    left_out, rows = len(rows[_MOST_BARS:]), rows[:_MOST_BARS]
    figure = draw.new_figure(7.0, 1.4 + 0.27 * max(1, len(rows)))
    axes = figure.add_subplot()
    if not rows:
        axes.text(0.5, 0.5, "no relation of any head was selected", ha="center", va="center")
        axes.set_axis_off()
        return figure
    y = np.arange(len(rows))
    found = [row.confirmed for row in rows]
    accuracy = np.array([item.accuracy for item in found])
    low, high = np.array([item.interval for item in found]).T
    colours = [role_of("syntactic" if row.labelled else "none").colour for row in rows]
    axes.barh(y, accuracy, color=colours, height=0.7)
    axes.errorbar(
        accuracy, y, xerr=(accuracy - low, high - accuracy), fmt="none", ecolor="black", lw=1
    )
    others = [max(v for k, v in item.baselines.items() if k != "offset") for item in found]
    for values, colour, label in (
        ([item.baselines["offset"] for item in found], "black", "best fixed offset"),
        (others, draw.VERMILION, "strongest other: first, last, uniform, kernel"),
    ):
        axes.vlines(values, y - 0.35, y + 0.35, color=colour, lw=2, label=label)
    names = [f"{row.score.relation} {row.score.direction}  {row.head.name}" for row in rows]
    axes.set_yticks(y, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.margins(y=0.02)
    caption = "accuracy on the held-out half of the sentences, 95% interval; grey: not confirmed"
    if left_out:
        caption += f"; {left_out} more in relations.csv"
    draw.plain_axes(axes, caption, title=f"Best head per relation, {draw.model_name(result)}")
    draw.legend_beside(figure, "outside lower center", 2)
    return figure


def _primary_score(head: HeadResult) -> float:
    """Score of the primary role in [0, 1]."""
    label = primary_label(head)
    return 0.15 if label is None else min(1.0, abs(label.score))


def _shade(colour: str, score: float) -> np.ndarray:
    """Mix a colour with white: score 1 is the full colour."""
    return 1 - (1 - np.array(to_rgb(colour))) * (0.15 + 0.85 * score)


def _mark(head: HeadResult) -> str:
    """Write the relation, offset or token of the primary role, or the role's own mark."""
    label = primary_label(head)
    if label is None:
        return ""
    return label.detail.partition(" ")[0] or role_of(head.primary).mark


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
            Estimate(test.within),
        )
