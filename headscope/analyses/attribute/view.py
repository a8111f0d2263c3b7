"""What is shown of ``attribute``: the sum, the heads that matter most when removed, and tokens."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headscope.analyses.attribute.rankings_view import ranking_blocks
from headscope.analyses.attribute.result import AttributedHead, AttributeResult, TokenPairs
from headscope.analyses.attribute.sentences import (
    agreement_sentence,
    heads_shown,
    kind_name,
    largest_effects_sentence,
    next_tokens_sentence,
    output_name,
    random_weights_sentence,
    shuffled_sentence,
    sum_sentence,
)
from headscope.core.rounding import above
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import joined, model_line, model_name, plural
from headscope.show.estimates import ranged
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view

_TOP = 8  # Heads in the table of the largest effects.
_BARS = 24  # Heads in the figure of bars.
#: Tokens of a text up to which the terminal shows a table of pairs.
_TOKENS = 24


def blocks(result: AttributeResult) -> Iterator[b.Block]:
    """Show the sum, the heads by effect of removal with their parts, controls and tokens."""
    yield from _sum(result)
    yield b.Text(shuffled_sentence(result), "control")
    if result.control is not None:
        yield b.Text(random_weights_sentence(result), "control")
    yield from _largest(result)
    yield b.Text(agreement_sentence(result))
    yield from ranking_blocks(result)
    if result.tokens:
        yield from _tokens(result)
    if result.pairs is not None:
        yield _pairs(result, result.pairs)
    yield from _groups_and_layers(result)
    yield from _head_maps(result)
    yield from _bars(result)
    yield b.Text(_run_lines(result), "soft", on=b.TERMINAL)
    yield _next(result)


# --- the sum and the largest effects --------------------------------------------------------------


def _sum(result: AttributeResult) -> Iterator[b.Block]:
    """Show what the output is the sum of, and of which texts it is."""
    summed = sum_sentence(result)
    yield b.Text(summed, "lead", b.TERMINAL)
    if result.texts:
        yield b.Text(_texts_lines(result), "soft", b.TERMINAL)
        quoted = joined([f"\u201c{visible(text)}\u201d" for text in result.texts])
        summed = f"{quoted}: {summed[0].lower()}{summed[1:]}"
    yield b.Text(summed, "lead", b.PAGE)
    if result.next_tokens:
        yield b.Text(next_tokens_sentence(result))
    if result.skipped:
        why = "too long, or without a mask" if result.kind == "token" else "too long"
        yield b.Text(f"Examples that were left out ({why}): {result.skipped:,}.")


def _texts_lines(result: AttributeResult) -> str:
    """Write the texts of one example, a line each, with what each is."""
    names = {"cosine": ("first", "second", "third"), "target": ("source", "target")}
    named = zip(names.get(result.kind, ("text", "with")), result.texts, strict=False)
    return "\n".join(f"{name}: {visible(text)}" for name, text in named)


def _largest(result: AttributeResult) -> Iterator[b.Block]:
    """List the heads with the largest effects, with the interval that holds for all at once."""
    several = result.removals > 1
    heads = _heads_with_effects(result)
    if several:
        yield b.Text(largest_effects_sentence(result, len(heads)))
    if not heads:
        return
    # A column is its title, the attribute of a head, and how many digits are written.
    columns: list[b.Column] = [("heads", "name", str), ("removed", "removed.joint", 3)]
    if several:
        columns.append(("mean size", "removed_size.value", 3))
    columns.append(("mean left", "removed_mean.value", 3))
    columns.append(("direct part", "direct.value", 3))
    if result.kind == "cosine" and not several:  # intervals and all numbers are wider than a line
        columns.append(("lengths counted", "first_order.value", 3))
    if any(head.role for head in result.heads):
        columns.append(("role", "role", str))
    title = f"Heads that change {output_name(result)} most when removed"
    yield b.Table(columns, heads[:_TOP], title)


def _heads_with_effects(result: AttributeResult) -> list[AttributedHead]:
    """Return the heads by the size of their effect, the largest first.

    Of several examples, only those whose interval (the one for all heads at once) excludes zero.
    """
    heads = sorted(result.heads, key=_size, reverse=True)
    if result.removals == 1:
        return heads
    return [head for head in heads if _differs_from_zero(head)]


def _differs_from_zero(head: AttributedHead) -> bool:
    """Whether the interval of a head's effect excludes zero; False if there is no interval."""
    if head.removed.joint.interval is None:
        return False
    low, high = head.removed.joint.interval
    return bool(above(low, 0.0) or above(0.0, high))


