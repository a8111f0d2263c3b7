"""What is shown of ``prune``: the answer, then what stands behind it, and what was saved.

:func:`blocks` is the terminal and the page; below stand what single heads show on the page
(a ``Card`` of each, at its ``Place``: layer and head), a report's key numbers, and the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headscope.core.heads import address_name
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
    writes_next_tokens,
)
from headscope.pruning.survivors import survivors
from headscope.pruning.tables import (
    curves_blocks,
    other_metrics,
    scores_map,
    search_blocks,
    stacks_blocks,
)
from headscope.removal.metric_words import (
    METRIC_NAMES,
    amount,
    change_words,
    number,
    with_interval,
)
from headscope.show import blocks as b
from headscope.show.cells import frame_csv, model_line, size_in_words, to_csv
from headscope.show.command_lines import was_given
from headscope.show.folders import folder_files, names_of
from headscope.show.metric_names import SHORT_NAMES
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
    yield from _saved_lines(result)
    yield b.Text(_run_lines(result), "soft", on=b.TERMINAL)
    if not result.saved:
        yield _next(result)


def _next(result: PruneResult) -> b.Text:
    """Name the command that saves a model: with the heads that were removed here, or half."""
    command = "prune {} --save smaller"
    line = result.provenance.get("command", "")
    chooses = any(was_given(line, name) for name in ("max_drop", "heads", "keep_roles"))
    if not chooses:
        leading = leading_point(result)
        fraction = 0.5 if leading is None else leading[1].fraction
        command += f" --fraction {fraction:.2g}"
    return next_step(result, "keep a smaller model:", command, without=("step",))


def _tables(result: PruneResult) -> Iterator[b.Block]:
    """Show what stands behind the answer."""
    if result.stacks:
        yield from stacks_blocks(result)
    yield from other_metrics(result)
    if result.max_drop is not None:
        yield from search_blocks(result, result.max_drop)
    yield from survivors(result)
    yield from scores_map(result)


def _removed_map(result: PruneResult) -> Iterator[b.HeadMarks]:
    """Mark the heads that are removed at the point that the answer speaks of.

    Scores tell which heads there are; without them, as for heads named by hand, nothing is shown.
    """
    leading = leading_point(result)
    if leading is None or not result.scores:
        return
    curve, point = leading
    removed = {address_name(address) for address in point.heads_removed}
    marks: dict[tuple[str, int], tuple[str, str]] = {}
    scores = result.scores[0]
    for layer, row in zip(scores.names, scores.values, strict=True):
        for head, score in enumerate(row):
            if score is None:
                continue
            is_removed = f"{layer}H{head}" in removed
            marks[layer, head] = ("-", "dim") if is_removed else ("kept", "bold")
    yield b.HeadMarks(marks, f"kept and removed (-) at {point.fraction:.0%} by {curve.name}")


# --- the lines below the answer -------------------------------------------------------------------


def _run_lines(result: PruneResult) -> str:
    """Say on which model and data the result was measured, a line each."""
    metric = result.metric
    data = result.data
    lines = [model_line(result, result.n_heads).plain]
    if result.shared_layers:
        lines.append("        Layers share their weights: a head is removed from all of them.")
    lines += _stack_line(result)
    lines.append(f"Task    {result.task}: {METRIC_NAMES[metric]}")
    if result.task == "fidelity" and writes_next_tokens(result):
        lines.append("        How well it predicts the tokens of a text, --task lm measures.")
    lines += _pooling_line(result)
    counts = f"{data.examples:,} examples, {data.skipped:,} skipped"
    drawn = f"; {data.drawn}" if data.drawn else ""
    lines.append(f"Data    {data.name}: {counts}{drawn}")
    calibration = result.calibration
    if calibration is not None:
        how = "with labels" if calibration.labels else "no labels used"
        lines.append(f"Chosen  on {calibration.name}: {calibration.examples:,} examples, {how}")
    full = f"Full    {number(result.baseline.value.value, metric)}"
    if result.baseline.value.interval:
        full = f"Full    {with_interval(result.baseline.value, metric)}"
    if result.measured_examples != data.examples:
        full += f", on the {result.measured_examples:,} examples that were tested on"
    return "\n".join([*lines, full])


def _stack_line(result: PruneResult) -> Iterator[str]:
    """Name the stack that heads were removed from, unless the model is an encoder alone."""
    if result.stack == "all":
        addition = "; then each stack alone" if result.stacks else ""
        yield f"Stack   all: the heads of all stacks in one ranking{addition}"
    elif result.stack != "encoder" or _names_stacks(result):
        yield f"Stack   {result.stack}: {STACK_NAMES[result.stack]}"


def _names_stacks(result: PruneResult) -> bool:
    """Whether heads are named (stack, layer, head), not (layer, head)."""
    for curve in result.curves:
        for point in curve.points:
            if point.heads_removed:
                return len(point.heads_removed[0]) == 3
    return False


def _pooling_line(result: PruneResult) -> Iterator[str]:
    """Say how states became one embedding, where that is not the usual mean."""
    model = result.provenance.get("model", {})
    pooling = model.get("pooling")
    origin = model.get("pooling_from")
    is_usual = origin != "option" and pooling in (None, "mean", "mean, normalize")
    if result.task in ("fidelity", "similarity", "retrieval") and not is_usual:
        source = "as asked for" if origin == "option" else f"as the model's {origin} says"
        yield f"Pooling {pooling}, {source}"


def _saved_lines(result: PruneResult) -> Iterator[b.Text]:
    """Say which model was saved and why, and how to open it."""
    model = result.kept
    saved = result.saved
    if model is None or saved is None:
        return
    metric = result.metric
    count = round(model.fraction * result.n_heads)
    text = f"Kept    {way(model.method, model.repair)}: {count} of {result.n_heads} heads removed"
    if model.candidates:
        candidates = ", ".join(
            f"{way(candidate.method, candidate.repair)} {number(candidate.value, metric)}"
            for candidate in model.candidates
        )
        n_candidates = len(model.candidates)
        text += f"; the best of {n_candidates} on the calibration data ({candidates})"
    yield b.Text(f"{text}.")

    value = number(saved.measured, metric)
    value_before = number(model.value, metric)
    if value != value_before:
        value += f" ({value_before} before it was saved)"
    outputs = "every output is the same as before"
    if saved.max_difference > 0:
        outputs = f"no output differs by more than {saved.max_difference:.1e}"
    yield b.Text(
        visible(
            f"Saved to {saved.folder}{size_in_words(saved)}, its heads removed for real. Opened "
            f"again, {SHORT_NAMES.get(metric, metric)} is {value}; {outputs}. To open it in Python:"
        )
    )
    yield b.Text(saved.code, "code", b.TERMINAL)


# --- what the page shows of single heads, and the few numbers of a report -------------------------


def cards(result: PruneResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield each head's rank, and the share of heads at which it is removed first.

    The page shows the heads of one stack: the encoder, or the only one that was pruned.
    """
    shown_stack = "encoder" if result.stack == "all" else result.stack
    rank_of = _ranks(result, shown_stack, places)
    first_removed = _first_removals(result, shown_stack)
    for address in places:
        rank = rank_of.get(address)
        card = Card(*address, values={"importance": rank})
        if rank is not None:
            by_method = f"by {result.scores[0].method} (1 is kept longest)"
            card.facts.append(("Pruning rank", f"{rank} of {len(rank_of)} {by_method}"))
        if address in first_removed:
            fraction, method = first_removed[address]
            card.facts.append(("First removed", f"at {fraction:.0%} of heads ({method})"))
        yield card


