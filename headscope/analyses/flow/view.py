"""The sentences that say what ``flow`` found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.flow.result import ChosenTrees, FlowResult, HeadFlow, Trees
from headscope.core.safe_text import visible
from headscope.show.cells import (
    decimal,
    fields_csv,
    joined,
    make_table,
    mean_of,
    model_line,
    plural,
    plus_minus,
    to_csv,
)
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

__all__ = ["VIEW"]


#: What each R^2 is of.
TARGETS = {
    "whole": "all that is read",
    "directions": "all that is read, from random directions",
    "token": "the attended word's state",
    "token_directions": "the attended word's state, from random directions",
    "value": "the attended word where W_V reads",
    "gaussian": "the attended word, Gaussian W_V",
    "other": "a random word where W_V reads",
}
BASELINE_NAMES = {
    "previous": "previous word (right-branching)",
    "next": "next word (left-branching)",
    "offset": "best distance",
    "root": "all on the root",
    "random": "random trees",
}
_WIDE = 0.8  # Effective rank over d_head from which on W_V is called wide here, as in claim 1.


def number(found: Estimate | None, digits: int = 2) -> str:
    """Write a number with half of its interval."""
    if found is None or found.value is None:
        return "-"
    return plus_minus(f"{found.value:z.{digits}f}", found.half_width, f".{digits}f")


def percent(found: Estimate | None) -> str:
    """Write a share with half of its interval."""
    if found is None or found.value is None:
        return "-"
    return plus_minus(f"{found.value:z.0%}", found.half_width, ".1%")


def mean_wide(heads: Iterable[HeadFlow], matrix: str = "w_v") -> float | None:
    """Return the mean effective rank over d_head of the heads that have one."""
    known = [value for head in heads if (value := head.wide(matrix)) is not None]
    return fmean(known) if known else None


def control_wide(result: FlowResult, name: str, matrix: str = "w_v") -> float | None:
    """Return the same of a control, mean over its shapes; None where it was not measured."""
    found = [
        ranks / shape.d_head
        for shape in result.spectra.get(name, ())
        if (ranks := getattr(shape, matrix).effective_rank) is not None
    ]
    return fmean(found) if found else None


def width_sentence(result: FlowResult) -> str:
    """Say how much of its width W_V uses, beside the controls."""
    wide = [value for head in result.heads if (value := head.wide()) is not None]
    if not wide:
        return "Every W_V is zero."
    n = sum(value > _WIDE for value in wide)
    controls = [
        f"{said} {value:.2f}"
        for name, said in (("gaussian", "Gaussian entries"), ("fresh", "untrained"))
        if (value := control_wide(result, name)) is not None
    ]
    return (
        f"W_V uses {fmean(wide):.0%} of its width (effective rank over d_head, mean of heads; "
        f"above {_WIDE:.0%} in {n} of {len(wide)}; {', '.join(controls)})."
    )


def recovery_sentence(result: FlowResult) -> str:
    """Say how much of what is read z holds, beside random directions and random weights."""
    found, missing = result.recovery, result.not_measured
    if set(missing) >= {"whole", "value"}:
        return f"How much of what a head reads its z holds is not measured: {missing['whole']}."

    texts = []
    if "whole" not in missing:
        texts.append(
            f"A linear readout of z recovers {percent(found.whole)} of the variance of what a head "
            "reads (held out, mean of heads; as many random directions in the place of W_V "
            f"{percent(found.directions)}{random_weights(result, 'whole')})."
        )
    if "value" not in missing:
        texts.append(
            f"A linear readout of z recovers {percent(found.value)} of the variance of the state "
            "of the word attended to most, in the space that W_V reads (the same patterns with a "
            f"Gaussian W_V {percent(found.gaussian)}{random_weights(result, 'value')}; a random "
            f"word of the sentence {percent(found.other)})."
        )
    texts += [f"R^2 of {TARGETS[name]} is not measured: {why}." for name, why in missing.items()]
    return " ".join(texts)


def random_weights(result: FlowResult, name: str) -> str:
    """Say what random weights have of a number, where they were measured."""
    if result.control is None:
        return ""
    return f"; random weights {percent(getattr(result.control.recovery, name))}"


def hub_sentence(result: FlowResult) -> str:
    """Say how much goes to few words, and which these are."""
    graph = result.graph
    if graph.top_share.value is None:
        return "Hubs are not measured: no sentence is left to measure them on."
    even = "-" if graph.even_top_share is None else f"{graph.even_top_share:.0%}"
    beside = f"evenly spread: {even}"
    if result.control is not None:
        beside += f"; random weights: {percent(result.control.top_share)}"
    names = [f"{visible(hub.name)} ({number(hub.ratio, 1)} times)" for hub in graph.hubs[:5]]
    hubs = f"Hubs, beside even attention: {joined(names)}." if names else "No word is a hub."
    return (
        "The most-attended 10% of a sentence's words and special tokens receive "
        f"{percent(graph.top_share)} of the attention between them ({beside}). {hubs}"
    )


def heads_text(chosen: ChosenTrees) -> str:
    """Name chosen heads with their directions."""
    return ", ".join(f"{name} {direction}" for name, direction in chosen.heads)


def over_text(chosen: ChosenTrees, trees: Trees) -> str:
    """Say on which side of the strongest baseline chosen heads lie."""
    gap = chosen.over_baseline
    if gap.value is None or gap.interval is None:
        return f"no interval of the difference to {BASELINE_NAMES[trees.strongest]}"
    low, high = gap.interval
    side = "above" if low > 0 else "below" if high < 0 else "no different from"
    by = f" by {abs(gap.value):.3f} +-{gap.half_width:.3f}" if side[0] in "ab" else ""
    base = trees.baselines[trees.strongest]
    return f"{side} {BASELINE_NAMES[trees.strongest]} ({decimal(base.value)}){by}"


def tree_sentences(result: FlowResult) -> list[str]:
    """Say how well the best head, and the best combination, hold gold trees."""
    trees = result.trees
    if trees is None:
        return ["Trees: not measured (no gold trees, or a decoder)."]
    texts = [
        f"Best head for trees: {heads_text(trees.best)}, UAS {number(trees.best.uas, 3)}, "
        f"{over_text(trees.best, trees)}."
    ]
    n = len(trees.combination.heads)
    texts.append(
        f"{n} {plural(n, 'head')} added up: UAS {number(trees.combination.uas, 3)}, "
        f"{over_text(trees.combination, trees)}; against trees of other sentences "
        f"{number(trees.combination.swapped, 3)}{_untrained(result)}."
    )
    return texts


def _untrained(result: FlowResult) -> str:
    if result.control is None or result.control.combination_uas is None:
        return ""
    return f"; with random weights {number(result.control.combination_uas, 3)}"


def sentences_text(result: FlowResult) -> str:
    """Say what was read, and that nothing is measured where it was chosen."""
    read = result.sentences
    text = (
        f"{visible(read.name)}: fitted and chosen on {read.chosen_on:,} sentences, measured on "
        f"{read.measured_on:,} others"
    )
    left = [f"{read.repeated} repeated"] * bool(read.repeated)
    left += [f"{read.skipped} that cannot be read"] * bool(read.skipped)
    return f"{text} ({joined(left)} left out)" if left else text


def flow_report(result: FlowResult) -> Iterator[RenderableType]:
    """Show what was read, the findings, the layers, the hubs and the trees."""
    yield model_line(result, len(result.heads))
    yield Text(f"Text    {sentences_text(result)}")
    if result.sentences.note:
        yield Text(f"        {result.sentences.note}", style="dim")
    texts = (
        width_sentence(result),
        recovery_sentence(result),
        hub_sentence(result),
        *tree_sentences(result),
    )
    for text in texts:
        yield Text(f"\n{text}", style="bold")
    yield Text(
        "\nBy layer, mean of heads: the width of W_V (effective rank over d_head); the share of "
        "variance that a linear readout recovers (held out): of all that is read, from z and from "
        "random directions; of the word attended to most, with this W_V and with a Gaussian one, "
        "and of a random word; the attention that the most-attended tenth receives"
    )
    yield _layers(result)
    if result.graph.hubs:
        yield Text("\nHubs: attention received by one occurrence, mean of heads, +-95%")
        yield _hubs(result)
    if result.trees is not None:
        yield Text("\nTrees: unlabelled attachment, the gold root given, +-95% over sentences")
        yield _trees(result, result.trees)


#: Columns of held-out R^2, by number.
_COLUMNS = {
    "whole": "all read",
    "directions": "random",
    "value": "word",
    "gaussian": "Gaussian",
    "other": "other word",
}


def _layers(result: FlowResult) -> Table:
    """One row a layer, then random weights and the other controls."""
    table = make_table(("layer", "width", *_COLUMNS.values(), "top tenth"))
    names = dict.fromkeys(head.layer_name for head in result.heads)
    for name in names:
        here = [head for head in result.heads if head.layer_name == name]
        table.add_row(name, *_cells(here))
    if result.control is not None:
        control = result.control
        r2 = (getattr(control.recovery, name).value for name in _COLUMNS)
        cells = (control_wide(result, "fresh"), *r2, control.top_share.value)
        name = "random weights"
        table.add_row(name, *(decimal(cell, 2) for cell in cells), style="dim")
    gaussian = decimal(control_wide(result, "gaussian"), 2)
    even = decimal(result.graph.even_top_share, 2)
    table.add_row("chance", gaussian, *["-"] * len(_COLUMNS), even, style="dim")
    return table


def _cells(heads: list[HeadFlow]) -> list[str]:
    r2 = [mean_of(getattr(h.recovery, name).value for h in heads) for name in _COLUMNS]
    share = mean_of(head.graph.top_share.value for head in heads)
    wide = mean_of(head.wide() for head in heads)
    return [decimal(value, 2) for value in (wide, *r2, share)]


def _hubs(result: FlowResult) -> Table:
    rows = (
        [
            visible(hub.name),
            decimal(hub.received, 2),
            decimal(hub.even, 2),
            number(hub.ratio),
            str(hub.occurrences),
        ]
        for hub in result.graph.hubs
    )
    return make_table(("hub", "received", "if even", "ratio", "seen"), rows)


def _trees(result: FlowResult, trees: Trees) -> Table:
    table = make_table(("", "UAS", "no punct.", "swapped trees"))
    n = len(trees.combination.heads)
    for name, found in (
        (f"best head, {heads_text(trees.best)}", trees.best),
        (f"{n} {plural(n, 'head')} added up", trees.combination),
    ):
        cells = (found.uas, found.uas_no_punct, found.swapped)
        table.add_row(name, *(number(cell, 3) for cell in cells))
    for name, said in BASELINE_NAMES.items():
        text = f"{said} {trees.offset}" if name == "offset" else said
        pair = (trees.baselines[name], trees.baselines_no_punct[name])
        table.add_row(text, *(number(cell, 3) for cell in pair), "", style="dim")
    if result.control is not None and result.control.best_uas is not None:
        uas = number(result.control.best_uas, 3)
        table.add_row("best head of random weights", uas, "", "", style="dim")
    return table


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
            number(hub.ratio),
            str(hub.occurrences),
        ]
        for hub in result.graph.hubs
    ]
    texts = (
        f"Read: {sentences_text(result)}.",
        width_sentence(result),
        recovery_sentence(result),
        hub_sentence(result),
        *tree_sentences(result),
    )
    header = ("hub", "received", "if even", "ratio", "seen")
    return Part("flow", "Information flow", texts, _chart(result), header=header, rows=rows)


def _chart(result: FlowResult) -> Chart:
    """Held-out R^2 by layer, mean of heads; random weights dashed."""
    names = list(dict.fromkeys(head.layer_name for head in result.heads))
    lines = []
    for i, (target, text) in enumerate(TARGETS.items()):
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
    gaussian = (control_wide(result, "gaussian", matrix) for matrix in ("w_v", "ov"))
    mine = (head.wide("w_v"), head.wide("ov"))
    pairs = [f"{decimal(a, 2)} ({decimal(b, 2)})" for a, b in zip(mine, gaussian, strict=True)]
    yield "Width of W_V, W_V W_O", f"{pairs[0]}, {pairs[1]} of d_head (Gaussian)"
    found = head.recovery
    yield (
        "Recovered of what it reads",
        f"{percent(found.whole)} (random directions {percent(found.directions)}"
        f"{random_weights(result, 'whole')})",
    )
    yield (
        "Recovered of the attended word",
        f"{percent(found.value)} (Gaussian W_V {percent(found.gaussian)}; a random "
        f"word {percent(found.other)}{random_weights(result, 'value')})",
    )
    graph = head.graph
    yield (
        "Hub",
        f"{visible(graph.hub)}, in {number(graph.hub_share)} of the sentences (chance "
        f"{decimal(graph.hub_chance, 2)})",
    )
    if head.trees is not None and result.trees is not None:
        strongest = result.trees.baselines[result.trees.strongest]
        uas = number(head.trees.uas[head.trees.direction], 3)
        yield "Trees", f"UAS {uas}, {head.trees.direction} (baseline {decimal(strongest.value)})"


def key_numbers(result: FlowResult) -> Iterator[KeyNumber]:
    """What z holds of what was read and of the attended word, and the trees."""
    for name, what, control, random in (
        ("whole", "what a head reads", "random directions", "directions"),
        ("value", "the attended word's state", "Gaussian W_V", "gaussian"),
    ):
        mine: Estimate = getattr(result.recovery, name)
        chance = percent(getattr(result.recovery, random))
        yield KeyNumber(
            f"share of {what} that z recovers, mean of heads",
            percent(mine),
            f"{control} {chance}{random_weights(result, name)}",
            mine,
        )
    if result.trees is not None:
        trees = result.trees
        base = trees.baselines[trees.strongest]
        name = BASELINE_NAMES[trees.strongest]
        mine, beside = trees.combination.uas, [f"{name} {decimal(base.value)}"]
        what = "UAS of the best heads added up"
        yield KeyNumber(what, number(mine, 3), beside[0], mine)


#: Columns of the table of hubs.
_HUBS = ("name", "received", "even", "ratio.value", "ratio.half_width", "occurrences")


def flow_files(result: FlowResult) -> dict[str, bytes]:
    """Return flow.csv, flow_hubs.csv and the figures; that of the trees only where there are."""
    from headscope.analyses.flow.figures import recovery_by_layer, tree_map

    csv = {"flow": to_csv(result), "flow_hubs": fields_csv(_HUBS, result.graph.hubs)}
    figures = {"flow": recovery_by_layer(result)}
    if result.trees is not None:
        figures["flow_trees"] = tree_map(result, result.trees)
    return folder_files(csv, figures)


VIEW = View(
    flow_report,
    flow_files,
    stale=names_of("flow_trees"),
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