def _size(head: AttributedHead) -> float:
    """Return how much the output changes without a head, in either direction."""
    return abs(head.removed.value or 0.0)


# --- tokens ---------------------------------------------------------------------------------------


def _tokens(result: AttributeResult) -> Iterator[b.Block]:
    """List what comes from each token; in the terminal only the largest."""
    text_names = ("source", "target") if result.kind == "target" else ("1", "2", "3")
    columns: list[b.Column] = [
        ("tokens", lambda token: visible(token.token), str),
        ("text", lambda token: text_names[token.text], str),
        ("read by heads", "heads", 3),
        ("feed-forward", "feed_forward", 3),
        ("embedding", "embeddings", 3),
        ("together", "total", 3),
    ]
    largest = sorted(result.tokens, key=lambda token: -abs(token.total))[:_TOP]
    in_order = sorted(largest, key=lambda token: (token.text, token.position))
    yield b.Table(columns, in_order, "Tokens that contribute most", on=b.ASKED)
    yield b.Table(columns, result.tokens, "What comes from each token", on=b.PAGE)


def _pairs(result: AttributeResult, pairs: TokenPairs) -> b.Matrix:
    """Show what each pair of tokens contributes; a long table on the page alone."""
    rows = [visible(token) for token in pairs.rows]
    columns = [visible(token) for token in pairs.columns]
    values = [[100 * value for value in row] for row in pairs.values]
    title = "100 x what two tokens contribute together (first text down, second across)"
    if result.is_difference:
        title = (
            "100 x what two tokens contribute together (first text down; second, then third "
            "across, which counts negatively)"
        )
    if result.kind == "target":
        title = (
            f"100 x the part of {output_name(result)} that cross-attention reads from each token "
            "of the source (across) for each of the target (down)"
        )
    is_small = max(len(rows), len(columns)) <= _TOKENS
    return b.Matrix(title, values, rows, columns, on=b.BOTH if is_small else b.PAGE)


# --- groups, layers and figures -------------------------------------------------------------------


def _groups_and_layers(result: AttributeResult) -> Iterator[b.Block]:
    """List heads by role or layer, and direct parts by layer."""
    by_role = any(head.role for head in result.heads)
    groups: list[b.Column] = [
        ("role" if by_role else "layer", "name", str),
        ("heads", lambda group: str(group.heads), str),
        ("direct parts together", "direct", 3),
        ("one removed, mean effect", "removed", 4),
    ]
    on = b.ASKED | b.PAGE if by_role else b.VERBOSE | b.PAGE  # --roles asks for sums by role
    yield b.Table(groups, result.groups, "Heads together", on=on)
    layers: list[b.Column] = [
        ("layer", "name", str),
        ("heads, direct", "heads", 3),
        ("feed-forward, direct", "feed_forward", 3),
        ("agrees with removal", "spearman", 2),
    ]
    if result.kind == "cosine":
        layers.append(("lengths counted", "spearman_first_order", 2))
    yield b.Table(layers, result.layers, "Direct parts by layer", on=b.VERBOSE | b.PAGE)


