"""What is shown of ``flow``: how much heads pass on of what they read.

A :class:`Recovery` has held-out R^2 by name, such as ``whole``: the share of the variance of what a
head reads that linear maps recover from its output z. :data:`R2_SHOWN` says what each name is.
Controls of the effective rank of W_V are Gaussian matrices (``result.spectra["gaussian"]``) and the
same model with random weights (``"fresh"``); R^2 of random weights are in ``result.control``.
Blocks (``b``) are plain values that the terminal, the page and the figure files draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from headscope.analyses.flow.result import FlowResult, HeadFlow, Recovery
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    joined,
    mean_of,
    model_line,
    model_name,
    percent,
    plural,
)
from headscope.show.estimates import ranged
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate


class _Shown(NamedTuple):
    """How an R^2 is shown."""

    recovered: str  # What is recovered, in the legend of the figure
    colour: str
    column: str = ""  # Its column in the table of layers; empty if it has none


#: The R^2 of a head, by their names in the result.
R2_SHOWN = {
    "whole": _Shown("from the head's output", b.BLUE, "all read"),
    "directions": _Shown("from random directions", b.ORANGE, "random"),
    "token": _Shown("from the head's output", b.BLUE),
    "token_directions": _Shown("from random directions", b.ORANGE),
    "value": _Shown("from the head's output", b.BLUE, "top word"),
    "gaussian": _Shown("with a Gaussian W_V", b.GREEN, "Gaussian"),
    "other": _Shown("of a random word", b.PURPLE, "any word"),
}
#: The columns of the table of layers, by name of the R^2.
_COLUMNS = {name: shown.column for name, shown in R2_SHOWN.items() if shown.column}
_LEGEND = (
    "Mean of heads. W_V width: effective rank over d_head. all read, random: the share of the "
    "variance of everything a head reads that a linear readout recovers from its output, and from "
    "random directions. top word, Gaussian, any word: of the word attended to most, with this W_V "
    "and with a Gaussian one, and of any word of the sentence."
)
_WIDE = 0.8  # Effective rank over d_head from which on W_V is called wide here, as in claim 1.


def blocks(result: FlowResult) -> Iterator[b.Block]:
    """Show what was read, the main numbers and the layers."""
    lines = [model_line(result, len(result.heads)).plain, f"Text    {_sentences(result)}"]
    yield b.Text(f"Read: {_sentences(result)}.", on=b.PAGE)
    for text in (_recovered(result), _width(result)):
        yield b.Text(text, "lead")
    if result.heads:
        yield _figure(result)
    yield _layers(result)
    yield b.Text(_LEGEND, on=b.TERMINAL)
    yield b.Text("\n".join([*lines, result.sentences.note]).strip(), on=b.TERMINAL)
    yield next_step(result, "what does removing each head cost?", "classify {} --ablate")


def _r2(recovery: Recovery, name: str) -> float | None:
    """Return the R^2 of this name; None where it was not measured."""
    value: float | None = getattr(recovery, name).value
    return value


def _control_width(result: FlowResult, control: str, matrix: str = "w_v") -> float | None:
    """Return the effective rank over d_head of a control, mean over the shapes of values.

    ``control`` is ``gaussian`` or ``fresh``, ``matrix`` is ``w_v`` or ``ov`` (W_V W_O).
    """
    widths: list[float | None] = []
    for shape in result.spectra.get(control, ()):
        rank = getattr(shape, matrix).effective_rank
        widths.append(None if rank is None else rank / shape.d_head)
    return mean_of(widths)


# --- sentences ------------------------------------------------------------------------------------


def _sentences(result: FlowResult) -> str:
    """Say on how many sentences maps were fitted, and on how many others they were measured."""
    read = result.sentences
    left_out = []
    if read.repeated:
        left_out.append(f"{read.repeated} repeated")
    if read.skipped:
        left_out.append(f"{read.skipped} that cannot be read")
    if read.words_left_out:
        words = plural(read.words_left_out, "word")
        left_out.append(f"{read.words_left_out:,} {words} without a piece")
    text = (
        f"{visible(read.name)}: fitted on {read.chosen_on:,} sentences, measured on "
        f"{read.measured_on:,} others"
    )
    if left_out:
        text += f" ({joined(left_out)} left out)"
    return text


def _width(result: FlowResult) -> str:
    """Say how much of its width W_V uses, and the controls."""
    all_widths = [head.wide() for head in result.heads]
    widths = [width for width in all_widths if width is not None]
    if not widths:
        return "Every W_V is zero."
    n_wide = sum(width > _WIDE for width in widths)
    controls = []
    for control, name in (("gaussian", "Gaussian entries"), ("fresh", "untrained")):
        width = _control_width(result, control)
        if width is not None:
            controls.append(f"{name} {width:.2f}")
    return (
        f"W_V uses {fmean(widths):.0%} of its width (effective rank over d_head, mean of heads; "
        f"above {_WIDE:.0%} in {n_wide} of {len(widths)}; {', '.join(controls)})."
    )


def _recovered(result: FlowResult) -> str:
    """Say how much of a head's input z holds, with random directions and random weights."""
    mean = result.recovery
    missing = result.not_measured
    if set(missing) >= {"whole", "value"}:
        return f"How much a head passes on of its input is not measured: {missing['whole']}."
    texts = []
    if "whole" not in missing:
        texts.append(
            f"From a head's output, {ranged(mean.whole, percent)} of the variance of its input can "
            "be recovered linearly (held-out sentences, mean of heads); random projections give "
            f"{ranged(mean.directions, percent)}{_random_weights(result, 'whole')}."
        )
    if "value" not in missing:
        texts.append(
            f"Of the word that is attended to most, {ranged(mean.value, percent)} of what W_V "
            f"reads can be recovered; a Gaussian W_V gives {ranged(mean.gaussian, percent)}"
            f"{_random_weights(result, 'value')}, and a random word of the sentence "
            f"{ranged(mean.other, percent)}."
        )
    texts += [
        f"R^2 of {R2_SHOWN[name].recovered} is not measured: {why}."
        for name, why in missing.items()
    ]
    return " ".join(texts)


