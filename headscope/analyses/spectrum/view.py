"""What is shown of ``spectrum``: for which heads "low rank" holds, and what could replace them.

:func:`blocks` lists everything a person sees, as plain values that the terminal, the page and the
figure files draw (``b`` is :mod:`headscope.show.blocks`). A head's *share* is what its k largest
singular values hold of the sum of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from headscope.analyses.classify.cards import describe_offset
from headscope.analyses.spectrum.efficient_view import efficient_blocks
from headscope.analyses.spectrum.result import (
    SpectrumHead,
    SpectrumResult,
)
from headscope.analyses.spectrum.words import value_of
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    joined,
    model_line,
    model_name,
    plural,
)
from headscope.show.estimates import compared, ranged
from headscope.show.folders import names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS

_MOST_NAMES = 8  # Heads that a legend lists at most.
_MOST_LISTED = 4  # Heads that a sentence lists at most, each with what it looks at.
#: Colour and dash of each control's curve: patterns whose spectrum is known, and random weights.
_CONTROLS: dict[str, tuple[str, Any]] = {
    "uniform": (b.BLACK, ":"),
    "random-logits": (b.ORANGE, "--"),
    "previous-token": (b.PURPLE, "--"),
    "identity": (b.BLUE, ":"),
    "random weights": (b.GREEN, "--"),
}


def blocks(result: SpectrumResult) -> Iterator[b.Block]:
    """Show the verdict, the map, the controls, the curves, and the cheap forms if measured."""
    measured_on = [
        model_line(result).plain,
        f"Text    {result.provenance['data']['name']}: {sampling_sentence(result)}",
    ]
    if result.roles is not None:
        measured_on.append(f"Roles   from a classification on {result.roles.corpus}")
    yield b.Text(verdict_sentence(result), "lead")
    yield b.Text(control_sentence(result))
    yield b.Text(f"{sampling_sentence(result)}.", on=b.PAGE)
    yield _map(result)
    yield b.Text("+ low rank   - no more than random scores", "soft", on=b.TERMINAL)
    yield b.Text("\n".join(measured_on), on=b.TERMINAL)
    yield _shares_table(result)
    yield _curves(result)
    if result.efficient is not None:
        yield from efficient_blocks(result, result.efficient)
    yield next_step(result, "what do heads lose without the softmax?", "linear {}")


def _map(result: SpectrumResult) -> b.HeadMap:
    """Show every head's share, marked where it is low rank or surely not."""
    marks = dict.fromkeys(result.verdict.low_rank, "+")
    marks |= dict.fromkeys(result.verdict.not_low_rank, "-")
    controls: list[str] = []
    for name, control in _controls(result).items():
        controls.append(f"{name} {value_of(control.share_at_k):.3f}")
    title = (
        f"Share of all singular values that the {result.k} largest of {result.length} hold, "
        f"{model_name(result)}"
    )
    return b.HeadMap(
        title=f"{title}\ncontrols: {', '.join(controls)}",
        legend="share of the sum",
        values={(head.layer_name, head.head): head.share_at_k.value for head in result.heads},
        digits=2,
        file="spectrum_map",
        marks={(head.layer_name, head.head): marks.get(head.name, "") for head in result.heads},
    )


def _shares_table(result: SpectrumResult) -> b.Table:
    """Show the lowest, the median and the highest head, and the controls."""
    shares = [value_of(head.share_at_k) for head in result.heads]
    shares_sq = [value_of(head.share_sq_at_k) for head in result.heads]
    rows = [
        ["lowest head", decimal(min(shares)), decimal(min(shares_sq))],
        ["median head", decimal(median(shares)), decimal(median(shares_sq))],
        ["highest head", decimal(max(shares)), decimal(max(shares_sq))],
    ]
    for name, control in _controls(result).items():
        share = decimal(value_of(control.share_at_k))
        share_sq = decimal(value_of(control.share_sq_at_k))
        rows.append([f"control: {name}", share, share_sq])
    return b.text_table((f"share of the {result.k} largest", "of the sum", "of squares"), rows)


# --- sentences ------------------------------------------------------------------------------------


