"""What ``flow`` puts on the report's page: what heads pass on, hubs and trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.core.safe_text import visible
from headscope.results.estimated import Estimated
from headscope.results.flow import FlowResult, HeadFlow
from headscope.show.cells import decimal, mean_of
from headscope.show.flow import words
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber

SCALES = (
    Scale("passed_on", "Variance of what is read, recovered from z", of_pattern=True),
    Scale("top_word", "Variance of the attended word, recovered from z", of_pattern=True),
    Scale("uas", "Attachment of trees (UAS)", of_pattern=True),
    Scale("value_width", "Effective rank of W_V over d_head"),
)


def section(result: FlowResult) -> Part | None:
    """What is passed on, the hubs and the trees; nothing for a model without heads."""
    if not result.heads:
        return None
    rows = [
        [
            visible(hub.name),
            decimal(hub.received, 2),
            decimal(hub.even, 2),
            words.number(hub.ratio),
            str(hub.occurrences),
        ]
        for hub in result.graph.hubs
    ]
    texts = (
        f"Read: {words.sentences_text(result)}.",
        words.width_sentence(result),
        words.recovery_sentence(result),
        words.hub_sentence(result),
        *words.tree_sentences(result),
    )
    header = ("hub", "received", "if even", "ratio", "seen")
    return Part("flow", "Information flow", texts, _chart(result), header=header, rows=rows)


def _chart(result: FlowResult) -> Chart:
    """Held-out R^2 by layer, mean of heads; random weights dashed."""
    names = list(dict.fromkeys(head.layer_name for head in result.heads))
    lines = []
    for i, (target, text) in enumerate(words.TARGETS.items()):
        means = [
            mean_of(
                getattr(head.recovery, target).value
                for head in result.heads
                if head.layer_name == name
            )
            for name in names
        ]
        lines.append(Line(text, [(float(x), mean) for x, mean in enumerate(means)], i))
        if result.control is not None and target in ("whole", "value"):
            value = getattr(result.control.recovery, target).value
            level = [(float(x), value) for x in range(len(names))]
            lines.append(Line(f"{text}, random weights", level, i, dashed=True))
    return chart(
        lines,
        label="Share of variance that linear readouts recover (held-out R^2) by layer, mean of "
        "heads; the numbers are in flow.csv.",
        x_title="layer",
        y_title="R^2",
        y_limits=(min(0.0, _lowest(lines)), 1.0),
        x_names=names,
    )


def _lowest(lines: Sequence[Line]) -> float:
    return min((y for line in lines for _, y in line.points if y is not None), default=0.0)


def facts(result: FlowResult, places: Sequence[Place]) -> Iterator[Card]:
    """Width, what z holds, the hub and the trees of every head."""
    for head in result.heads:
        uas = None if head.trees is None else head.trees.uas[head.trees.direction].value
        yield Card(
            head.layer,
            head.head,
            facts=list(_facts(result, head)),
            values={
                "passed_on": head.recovery.whole.value,
                "top_word": head.recovery.value.value,
                "uas": uas,
                "value_width": head.wide(),
            },
        )


def _facts(result: FlowResult, head: HeadFlow) -> Iterator[tuple[str, str]]:
    gaussian = (words.control_wide(result, "gaussian", matrix) for matrix in ("w_v", "ov"))
    mine = (head.wide("w_v"), head.wide("ov"))
    pairs = [f"{decimal(a, 2)} ({decimal(b, 2)})" for a, b in zip(mine, gaussian, strict=True)]
    yield "Width of W_V, W_V W_O", f"{pairs[0]}, {pairs[1]} of d_head (Gaussian)"
    found = head.recovery
    yield (
        "Recovered of what it reads",
        f"{words.percent(found.whole)} (random directions {words.percent(found.directions)}"
        f"{words.random_weights(result, 'whole')})",
    )
    yield (
        "Recovered of the attended word",
        f"{words.percent(found.value)} (Gaussian W_V {words.percent(found.gaussian)}; a random "
        f"word {words.percent(found.other)}{words.random_weights(result, 'value')})",
    )
    graph = head.graph
    yield (
        "Hub",
        f"{visible(graph.hub)}, in {words.number(graph.hub_share)} of the sentences (chance "
        f"{decimal(graph.hub_chance, 2)})",
    )
    if head.trees is not None and result.trees is not None:
        strongest = result.trees.baselines[result.trees.strongest]
        uas = words.number(head.trees.uas[head.trees.direction], 3)
        yield "Trees", f"UAS {uas}, {head.trees.direction} (baseline {decimal(strongest.value)})"


def key_numbers(result: FlowResult) -> Iterator[KeyNumber]:
    """What z holds of what was read and of the attended word, and the trees."""
    for name, what, control, random in (
        ("whole", "what a head reads", "random directions", "directions"),
        ("value", "the attended word's state", "Gaussian W_V", "gaussian"),
    ):
        mine: Estimated = getattr(result.recovery, name)
        chance = words.percent(getattr(result.recovery, random))
        yield KeyNumber(
            f"share of {what} that z recovers, mean of heads",
            words.percent(mine),
            f"{control} {chance}{words.random_weights(result, name)}",
            mine,
        )
    if result.trees is not None:
        trees = result.trees
        base = trees.baselines[trees.strongest]
        name = words.BASELINE_NAMES[trees.strongest]
        mine, beside = trees.combination.uas, [f"{name} {decimal(base.value)}"]
        what = "UAS of the best heads added up"
        yield KeyNumber(what, words.number(mine, 3), beside[0], mine)