def _random_weights(result: FlowResult, name: str) -> str:
    """Say the R^2 of random weights, behind a comma; nothing where they were not measured."""
    if result.control is None:
        return ""
    return f", random weights {ranged(getattr(result.control.recovery, name), percent)}"


# --- tables and figures ---------------------------------------------------------------------------


def _layers(result: FlowResult) -> b.Table:
    """Make a table: a row for each layer (means of its heads), for random weights, and for chance.

    The row of chance has the width of Gaussian matrices; R^2 at chance have columns of their own.
    """
    by_layer: dict[str, list[HeadFlow]] = {}
    for head in result.heads:
        by_layer.setdefault(head.layer_name, []).append(head)
    rows: list[tuple[str | float | None, ...]] = []
    for layer, heads in by_layer.items():
        r2 = [mean_of(_r2(head.recovery, name) for head in heads) for name in _COLUMNS]
        rows.append((layer, mean_of(head.wide() for head in heads), *r2))
    if result.control is not None:
        r2 = [_r2(result.control.recovery, name) for name in _COLUMNS]
        rows.append(("random weights", _control_width(result, "fresh"), *r2))
    rows.append(("chance", _control_width(result, "gaussian"), *[None for _ in _COLUMNS]))
    titles = ("W_V width", *_COLUMNS.values())
    numbers: list[b.Column] = [(title, i, 2) for i, title in enumerate(titles, start=1)]
    return b.Table([("layer", 0, str), *numbers], rows)


#: The panels of the figure: what is recovered, and the R^2 that are compared there.
_PANELS = {
    "of all that a head reads": ("whole", "directions"),
    "of the attended word's state": ("token", "token_directions"),
    "of the attended word, where W_V reads": ("value", "gaussian", "other"),
}


def _figure(result: FlowResult) -> b.Panels:
    """Draw the R^2 by layer: a panel for each thing that is recovered."""
    return b.Panels(
        f"How much of what it reads a head passes on, {model_name(result)}",
        [
            b.Chart(title, "layer", "share of variance recovered", _lines(result, names))
            for title, names in _PANELS.items()
        ],
        "flow",
        across=3,
        size=(10.0, 4.0),
        alt="The share of variance that linear readouts recover by layer; the numbers are in "
        "flow.csv.",
        on=b.PAGE,
    )


