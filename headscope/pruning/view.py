"""What is shown of ``prune``: the answer, then what stands behind it, and what was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headscope.core.heads import place_name
from headscope.core.safe_text import visible
from headscope.pruning.result import Area, AreaGap, PruneResult, way
from headscope.pruning.sentences import (
    STACK_NAMES,
    chosen_curves,
    leading_point,
    random_beside,
    speed_sentence,
    stacks_sentence,
    verdict,
)
from headscope.pruning.tables import (
    curves_blocks,
    other_metrics,
    scores_map,
    search_blocks,
    single_heads,
    stacks_blocks,
    survivors,
)
from headscope.removal.metric_words import (
    METRIC_NAMES,
    SHORT_NAMES,
    amount,
    change_words,
    number,
    span,
)
from headscope.show import blocks as b
from headscope.show.cells import frame_csv, model_line, p_text, to_csv
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.terminal import terminal
from headscope.show.view import KeyNumber, View, next_step
from headscope.stats.effects import columns, estimated_columns
from headscope.stats.estimate import Estimate


def blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show the answer first, then every table behind it."""
    yield b.Text(verdict(result), "lead")
    if result.speed is not None:
        yield b.Text(speed_sentence(result.speed))
    yield b.Text(stacks_sentence(result))
    for warning in result.warnings:
        yield b.Text(f"Warning: {visible(warning)}", "warning")
    yield from _removed_map(result)
    yield from curves_blocks(result)
    yield from b.behind(_tables(result))
    yield from _kept(result)
    yield b.Text(_run_lines(result), "soft", on=b.TERMINAL)
    if not result.saved:
        yield next_step(result, "keep a smaller model:", "prune {} --fraction 0.5 --save smaller")


def _tables(result: PruneResult) -> Iterator[b.Block]:
    """Show what stands behind the answer."""
    if result.stacks:
        yield from stacks_blocks(result)
    yield from other_metrics(result)
    if result.max_drop is not None:
        yield from search_blocks(result, result.max_drop)
    yield from survivors(result)
    yield from single_heads(result)
    yield from scores_map(result)


def _removed_map(result: PruneResult) -> Iterator[b.HeadMarks]:
    """Mark the heads that the first sentence's point removes."""
    leading = leading_point(result)
    if leading is None or not result.scores or not leading[1].heads_removed:
        return
    gone = {place_name(address) for address in leading[1].heads_removed}
    marks: dict[tuple[str, int], tuple[str, str]] = {}
    for layer, row in zip(result.scores[0].names, result.scores[0].values, strict=True):
        for head in (i for i, score in enumerate(row) if score is not None):
            marks[layer, head] = ("-", "dim") if f"{layer}H{head}" in gone else ("kept", "bold")
    method = way(leading[0].method, leading[0].repair)
    legend = f"kept and removed (-) at {leading[1].fraction:.0%} by {method}"
    yield b.HeadMarks(marks, legend)


def _run_lines(result: PruneResult) -> str:
    """Say on which model and data the result was measured, a line each."""
    metric = result.metric
    data = result.data
    model = result.provenance.get("model", {})
    lines = [model_line(result, result.n_heads).plain]
    if result.shared_layers:
        lines.append("        Layers share their weights: a head is removed from all of them.")
    removed = (p.heads_removed for c in result.curves for p in c.points if p.heads_removed)
    if result.stack == "all":
        each = "; then each stack alone" if result.stacks else ""
        lines.append(f"Stack   all: the heads of all stacks in one ranking{each}")
    elif result.stack != "encoder" or len(next(removed, ((),))[0]) == 3:
        lines.append(f"Stack   {result.stack}: {STACK_NAMES[result.stack]}")
    lines.append(f"Task    {result.task}: {METRIC_NAMES[metric]}")
    pooling = model.get("pooling")
    origin = model.get("pooling_from")
    usual = origin != "option" and pooling in (None, "mean", "mean, normalize")
    if result.task in ("fidelity", "similarity", "retrieval") and not usual:
        source = "as asked for" if origin == "option" else f"as the model's {origin} says"
        lines.append(f"Pooling {pooling}, {source}")
    drawn = f"; {data.drawn}" if data.drawn else ""
    counts = f"{data.examples:,} examples, {data.skipped:,} skipped"
    lines.append(f"Data    {data.name}: {counts}{drawn}")
    if (calibration := result.calibration) is not None:
        how = "with labels" if calibration.labels else "no labels used"
        lines.append(f"Chosen  on {calibration.name}: {calibration.examples:,} examples, {how}")
    full = f"Full    {number(result.baseline.value.value, metric)}"
    if result.baseline.value.interval:
        full += f" (95% interval {span(result.baseline.value, metric)})"
    if result.measured_examples != data.examples:
        full += f", on the {result.measured_examples:,} examples that were tested on"
    return "\n".join([*lines, full])