def _head_maps(result: AttributeResult) -> Iterator[b.Block]:
    """Draw the effect of removing each head; with --verbose its direct part, too."""
    for title, field, on in (
        ("What removing each head changes", "removed", b.TERMINAL),
        ("Each head's direct part", "direct", b.VERBOSE),
    ):
        values: dict[tuple[str, int], float | None] = {}
        for head in result.heads:
            value = getattr(head, field).value
            values[head.layer_name, head.head] = None if value is None else 1000 * value
        yield b.HeadMap(
            f"{title}, {model_name(result)}",
            f"thousandths of {output_name(result)}",
            values,
            digits=0,
            file=f"attribute_{field}",
            on=on,
        )


def _bars(result: AttributeResult) -> Iterator[b.Block]:
    """Draw the heads with the largest effects, beside their direct parts."""
    heads = _heads_with_effects(result)[:_BARS]
    if not heads:
        return
    names = [head.name for head in heads]
    removed = [head.removed.joint for head in heads]
    direct = [head.direct.joint for head in heads]
    axis = f"difference in {output_name(result)}"
    lost = b.Series("lost when it is removed", names, removed, "bars", b.BLUE)
    written = b.Series("direct part", names, direct, "bars", b.ORANGE)
    yield b.Panels(
        f"The heads that change {output_name(result)} most when removed, {model_name(result)}",
        [
            b.Chart("lost when it is removed", axis, "", [lost]),
            b.Chart("direct part", axis, "", [written]),
        ],
        "attribute_heads",
        across=2,
        size=(9.0, 5.6),
        alt="What is lost without each head, and its direct part; the numbers are in "
        "attribute.csv.",
        on=b.PAGE,
    )


# --- the run, the next step, cards and key numbers ------------------------------------------------


def _run_lines(result: AttributeResult) -> str:
    """Say which model, data and calibration text it was."""
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
    dropped = text.get("dropped")
    if dropped:
        means += f" ({dropped:,} that share a sentence with these texts left out)"
    if text.get("same"):
        means += "; they are of the texts that are measured (--calibration names others)"
    lines.append(means)
    return "\n".join(lines)


def _next(result: AttributeResult) -> b.Text:
    """Name the command that shows what the most important head does."""
    top = max(result.heads, key=_size)
    if not result.texts or top.stack != "encoder":
        return next_step(result, "what do these heads look at?", "classify {}")
    # next_step fills in the braces of its text.
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
            f"{ranged(head.removed)} of {output_name(result)} {ranged(result.output)} is lost "
            f"without it ({ranged(head.removed_mean)} where its mean stays)"
        )
        values = {"removed": head.removed.value}
        if head.direct.value is not None:
            text += f"; its direct part is {ranged(head.direct)}"
            values["direct"] = head.direct.value
        yield Card(head.layer, head.head, facts=[("Attribution", text)], values=values)


def _key_numbers(result: AttributeResult) -> Iterator[KeyNumber]:
    """Yield the heads' direct part of the output, beside that of texts that do not belong."""
    kind = heads_shown(result)
    whose = "heads'" if kind == "heads" else f"{kind}'s"
    heads = result.part(kind)
    control = next(term.direct for term in result.shuffled.parts if term.kind == kind)
    control_texts = {"cosine": "unrelated texts", "target": "unrelated sources"}
    yield KeyNumber(
        f"{whose} direct part of {kind_name(result)}",
        f"{ranged(heads)} of {ranged(result.output)}",
        f"{control_texts.get(result.kind, 'other texts')} {ranged(control)}",
        heads,
    )


VIEW = view(
    "Which heads made this output?",
    blocks,
    {
        "attribute": AttributeResult.to_frame,
        "attribute_parts": AttributeResult.parts_frame,
        "attribute_tokens": AttributeResult.tokens_frame,
        "attribute_pairs": AttributeResult.pairs_frame,
        "attribute_curves": AttributeResult.curves_frame,
    },
    cards=_cards,
    scales=(
        Scale("removed", "Effect of removing it on one output"),
        Scale("direct", "Direct part of one output"),
    ),
    key_numbers=_key_numbers,
    page="attribute",
    term="attribution",
)