def verdict_sentence(result: SpectrumResult) -> str:
    """Say in one sentence for which heads "self-attention is low rank" holds."""
    verdict = result.verdict
    if all(head.share_at_k.interval is None for head in result.heads):
        return (
            f"From {result.sequences} {plural(result.sequences, 'sequence')} there is no interval "
            f"({FEWEST_UNITS} are needed), so no head is called low rank, or not."
        )
    positional: Mapping[str, int | None] = {}  # offsets of the positional heads, where classified
    if result.roles is not None:
        positional = result.roles.positional
    random_scores = f"random scores ({verdict.random:.3f})"
    text = (
        f"{len(verdict.low_rank)} of {len(result.heads)} heads are low rank{_by_layer(result)}: "
        f"the {result.k} largest of their {result.length} singular values hold more than "
        f"{verdict.threshold:.0%} of the sum (95% confidence)"
    )

    # Heads that are surely not low rank, the positional ones first.
    groups = []
    positional_heads = [name for name in verdict.not_low_rank if name in positional]
    other_heads = [name for name in verdict.not_low_rank if name not in positional]
    if positional_heads:
        groups.append(f"the positional {_listed_heads(result, positional_heads)}")
    if other_heads:
        remark = ", not positional" if result.roles is not None else ""
        groups.append(f"{_listed_heads(result, other_heads)}{remark}")
    if groups:
        text += f"; clearly not low rank: {' and '.join(groups)}, no higher than {random_scores}"
        if result.roles is None:
            text += " (with --roles classify.json positional heads are named)"
    else:
        text += f"; no head is as low as {random_scores}"

    # Heads in between, of which the positional ones are named.
    if verdict.between:
        text += f"; {len(verdict.between)} are in between"
        positional_between = [name for name in verdict.between if name in positional]
        if positional_between:
            text += f", among them the positional {_listed_heads(result, positional_between)}"
    return f"{text}."


def _by_layer(result: SpectrumResult) -> str:
    """Count the heads of low rank by layer: " (L0 all 12, L1 3)"; nothing for over 12 layers."""
    low_rank_names = set(result.verdict.low_rank)
    low_rank_heads = [head for head in result.heads if head.name in low_rank_names]
    heads_in_layer = Counter(head.layer_name for head in result.heads)
    low_rank_in_layer = Counter(head.layer_name for head in low_rank_heads)
    if not 0 < len(low_rank_in_layer) <= 12:
        return ""
    counts = []
    for layer, count in low_rank_in_layer.items():
        if count == heads_in_layer[layer]:
            counts.append(f"{layer} all {count}")
        else:
            counts.append(f"{layer} {count}")
    return f" ({', '.join(counts)})"


def _listed_heads(result: SpectrumResult, names: Sequence[str]) -> str:
    """List heads, each with the offset that it looks at and its share.

    A positional head has an offset by its role; of others the favourite one is given, with the
    share of attention on it.
    """
    heads = {head.name: head for head in result.heads}
    listed = []
    for name in names[:_MOST_LISTED]:
        head = heads[name]
        offset = None
        if result.roles is not None:
            offset = result.roles.positional.get(name)
        if offset is not None:
            looks_at = describe_offset(offset)
        else:
            looks_at = f"{head.offset_mass:.0%} on {describe_offset(head.offset)}"
        listed.append(f"{name} ({looks_at}, {decimal(head.share_at_k.value)})")
    if len(names) > _MOST_LISTED:
        listed.append(f"{len(names) - _MOST_LISTED} more")
    return joined(listed)


def control_sentence(result: SpectrumResult) -> str:
    """Say what the same architecture with random weights has, and what that means."""
    random = result.random_weights
    gap = result.over_random_weights()
    if random is None:
        return (
            "Control: random weights not measured (--control); an untrained model's heads may well "
            "be of low rank too, so that low rank alone is no sign of learning."
        )
    n_draws = len(random.draws)
    counts = [draw.above for draw in random.draws]
    above = str(min(counts))
    if max(counts) > min(counts):
        above += f" to {max(counts)}"
    mean_above = sum(counts) / n_draws
    meaning = "most heads of an untrained model are not of low rank"
    if mean_above > random.heads / 2:
        meaning = "low rank alone is no sign of learning"
    return (
        f"Control: with random weights ({n_draws} {plural(n_draws, 'initialisation')}, the same "
        f"sequences dealt out to them) the mean share is {ranged(random.share_at_k)}, and "
        f"{above} of {random.heads} heads are above {result.verdict.threshold:g}: {meaning}. This "
        f"model's mean share is {result.mean_share:.3f}, {compared(gap, 'that')} (95%)."
    )


def sampling_sentence(result: SpectrumResult) -> str:
    """Say how many sequences were measured and how precise the shares are."""
    sampling = result.sampling
    text = (
        f"{result.sequences:,} {plural(result.sequences, 'sequence')} of exactly {result.length} "
        f"tokens out of {sampling.windows:,}"
    )
    if sampling.requested is not None and sampling.requested > sampling.windows:
        text += f" ({sampling.requested:,} were asked for; the text has no more)"
    if sampling.half_width is None:
        return f"{text}; fewer than {FEWEST_UNITS} have no interval"
    if sampling.reached is None:  # a fixed number of sequences
        return f"{text}; every share is within {sampling.half_width:.3g} (95%)"
    if sampling.reached:
        return (
            f"{text}, in random order until every share was within {sampling.precision:g} (95%): "
            f"{sampling.half_width:.3g}"
        )
    return (
        f"{text}: all of the text, and still the widest 95% half-width is "
        f"{sampling.half_width:.3g}, not {sampling.precision:g}; give a longer text"
    )


def _controls(result: SpectrumResult) -> dict[str, Any]:
    """Return random weights, if they were measured, and the patterns whose spectrum is known."""
    if result.random_weights is None:
        return dict(result.controls)
    return {"random weights": result.random_weights, **result.controls}