def _kept(result: PruneResult) -> Iterator[b.Text]:
    """Say which model was saved and why, and how fast it is."""
    if (model := result.kept) is None or (saved := result.saved) is None:
        return
    count = round(model.fraction * result.n_heads)
    metric = result.metric
    text = f"Kept    {way(model.method, model.repair)}: {count} of {result.n_heads} heads removed"
    if model.candidates:
        each = (f"{way(c.method, c.repair)} {number(c.value, metric)}" for c in model.candidates)
        text += f"; the best of {len(model.candidates)} on the calibration data ({', '.join(each)})"
    yield b.Text(f"{text}.")
    measured, before = (number(v, metric) for v in (saved.measured, model.value))
    value = measured if measured == before else f"{measured} ({before} before it was saved)"
    same = "every output is the same as before"
    if saved.max_difference > 0:
        same = f"no output differs by more than {saved.max_difference:.1e}"
    yield b.Text(
        visible(
            f"Saved to {saved.folder}, its heads removed for real. Opened again, "
            f"{SHORT_NAMES.get(metric, metric)} is {value}; {same}. To open it in Python:"
        )
    )
    yield b.Text(saved.code, "code", b.TERMINAL)


def cards(result: PruneResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield each known head's rank, when it is removed first, and the model's value without it.

    The page shows the heads of one stack: the encoder, or the only one that was pruned.
    """
    here = "encoder" if result.stack == "all" else result.stack
    scores: dict[Place, float] = {}
    for first in result.scores[:1]:
        for (stack, layer), row in zip(first.layers, first.values, strict=True):
            if stack == here:  # a row counts the heads that its layer still has
                heads = [address for address in places if address[0] == layer]
                scores |= zip(heads, [v for v in row if v is not None], strict=False)
    order = sorted(scores, key=lambda address: -scores[address])
    ranks = {address: rank for rank, address in enumerate(order, start=1)}
    removed: dict[Place, tuple[float, str]] = {}
    for curve in chosen_curves(result.curves)[:1]:
        for point in sorted(curve.points, key=lambda p: p.fraction):
            for *stack_of, layer, head in point.heads_removed:
                if not stack_of or stack_of[0] == here:
                    removed.setdefault((layer, head), (point.fraction, curve.method))
    alone = {(row.layer, row.head): row for row in result.ablation if row.stack == here}
    for address in places:
        card = Card(*address, values={"importance": ranks.get(address)})
        if address in ranks:
            by = f"by {result.scores[0].method} (1 is kept longest)"
            card.facts.append(("Pruning rank", f"{ranks[address]} of {len(ranks)} {by}"))
        if address in removed:
            fraction, method = removed[address]
            text = f"at {fraction:.0%} of heads ({method})" if fraction else "never"
            card.facts.append(("First removed", text))
        if address in alone:
            effect = alone[address]
            metric = result.metric
            change = number(effect.difference.value, metric, signed=True)
            ends = span(effect.difference, metric, signed=True)
            text = f"{change} {metric} ({ends}, adj. p {p_text(effect.p_adjusted)})"
            card.facts.append(("Removed alone", text))
        yield card


def key_numbers(result: PruneResult) -> Iterator[KeyNumber]:
    """Yield what a search confirmed, and the headline's point compared with random heads."""
    metric = result.metric
    leading = leading_point(result)
    if leading is None or leading[0].method == "random":
        return
    curve, point = leading
    if (search := result.max_drop) is not None:
        yield KeyNumber(
            f"heads confirmed to cost at most {amount(search.wanted, metric)} of {metric}",
            f"{search.count} of {result.n_heads}",
            change_words(metric, point.difference),
            Estimate(search.count),
        )
    random = random_beside(result, point)
    interval = f" [{span(point.value, metric)}]" if point.value.interval else ""
    yield KeyNumber(
        f"{metric} with {point.fraction:.0%} of heads removed",
        f"{number(point.value.value, metric)}{interval} by {curve.name}",
        f"whole model {number(result.baseline.value.value, metric)}"
        + (f", random heads {number(random.value.value, metric)}" if random else ""),
        point.value,
    )


def _files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the other tables that there are, and the figures."""
    import pandas

    from headscope.show.figures import figures_of

    layers = zip(*(scores.values for scores in result.scores), strict=True)
    stack_layers = result.scores[0].layers if result.scores else ()
    methods = [scores.method for scores in result.scores]
    areas: list[tuple[Area | AreaGap, str]] = [
        *((area, "") for area in result.areas),
        *((gap, gap.other) for gap in result.gaps),
    ]

    def rows_of(items: Iterable[Any]) -> list[dict[str, Any]]:
        return [columns(item, *vars(item)) for item in items]

    rows: dict[str, list[dict[str, Any]]] = {
        "scores": [
            {"layer": layer, "head": head, "stack": stack}
            | dict(zip(methods, of_head, strict=True))
            for (stack, layer), by_method in zip(stack_layers, layers, strict=True)
            for head, of_head in enumerate(zip(*by_method, strict=True))
            if of_head[0] is not None
        ],
        "max_drop": rows_of(result.max_drop.looks if result.max_drop else ()),
        "areas": [
            {"stack": item.stack, "less": less, "method": item.method, "repair": item.repair}
            | {**estimated_columns("inner", item.inner)}
            for item, less in areas
        ],
        "ablation": rows_of(result.ablation),
        "kept_alone": rows_of(result.kept_alone),
    }
    tables = {name: frame_csv(pandas.DataFrame(items)) for name, items in rows.items() if items}
    return folder_files({"curves": to_csv(result), **tables}, dict(figures_of(blocks(result))))


VIEW = View(
    lambda result: terminal(blocks(result)),
    _files,
    stale=names_of("areas", "stacks", "scores", "survivors", "ablation", "kept_alone", "max_drop"),
    facts=cards,
    scales=(Scale("importance", "Pruning rank (1 is kept longest)"),),
    key_numbers=key_numbers,
    title="Pruning",
    blocks=blocks,
)