def _lines(result: FlowResult, names: Sequence[str]) -> list[b.Series]:
    """Draw a dot for each head, a line of means, and a dashed one of random weights."""
    by_layer = [list(heads) for _, heads in groupby(result.heads, lambda head: head.layer)]
    layers = [heads[0].layer for heads in by_layer]
    middle = (len(names) - 1) / 2
    lines = []
    for i, name in enumerate(names):
        shown = R2_SHOWN[name]
        # The dots of the several R^2 stand side by side around the layer's number.
        x = [head.layer + 0.1 * (i - middle) for head in result.heads]
        values = [_r2(head.recovery, name) for head in result.heads]
        means = [mean_of(_r2(head.recovery, name) for head in heads) for heads in by_layer]
        lines += [
            b.Series("", x, values, kind="points", colour=shown.colour, marker="."),
            b.Series(shown.recovered, layers, means, colour=shown.colour, marker=""),
        ]
        if result.control is not None:
            level = [_r2(result.control.recovery, name)] * len(layers)
            control = b.Series("", layers, level, colour=shown.colour, marker="", dash="--")
            lines.append(control)
    if result.control is not None:
        lines.append(b.RANDOM_WEIGHTS)
    return lines


# --- cards and key numbers ------------------------------------------------------------------------


def _cards(result: FlowResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: width of W_V, and what z holds."""
    for head in result.heads:
        yield Card(
            head.layer,
            head.head,
            facts=list(_facts(result, head)),
            values={
                "passed_on": head.recovery.whole.value,
                "top_word": head.recovery.value.value,
                "value_width": head.wide(),
            },
        )


def _facts(result: FlowResult, head: HeadFlow) -> Iterator[tuple[str, str]]:
    """Yield what a head's card says, with the controls."""
    widths = []
    for matrix in ("w_v", "ov"):
        gaussian = _control_width(result, "gaussian", matrix)
        widths.append(f"{decimal(head.wide(matrix), 2)} ({decimal(gaussian, 2)})")
    yield "Width of W_V, W_VW_O", f"{', '.join(widths)} of d_head (Gaussian)"
    r2 = head.recovery
    yield (
        "Recovered of what it reads",
        f"{ranged(r2.whole, percent)} (random directions {ranged(r2.directions, percent)}"
        f"{_random_weights(result, 'whole')})",
    )
    yield (
        "Recovered of the attended word",
        f"{ranged(r2.value, percent)} (Gaussian W_V {ranged(r2.gaussian, percent)}; a random "
        f"word {ranged(r2.other, percent)}{_random_weights(result, 'value')})",
    )


def _key_numbers(result: FlowResult) -> Iterator[KeyNumber]:
    """Yield what z holds of what was read and of the attended word."""
    mean = result.recovery
    yield KeyNumber(
        what="share of what a head reads that its output recovers, mean of heads",
        text=ranged(mean.whole, percent),
        control=_control("random directions", mean.directions, _random_weights(result, "whole")),
        number=mean.whole,
    )
    yield KeyNumber(
        what="share of the attended word's state that its output recovers, mean of heads",
        text=ranged(mean.value, percent),
        control=_control("Gaussian W_V", mean.gaussian, _random_weights(result, "value")),
        number=mean.value,
    )


def _control(name: str, estimate: Estimate, random_weights: str) -> str:
    """Say what a control recovers; nothing where it was not measured."""
    if estimate.value is None:
        return ""
    return f"{name} {ranged(estimate, percent)}{random_weights}"


VIEW = view(
    "What does a head pass on of what it reads?",
    blocks,
    {"flow": FlowResult.to_frame},
    cards=_cards,
    scales=(
        Scale("passed_on", "Variance of what is read, recovered from its output", of_pattern=True),
        Scale(
            "top_word", "Variance of the attended word, recovered from its output", of_pattern=True
        ),
        Scale("value_width", "Effective rank of W_V over d_head"),
    ),
    key_numbers=_key_numbers,
    term="information flow",
)