def _ranks(result: PruneResult, shown_stack: str, places: Sequence[Place]) -> dict[Place, int]:
    """Rank the heads of a stack by the first method's scores; 1 is kept longest."""
    if not result.scores:
        return {}
    scores: dict[Place, float] = {}
    first = result.scores[0]
    for (stack, layer), row in zip(first.layers, first.values, strict=True):
        if stack == shown_stack:
            # Where heads were removed before, a layer may have heads 0, 2 and 5: its row has three
            # scores in this order, then None.
            heads = [address for address in places if address[0] == layer]
            known = [score for score in row if score is not None]
            scores |= zip(heads, known, strict=False)
    order = sorted(scores, key=lambda address: -scores[address])
    return {address: rank for rank, address in enumerate(order, start=1)}


def _first_removals(result: PruneResult, shown_stack: str) -> dict[Place, tuple[float, str]]:
    """Return the least share of heads at which the first method removes a head, and the method."""
    curves = chosen_curves(result.curves)
    if not curves:
        return {}
    curve = curves[0]
    first_removal: dict[Place, tuple[float, str]] = {}
    for point in sorted(curve.points, key=lambda point: point.fraction):
        for name in point.heads_removed:
            # (layer, head) of an encoder, or (stack, layer, head).
            stack, layer, head = name if len(name) == 3 else (shown_stack, *name)
            if stack == shown_stack:
                first_removal.setdefault((layer, head), (point.fraction, curve.method))
    return first_removal