# --- the curves -----------------------------------------------------------------------------------


def _curves(result: SpectrumResult) -> b.Panels:
    """Draw cumulative shares: heads thin, layer means bold, exceptions by name, controls dashed."""
    x_title = "largest singular values counted"
    line_at_k = {f"the {result.k} largest": float(result.k)}
    return b.Panels(
        title=f"How few singular values hold a pattern, {model_name(result)}: mean over "
        f"{result.sequences:,} sequences of {result.length} tokens",
        panels=[
            b.Chart(
                title="of the sum of singular values",
                x=x_title,
                y="share that the largest hold",
                series=_curves_of(result, "curve"),
                x_levels=line_at_k,
            ),
            b.Chart(
                title="of the sum of their squares",
                x=x_title,
                y="",
                series=_curves_of(result, "curve_sq"),
                x_levels=line_at_k,
            ),
        ],
        file="spectrum_curves",
        across=2,
        size=(10.0, 4.8),
        alt="Share of the largest singular values of each head's pattern, beside controls; the "
        "numbers at k are in spectrum.csv, the curves in spectrum.json.",
        on=b.PAGE,
    )


def _curves_of(result: SpectrumResult, field: str) -> list[b.Series]:
    """Draw a curve a head and the mean of each layer in the layer's colour, and the controls.

    ``field`` is ``curve`` or ``curve_sq``. The first heads that are not low rank stand out: their
    lines are thicker, and the legend has their names. Of the layers it has the first and the last.
    """
    x = range(1, result.length + 1)
    named_heads = result.verdict.not_low_rank[:_MOST_NAMES]
    layers: dict[str, list[SpectrumHead]] = {}
    for head in result.heads:
        layers.setdefault(head.layer_name, []).append(head)

    first_layer, *_, last_layer = [*layers, *layers]
    series = []
    for (layer, heads), colour in zip(layers.items(), _colours(len(layers)), strict=True):
        curves = [getattr(head, field) for head in heads]
        for head, curve in zip(heads, curves, strict=True):
            is_named = head.name in named_heads
            series.append(
                b.Series(
                    name="",
                    x=x,
                    y=curve,
                    colour=b.VERMILION if is_named else colour,
                    marker="",
                    width=1.2 if is_named else 0.5,
                )
            )
        mean = [fmean(column) for column in zip(*curves, strict=True)]
        is_end = layer in (first_layer, last_layer)
        name = f"mean of {layer}" if is_end else ""
        series.append(b.Series(name, x, mean, colour=colour, marker="", width=2.2))
    if named_heads:
        name = f"not low rank: {joined(named_heads)}"
        series.append(b.Series(name, (), (), colour=b.VERMILION, marker="", width=1.2))
    controls = _controls(result)
    for name, (colour, dash) in _CONTROLS.items():
        if name in controls:
            curve = getattr(controls[name], field)
            series.append(
                b.Series(f"control: {name}", x, curve, colour=colour, marker="", dash=dash)
            )
    return series


def _colours(count: int) -> list[str]:
    """Return a colour for each of ``count`` layers, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    viridis = colormaps["viridis"]
    last = max(1, count - 1)
    brightness = [0.92 * layer / last for layer in range(count)]  # 1 would be too pale on white
    return [to_hex(viridis(value)) for value in brightness]


# --- the report's page ----------------------------------------------------------------------------


def _cards(result: SpectrumResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its share and the controls'."""
    shares = [
        f"random scores {result.controls['random-logits'].share_at_k:.3f}",
        f"identity {result.controls['identity'].share_at_k:.3f}",
    ]
    if result.random_weights is not None:
        shares.append(f"random weights {decimal(result.random_weights.share_at_k.value)}")
    for head in result.heads:
        text = (
            f"{ranged(head.share_at_k)} of the sum in the {result.k} largest of "
            f"{result.length} singular values ({', '.join(shares)})"
        )
        values = {"share": head.share_at_k.value}
        yield Card(head.layer, head.head, facts=[("Spectrum", text)], values=values)


def _key_numbers(result: SpectrumResult) -> Iterator[KeyNumber]:
    """Yield the share at k, mean of heads."""
    if not result.heads:
        return
    control = f"random scores {result.controls['random-logits'].share_at_k:.3f}"
    if result.random_weights is not None:
        random = decimal(result.random_weights.share_at_k.value)
        control = f"random weights {random}, {control}"
    title = f"share of the {result.k} largest of {result.length} singular values, mean of heads"
    yield KeyNumber(title, f"{result.mean_share:.3f}", control, Estimate(result.mean_share))


VIEW = view(
    "Is attention low rank?",
    blocks,
    {"spectrum": SpectrumResult.to_frame, "spectrum_efficient": SpectrumResult.efficient_frame},
    stale=names_of("spectrum_efficient"),
    cards=_cards,
    scales=(Scale("share", "Share of the largest singular values", of_pattern=True),),
    key_numbers=_key_numbers,
    term="singular values of the softmax",
)
