"""What is shown of ``attribute``: the sum, the heads that matter most when removed, and tokens."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headscope.analyses.attribute.result import (
    INDEPENDENT,
    NUMBERS,
    AttributedHead,
    AttributeResult,
    Reversal,
)
from headscope.core.rounding import above
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, mean_of, model_line, model_name, plural, tiny
from headscope.show.estimates import ranged
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view

_TOP = 8  # Heads in the table of the largest effects.
_BARS = 24  # Heads in the figure of bars.
_TOKENS = 24  # Tokens of a text up to which a table of pairs is shown in the terminal.
#: What rankings are called, and their colours.
_RANKINGS = {
    "direct": ("direct part", b.ORANGE),
    "first_order": ("lengths counted", b.GREEN),
    "removed": ("removed", b.BLUE),
    "removed_mean": ("mean left", b.VERMILION),
    "resampled": ("resampled", b.PURPLE),
}


def blocks(result: AttributeResult) -> Iterator[b.Block]:
    """Show the sum, the heads by effect of removal with their parts, tokens, and the search."""
    summed = sum_sentence(result)
    yield b.Text(summed, "lead", b.TERMINAL)
    if result.texts:
        named = joined([f"\u201c{visible(text)}\u201d" for text in result.texts[:2]])
        summed = f"{named}: {summed[0].lower()}{summed[1:]}"
        text_names = {"cosine": ("first", "second", "third"), "target": ("source", "target")}
        each = zip(text_names.get(result.kind, ("text", "with")), result.texts, strict=False)
        lines = "\n".join(f"{name}: {visible(text)}" for name, text in each)
        yield b.Text(lines, "soft", b.TERMINAL)
    yield b.Text(summed, "lead", b.PAGE)
    if result.skipped:
        why = "too long, or without a mask" if result.kind == "token" else "too long"
        yield b.Text(f"Examples that were left out ({why}): {result.skipped:,}.")
    yield from _largest(result)
    yield b.Text(agreement_sentence(result))
    yield from _faithfulness(result)
    if result.reversal is not None:
        yield b.Text(reversal_sentence(result.reversal))
        yield b.Text(_other_searches(result.reversal), "control")
    yield b.Text(_shuffled(result), "control")
    if result.control is not None:
        yield b.Text(_random(result), "control")
    yield from _tokens(result)
    yield from _groups_and_figures(result)
    yield b.Text(_run_lines(result), "soft", on=b.TERMINAL)
    yield _next(result)


def _largest(result: AttributeResult) -> Iterator[b.Block]:
    """List the heads with the largest effects, with the interval that holds for all at once."""
    many = result.removals > 1
    n = len(result.heads)
    heads = _named(result)
    if many:
        at_once = f"that holds for all {n} heads at once ({result.removals} examples)"
        yield b.Text(
            f"Removing each of {len(heads)} of {n} heads alone changes {_of(result)} on average: "
            f"zero lies outside the interval {at_once}."
            if heads
            else f"No single head changes {_of(result)} on average beyond an interval {at_once}."
        )
    columns: list[b.Column] = [
        ("heads", "name", str),
        ("removed", "removed.joint", 3),
        *([("mean size", "removed_size.value", 3)] if many else []),
        ("mean left", "removed_mean.value", 3),
        ("resampled", "resampled.value", 3),
        ("direct part", "direct.value", 3),
    ]
    if result.kind == "cosine" and not many:  # an interval and all numbers are wider than a line
        columns.append(("lengths counted", "first_order.value", 3))
    if any(head.role for head in result.heads):
        columns.append(("role", "role", str))
    if heads:
        title = f"Heads that change {_of(result)} most when removed"
        yield b.Table(columns, heads[:_TOP], title)


def _named(result: AttributeResult) -> list[AttributedHead]:
    """Return the heads by the size of their effect.

    Removed on several examples, only those whose interval excludes zero, all heads taken together.
    """

    def differs(head: AttributedHead) -> bool:
        low, high = head.removed.joint.interval or (0.0, 0.0)
        return bool(above(low, 0.0) or above(0.0, high))

    heads = sorted(result.heads, key=_size, reverse=True)
    return [head for head in heads if result.removals == 1 or differs(head)]


def sum_sentence(result: AttributeResult) -> str:
    """Say what the output is the sum of, and how exactly."""
    parts = [f"{part.kind} {ranged(part.direct)}" for part in result.parts]
    mean = f" (mean of {result.examples:,} examples)" if result.examples > 1 else ""
    return (
        f"{_name(result)} {ranged(result.output)}{mean} is the sum of {joined(parts)} "
        f"(exact up to rounding: {tiny(result.check.error)})."
    )


def agreement_sentence(result: AttributeResult) -> str:
    """Say that the direct part is not the effect of removal, how far they agree, and why not."""
    *before, last = result.layers
    # An encoder's heads have no direct part in a decoder's logit.
    n_direct = sum(head.direct.value is not None for head in result.heads)
    text = "A head's direct part is not what is lost without it"
    if result.spearman is not None:
        text += (
            f": over {n_direct} heads the two have a Spearman correlation of "
            f"{decimal(result.spearman, 2)} ({decimal(result.spearman_mean, 2)} where removed "
            "heads leave their mean)"
        )
    counted = result.kind == "cosine"
    held = "both texts' lengths" if counted else "the scales of norms"
    text += f". One reason: the sum holds {held} fixed, and removing a head changes them"
    if last.spearman is not None:
        text += (
            f"; in {last.name}, which no layer follows, they agree at {decimal(last.spearman, 2)}"
        )
        if last.spearman_first_order is not None:
            text += f", and with lengths counted at {decimal(last.spearman_first_order, 2)}"
    later = [layer.spearman_first_order if counted else layer.spearman for layer in before]
    if known := [value for value in later if value is not None]:
        text += (
            ". The other: later layers read what earlier ones write; in the layers before "
            f"{last.name} they agree at {decimal(min(known), 2)} to {decimal(max(known), 2)}"
            f"{' with lengths counted' if counted else ''}"
        )
    return f"{text}."


def _faithfulness(result: AttributeResult) -> Iterator[b.Block]:
    """Show what the first heads of each ranking do alone, and those of random rankings."""
    faithfulness = result.faithfulness
    if faithfulness is None:
        return
    random = len(faithfulness.random)
    n = faithfulness.kept[-1]
    tenth = next(i for i, k in enumerate(faithfulness.kept) if 10 * k >= n)
    few = faithfulness.kept[tenth]
    curves = {curve.ranking: curve for curve in faithfulness.rankings}
    by_mean = curves["removed_mean"].signed[tenth]
    chance = [of.signed[tenth] for of in faithfulness.random]
    by_chance = f"{mean_of(chance):.0%} ({min(chance):.0%} to {max(chance):.0%})"
    judged = f"{faithfulness.judged} {plural(faithfulness.judged, 'example')}"
    by = f"ranked on {faithfulness.ranked} {plural(faithfulness.ranked, 'other')}"
    by = "they are ranked on it too" if faithfulness.same else by
    yield b.Text(
        f"Do rankings name the heads that matter? The {few} of {n} heads with the largest effects "
        f"of removal (mean left), alone with all others at their mean, bring back "
        f"{by_mean:.0%} of the output's change from {decimal(faithfulness.ablated)} (no head) to "
        f"{decimal(faithfulness.output)} (all). Random ones bring back {by_chance}; {judged}, {by}."
    )
    if any(curve.roc is not None for curve in faithfulness.rankings):
        roc = [f"{_RANKINGS[of.ranking][0]} {decimal(of.roc, 2)}" for of in faithfulness.rankings]
        yield b.Text(f"Area under the ROC curve of the circuit, by |effect|: {joined(roc)}.")
    for name, area, meaning in (
        ("CPR", "cpr", "under the share that comes back, largest effects first; more is better"),
        ("CMD", "cmd", "between that share and 1, largest sizes first; 0 is the whole model"),
    ):
        each = [
            f"{_RANKINGS[curve.ranking][0]} {ranged(getattr(curve, area), 2)}"
            for curve in faithfulness.rankings
        ]
        areas = [float(getattr(curve, area)) for curve in faithfulness.random]
        intervals = [getattr(curve, area).interval for curve in faithfulness.rankings]
        held = (
            " Intervals are over examples, with each ranking held fixed." if any(intervals) else ""
        )
        yield b.Text(
            f"{name} (area {meaning}): {joined(each)}; {random} random rankings "
            f"{decimal(min(areas), 2)} to {decimal(max(areas), 2)}.{held}",
            "control",
        )
    shares = [k / n for k in faithfulness.kept]
    panels = []
    for title, order in (
        ("CPR: largest effects first", "signed"),
        ("CMD: largest sizes first", "absolute"),
    ):
        values = list(zip(*(getattr(curve, order) for curve in faithfulness.random), strict=True))
        band = [(min(at), max(at)) for at in values]
        means = [mean_of(at) for at in values]
        name = f"{random} random rankings, mean and range"
        series = [b.Series(name, shares, means, colour=b.GREY, marker="", dash="--", band=band)]
        for curve in faithfulness.rankings:
            name, colour = _RANKINGS[curve.ranking]
            series.append(b.Series(name, shares, getattr(curve, order), colour=colour, marker="."))
        panels.append(
            b.Chart(
                title,
                "heads that stay",
                "share of the change that comes back",
                series,
                x_scale="percent",
                levels={"the whole model": 1.0},
            )
        )
    yield b.Panels(
        f"What the first heads of each ranking do alone, {model_name(result)}",
        panels,
        "attribute_curves",
        across=2,
        size=(9.0, 4.6),
        alt="The share of the output's change that the first heads of each ranking bring back, "
        "beside random rankings; the numbers are in attribute_curves.csv.",
        on=b.PAGE,
    )


def reversal_sentence(reversal: Reversal) -> str:
    """Say which heads reverse the comparison, and how often random sets do."""
    what = "the prediction"
    if reversal.question == "nearer":
        near, far = ("third", "second") if reversal.swapped else ("second", "third")
        what = f"that the {near} text is nearer to the first than the {far}"
    n = len(reversal.heads)
    start = reversal.margins[0]
    end = reversal.margins[-1]
    if not reversal.found:
        return (
            f"No set of at most {reversal.most} {plural(reversal.most, 'head')} was found whose "
            f"removal reverses {what}: "
            f"the margin goes from {decimal(start)} to {decimal(end)} without "
            f"{joined(reversal.heads)}."
        )
    text = (
        f"Without {joined(reversal.heads)} ({n} {plural(n, 'head')}, greedy search) the model "
        f"reverses {what}: the margin goes from {decimal(start)} to {decimal(reversal.margin)}."
    )
    if spare := [name for name in reversal.chosen if name not in reversal.heads]:
        text += f" The search also chose {joined(spare)}; put back, not needed."
    if n > 1 and reversal.put_back:
        every = "Both" if n == 2 else f"All {n}"
        text += (
            f" {every} are needed: with one of them put back the margin is "
            f"{decimal(min(reversal.put_back))} or more."
        )
    draws = reversal.margins_resampled
    text += f" With the mean in their place it is {decimal(reversal.margin_mean)}"
    if draws:
        text += (
            "; with their output in other texts it is below zero in "
            f"{sum(m < 0 for m in draws)} of {len(draws)} draws"
        )
    text += "."
    each = reversal.random_reversed
    sets = f"as many heads in the same {plural(n, 'layer')}"
    if not reversal.draws:
        return f"{text} There is no other set of {sets}."
    return (
        f"{text} Of {reversal.draws} other random sets of {sets}, {each} "
        f"{'does' if each == 1 else 'do'} so."
    )


def _other_searches(reversal: Reversal) -> str:
    others = reversal.others
    most = f"more than {reversal.most}"
    kind = plural(len(others), "triple" if reversal.question == "nearer" else "text")
    if not others:
        return (
            f"Control: no {kind} of the calibration text have this margin within 20%, so how few "
            "heads reverse others is not measured; name another text by --calibration."
        )
    sizes = [most if other.heads is None else str(other.heads) for other in others]
    margins = joined([decimal(other.margin, 2) for other in others])
    return (
        f"Control: the same search on {len(sizes)} {kind} of the calibration text with the same "
        f"margin within 20% ({margins}) needs {joined(sizes)} heads."
    )


def _shuffled(result: AttributeResult) -> str:
    control = result.shuffled
    what = {
        "cosine": "pairs of texts that do not belong together",
        "target": "targets with sources that they do not belong to",
    }
    kind = _heads_of(result)
    heads = next(part.direct for part in control.parts if part.kind == kind)
    agreement = _correlated("the heads' parts there and here", control.agreement)
    return (
        f"Control: on {control.examples} {what.get(result.kind, 'other texts')} the mean is "
        f"{ranged(control.output)}, of which {kind} {ranged(heads)}{agreement}."
    )


def _correlated(what: str, spearman: float | None) -> str:
    return "" if spearman is None else f"; {what} have a Spearman correlation of {spearman:.2f}"


def _heads_of(result: AttributeResult) -> str:
    """Name the heads whose part is shown: in a decoder, those that read the source."""
    return "cross-attention" if result.kind == "target" else "heads"


def _random(result: AttributeResult) -> str:
    control = result.control
    assert control is not None
    parts = joined([f"{part.kind} {decimal(part.direct.value)}" for part in control.parts])
    return (
        f"Control: with random weights {_of(result)} is {ranged(control.output)} ({parts})"
        f"{_correlated('direct part and effect of removal there', control.spearman)}."
    )


def _tokens(result: AttributeResult) -> Iterator[b.Block]:
    texts = ("source", "target") if result.kind == "target" else ("1", "2")
    if result.tokens:
        largest = sorted(result.tokens, key=lambda token: -abs(token.total))
        shown = sorted(largest[:_TOP], key=lambda token: (token.text, token.position))
        columns: list[b.Column] = [
            ("tokens", lambda token: visible(token.token), str),
            ("text", lambda token: texts[token.text], str),
            ("read by heads", "heads", 3),
            ("feed-forward", "feed_forward", 3),
            ("embedding", "embeddings", 3),
            ("together", "total", 3),
        ]
        yield b.Table(columns, shown, "Tokens that contribute most", on=b.TERMINAL)
        yield b.Table(columns, result.tokens, "What comes from each token", on=b.PAGE)
    if (pairs := result.pairs) is not None:
        rows, across = ([visible(t) for t in names] for names in (pairs.rows, pairs.columns))
        values = [[100 * value for value in row] for row in pairs.values]
        small = max(len(rows), len(across)) <= _TOKENS
        title = "100 x what two tokens contribute together (first text down, second across)"
        if result.kind == "target":
            title = (
                f"100 x the part of {_of(result)} that cross-attention reads from each token of "
                "the source (across) for each of the target (down)"
            )
        yield b.Matrix(title, values, rows, across, on=b.BOTH if small else b.PAGE)


def _groups_and_figures(result: AttributeResult) -> Iterator[b.Block]:
    columns: list[b.Column] = [
        ("role" if any(head.role for head in result.heads) else "layer", "name", str),
        ("heads", lambda group: str(group.heads), str),
        ("direct parts together", "direct", 3),
        ("one removed, mean effect", "removed", 4),
    ]
    yield b.Table(columns, result.groups, "Heads together", on=b.VERBOSE | b.PAGE)
    layers: list[b.Column] = [
        ("layer", "name", str),
        ("heads, direct", "heads", 3),
        ("feed-forward, direct", "feed_forward", 3),
        ("agrees with removal", "spearman", 2),
        *([("lengths counted", "spearman_first_order", 2)] if result.kind == "cosine" else []),
    ]
    yield b.Table(layers, result.layers, "Direct parts by layer", on=b.VERBOSE | b.PAGE)
    heads = _named(result)[:_BARS]
    panels: list[b.Chart] = []
    for name, title, field, colour, on in (
        (
            "What removing each head changes",
            "lost when it is removed",
            "removed",
            b.BLUE,
            b.TERMINAL,
        ),
        ("Each head's direct part", "direct part", "direct", b.ORANGE, b.VERBOSE),
    ):
        values = {(h.layer_name, h.head): getattr(h, field).value for h in result.heads}
        yield b.HeadMap(
            f"{name}, {model_name(result)}",
            f"1000 x of {_of(result)}",
            {head: None if value is None else 1000 * value for head, value in values.items()},
            digits=0,
            file=f"attribute_{field}",
            on=on,
        )
        bars = [getattr(head, field).joint for head in heads]
        series = b.Series(title, [head.name for head in heads], bars, "bars", colour)
        panels.append(b.Chart(title, f"of {_of(result)}", "", [series]))
    if heads:
        yield b.Panels(
            f"The heads that change {_of(result)} most when removed, {model_name(result)}",
            panels,
            "attribute_heads",
            across=2,
            size=(9.0, 5.6),
            alt="What is lost without each head, and its direct part; the numbers are in "
            "attribute.csv.",
            on=b.PAGE,
        )


def _size(head: AttributedHead) -> float:
    return abs(head.removed.value or 0.0)


def _name(result: AttributeResult) -> str:
    if result.kind == "cosine":
        return "The cosine"
    if result.kind == "target":
        return f"The logit of {visible(result.label)}" if result.label else "The mean target logit"
    what = "label" if result.outputs == INDEPENDENT else result.kind
    if result.outputs == NUMBERS:
        named = result.label not in ("", "LABEL_0")  # transformers' name of what has none
        return f"The score {visible(result.label)}" if named else "The score"
    return f"The logit of the {what} {visible(result.label)}" if result.label else "The logit"


def _kind(result: AttributeResult) -> str:
    if result.outputs == NUMBERS:
        return "a score"
    return "a cosine" if result.kind == "cosine" else "a logit"


def _of(result: AttributeResult) -> str:
    name = _name(result)
    return name[0].lower() + name[1:]


def _run_lines(result: AttributeResult) -> str:
    lines = [model_line(result).plain]
    data = result.provenance["data"]
    if data is not None:
        drawn = f" ({data['drawn']})" if data.get("drawn") else ""
        lines.append(
            f"Data    {data['name']}: {result.examples:,} "
            f"{plural(result.examples, 'example')}{drawn}, heads removed on {result.removals}"
        )
    text = result.calibration
    means = f"Means   {text['name']}: {text['lines']:,} lines, {text['tokens']:,} tokens"
    if dropped := text.get("dropped"):
        means += f" ({dropped:,} that share a sentence with these texts left out)"
    if text.get("same"):
        means += "; they are of the texts that are measured (--calibration names others)"
    lines.append(means)
    return "\n".join(lines)


def _next(result: AttributeResult) -> b.Text:
    top = max(result.heads, key=_size)
    if not result.texts or top.stack != "encoder":
        return next_step(result, "what do these heads look at?", "classify {}")
    text = shlex.quote(visible(result.texts[0])).replace("{", "{{").replace("}", "}}")
    return next_step(
        result, f"what {top.name} does here:", f"explain {{}} {text} --head {top.name}"
    )


def _cards(result: AttributeResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head of the first stack: its part, and what is lost without it."""
    for head in result.heads:
        if head.stack != result.heads[0].stack:
            continue
        text = (
            f"{ranged(head.removed)} of {_of(result)} {ranged(result.output)} is lost without it "
            f"({ranged(head.removed_mean)} where its mean stays, {ranged(head.resampled)} where it "
            "puts out what it does elsewhere)"
        )
        values = {"removed": head.removed.value}
        if head.direct.value is not None:
            text += f"; its direct part is {ranged(head.direct)}"
            values["direct"] = head.direct.value
        yield Card(head.layer, head.head, facts=[("Attribution", text)], values=values)


def _key_numbers(result: AttributeResult) -> Iterator[KeyNumber]:
    kind = _heads_of(result)
    heads = result.part(kind)
    output = result.output
    control = next(part.direct for part in result.shuffled.parts if part.kind == kind)
    texts = {"cosine": "unrelated texts", "target": "unrelated sources"}
    yield KeyNumber(
        f"{kind}{chr(39)}{'' if kind == 'heads' else 's'} direct part of {_kind(result)}",
        f"{ranged(heads)} of {ranged(output)}",
        f"{texts.get(result.kind, 'other texts')} {ranged(control)}",
        heads,
    )


VIEW = view(
    "Which heads made this output",
    blocks,
    {
        "attribute": AttributeResult.to_frame,
        "attribute_parts": AttributeResult.parts_frame,
        "attribute_tokens": AttributeResult.tokens_frame,
        "attribute_pairs": AttributeResult.pairs_frame,
        "attribute_curves": AttributeResult.curves_frame,
    },
    facts=_cards,
    scales=(
        Scale("removed", "Effect of removing it on one output"),
        Scale("direct", "Direct part of one output"),
    ),
    key_numbers=_key_numbers,
    page="attribute",
)