def key_numbers(result: PruneResult) -> Iterator[KeyNumber]:
    """Yield what was confirmed for a bounded loss, and the answer's point beside random heads."""
    metric = result.metric
    leading = leading_point(result)
    if leading is None or leading[0].method == "random":
        return
    curve, point = leading
    search = result.max_drop
    if search is not None:
        yield KeyNumber(
            f"heads confirmed to cost at most {amount(search.wanted, metric)} of {metric}",
            f"{search.count} of {result.n_heads}",
            change_words(metric, point.difference),
            Estimate(search.count),
        )
    control = f"whole model {number(result.baseline.value.value, metric)}"
    random = random_beside(result, point)
    if random is not None:
        control += f", random heads {number(random.value.value, metric)}"
    yield KeyNumber(
        f"{metric} with {point.fraction:.0%} of heads removed",
        f"{with_interval(point.value, metric)} by {curve.name}",
        control,
        point.value,
    )


# --- files ----------------------------------------------------------------------------------------


def _files(result: PruneResult) -> dict[str, bytes]:
    """Return curves.csv, the other tables that there are, and the figures."""
    import pandas

    from headscope.show.figures import figures_of

    tests = () if result.max_drop is None else result.max_drop.looks
    rows_of = {
        "scores": _score_rows(result),
        "max_drop": [columns(test, *vars(test)) for test in tests],  # all fields of each
        "areas": _area_rows(result),
    }
    tables = {"curves": to_csv(result)}
    for name, rows in rows_of.items():
        if rows:
            tables[name] = frame_csv(pandas.DataFrame(rows))
    return folder_files(tables, dict(figures_of(blocks(result))))


def _score_rows(result: PruneResult) -> list[dict[str, Any]]:
    """Make a row for each head, with its score by every method."""
    if not result.scores:
        return []
    rows = []
    first = result.scores[0]
    for i, (stack, layer) in enumerate(first.layers):
        for head, score in enumerate(first.values[i]):
            if score is not None:
                by_method = {scores.method: scores.values[i][head] for scores in result.scores}
                rows.append({"layer": layer, "head": head, "stack": stack, **by_method})
    return rows


def _area_rows(result: PruneResult) -> list[dict[str, Any]]:
    """Make a row for each area, and for each area less another stack's."""
    areas: list[tuple[Area | AreaGap, str]] = [(area, "") for area in result.areas]
    areas += [(gap, gap.other) for gap in result.gaps]
    return [
        {
            "stack": area.stack,
            "less": other_stack,
            "method": area.method,
            "repair": area.repair,
            **estimated_columns("inner", area.inner),
        }
        for area, other_stack in areas
    ]


VIEW = View(
    lambda result: terminal(blocks(result)),
    _files,
    stale=names_of("areas", "stacks", "scores", "survivors", "max_drop"),
    cards=cards,
    scales=(Scale("importance", "Pruning rank (1 is kept longest)"),),
    key_numbers=key_numbers,
    title="How many heads can go?",
    term="pruning",
    blocks=blocks,
)
