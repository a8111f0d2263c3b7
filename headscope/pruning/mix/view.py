"""What is shown of a mix of units: the answer, what stays where, the picture, its rivals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headscope.core.heads import layer_name
from headscope.core.safe_text import visible
from headscope.pruning.metric_words import (
    METRIC_NAMES,
    SHORT_NAMES,
    change_words,
    number,
    span,
)
from headscope.pruning.mix.result import LayerLeft, MixModel, MixResult
from headscope.show import blocks as b
from headscope.show.cells import csv_text, model_name, plural
from headscope.show.view import KeyNumber
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    from headscope.pruning.result import PruneResult

#: Line, colour and legend of each curve of the picture.
_CURVES = {
    "mix": ("the mix", b.BLUE),
    "heads": ("heads alone", b.VERMILION),
    "neurons": ("neurons alone", b.GREEN),
    "layers": ("whole layers", b.ORANGE),
    "random": ("random units", b.GREY),
    "vocabulary": ("vocabulary alone", b.PURPLE),
    "int8": ("8-bit weights alone", b.SKY),
}
#: Layers and Spearman on STS-B of roberta-base with fewer layers, each distilled with labels, as
#: sentence-transformers' documentation of model distillation has it.
PUBLISHED = ((12, 85.44), (6, 85.23), (4, 84.92), (3, 84.39), (2, 83.32), (1, 80.86))


def verdict(result: PruneResult) -> str:
    """Say how much smaller and faster the model is, and what its metric became."""
    mix = _mix(result)
    metric = result.metric
    name = SHORT_NAMES.get(metric, metric)
    whole, small = mix.whole, mix.mix
    parts = []
    if mix.speed is not None:
        ends = (
            "" if mix.speed.low is None else f" (95%: {mix.speed.low:.2f} to {mix.speed.high:.2f})"
        )
        parts.append(f"{mix.speed.ratio:.2f} times as fast{ends}")
    before, after = mix.megabytes
    parts.append(f"{before:.1f} -> {after:.1f} MB")
    change = change_words(metric, small.difference, small.difference_ci)
    return (
        f"A smaller model: {', '.join(parts)}; {name} {number(whole.value, metric)} -> "
        f"{number(small.value, metric)}; {change}."
    )


def kept_sentence(mix: MixResult) -> str:
    """Say what stays: ``It keeps 43 of 72 heads and 4,672 of 9,216 feed-forward neurons.``"""
    heads, neurons = mix.heads_left, mix.neurons_left
    parts = []
    if mix.layers_removed:
        names = ", ".join(_layer(layer) for layer in mix.layers_removed)
        parts.append(f"all layers but {names}")
    if heads[0] < heads[1]:
        parts.append(f"{heads[0]} of {heads[1]} heads")
    if neurons[0] < neurons[1]:
        parts.append(f"{neurons[0]:,} of {neurons[1]:,} feed-forward neurons")
    if mix.vocabulary is not None:
        parts.append(f"{mix.vocabulary.after:,} of {mix.vocabulary.before:,} vocabulary rows")
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    weights = " Its weights have 8 bits." if mix.precision == "int8" else ""
    if not text:
        return f"Nothing had to go.{weights}"
    gone = 1 - mix.mix.arithmetic
    return f"It keeps {text}; {gone:.0%} of the layers' multiplications are gone.{weights}"


def _layer(layer: Any) -> str:
    """Name a layer that went: a number, or (stack, number)."""
    return layer_name(layer) if isinstance(layer, int) else layer_name(layer[1], layer[0])


def _is_gone(layer: LayerLeft, mix: MixResult) -> bool:
    """Whether a layer went as a whole; cross-attention goes with its decoder layer."""
    gone = [each if isinstance(each, int) else tuple(each) for each in mix.layers_removed]
    stack = "decoder" if layer.stack == "cross" else layer.stack
    return layer.layer in gone or (stack, layer.layer) in gone


def blocks(result: PruneResult) -> Iterator[b.Block]:
    """Show the answer, what stays, what was tuned, the picture; behind it every number."""
    mix = _mix(result)
    if not mix.reached:
        yield b.Text(f"Not reached: {mix.missed}", "warning")
    yield b.Text(kept_sentence(mix))
    if mix.speed is not None:
        yield b.Text(_speed(mix))
    if mix.vocabulary is not None:
        lost, asked = mix.vocabulary, result.task in ("mlm", "seq2seq")
        scored = (
            " It is scored over the whole vocabulary, and where a removed piece is asked for its "
            "answer counts as wrong."
        )
        yield b.Text(
            f"{lost.texts_affected:.1%} of the evaluation texts ({lost.tokens_affected:.2%} of "
            "their tokens) would use a piece that was removed, and spell it by smaller ones."
            f"{scored if asked else ''}"
        )
    if mix.tuned is not None:
        yield b.Text(_tuned(result, mix))
    if mix.looks:
        yield b.Text(_looked(result, mix))
    yield _compared(result, mix)
    yield _picture(result, mix)
    yield from b.behind(_details(result, mix))


def _mix(result: PruneResult) -> MixResult:
    assert result.smaller is not None
    return result.smaller


def _speed(mix: MixResult) -> str:
    speed = mix.speed
    assert speed is not None
    texts = "one at a time" if mix.batch_size == 1 else f"{mix.batch_size} at a time"
    weights = "" if mix.precision == "float32" else f" ({mix.precision} against float32)"
    return (
        f"Confirmed by {speed.runs} pairs of runs in {mix.runtime} with {speed.threads} "
        f"{plural(speed.threads, 'thread')}{weights}: {speed.ms_whole:.2f} -> {speed.ms_cut:.2f} "
        f"ms a text, {texts}, on evaluation texts that had no say in the choice."
    )


def _tuned(result: PruneResult, mix: MixResult) -> str:
    tuned = mix.tuned
    assert tuned is not None
    before = next(m for m in mix.models if m.name == "mix before tuning")
    text = (
        f"Tuned for {tuned.minutes:.1f} minutes on {tuned.sentences:,} sentences of "
        f"{visible(tuned.text)}, no labels read: {result.metric} "
        f"{number(before.value, result.metric)} -> {number(mix.mix.value, result.metric)}"
    )
    if tuned.other_before.value is None or tuned.other_after.value is None:
        return f"{text}."
    verb = "nearer to" if tuned.other_after.value >= tuned.other_before.value else "farther from"
    return (
        f"{text}. On text of another kind ({visible(tuned.other_text)}) it is {verb} the whole "
        f"model than before: cosine {_cosine(tuned.other_before)} -> {_cosine(tuned.other_after)}."
    )


def _cosine(value: Estimate) -> str:
    ends = "" if value.interval is None else f" ({value.low:.3f} to {value.high:.3f})"
    return f"{value.value:.3f}{ends}"


def _looked(result: PruneResult, mix: MixResult) -> str:
    looks = [f"{1 - look.arithmetic:.0%} {'yes' if look.allowed else 'no'}" for look in mix.looks]
    return (
        "Shares of the layers' multiplications were tested in an order settled beforehand, each on "
        f"all examples, up to the first that was refused: {', '.join(looks)}."
    )


def _compared(result: PruneResult, mix: MixResult) -> b.Table:
    """One row for each model, the whole one and the mix first."""
    metric, timed = result.metric, any(m.milliseconds is not None for m in mix.models)
    rows = []
    for model in mix.models:
        ms = (
            []
            if not timed
            else ["-" if model.milliseconds is None else f"{model.milliseconds:.2f}"]
        )
        interval = "-" if model.name == "whole" else span(model.difference_ci, metric, signed=True)
        rows.append(
            [
                model.name if model.name != "int8" else "8-bit weights",
                f"{model.arithmetic:.0%}",
                f"{model.megabytes:.1f}",
                *ms,
                number(model.value, metric),
                number(model.difference, metric, signed=True) if model.name != "whole" else "-",
                interval,
            ]
        )
    columns = ["model", "arithmetic", "MB", *(["ms a text"] if timed else []), metric]
    title = "The mix and what it was weighed with" if len(rows) > 2 else ""
    return b.text_table([*columns, "change", "95%"], rows, title)


def _picture(result: PruneResult, mix: MixResult) -> b.Block:
    """Draw the metric against time and against size."""
    charts = []
    timed = all(m.milliseconds is not None for m in mix.models[:2])
    axes = [("milliseconds", "milliseconds a text")] if timed else []
    axes += [("megabytes", "megabytes of weights")]
    if not timed:
        axes.insert(0, ("arithmetic", "multiplications of the layers left"))
    for field, label in axes:
        charts.append(
            b.Chart(
                "",
                label,
                METRIC_NAMES[result.metric],
                list(_series(mix, field)),
                levels={"whole model": mix.whole.value},
                x_scale="percent" if field == "arithmetic" else "linear",
            )
        )
    return b.Panels(
        f"What a smaller {model_name(result)} is worth",
        charts,
        "mix",
        across=2,
        size=(11.0, 4.6),
        alt=f"{METRIC_NAMES[result.metric]} of the mix and of each kind of unit alone, by cost; "
        "the numbers are in mix.csv.",
        on=b.PAGE,
    )


def _series(mix: MixResult, field: str) -> Iterator[b.Series]:
    for curve, (name, colour) in _CURVES.items():
        models = [m for m in mix.models if m.curve == curve and m.name != "mix before tuning"]
        points = [(getattr(m, field), m) for m in models if getattr(m, field) is not None]
        if not points:
            continue
        if curve not in ("random", "int8"):
            points.append((getattr(mix.whole, field), mix.whole))
        points.sort(key=lambda point: point[0])
        y = [Estimate(m.value, *(m.ci or ())) for _, m in points]
        line = len(points) > 1 and curve != "random"
        x = [value for value, _ in points]
        yield b.Series(name, x, y, "line" if line else "points", colour)
    before = [m for m in mix.models if m.name == "mix before tuning"]
    for model in before:
        value = Estimate(model.value, *(model.ci or ()))
        yield b.Series(
            "the mix before tuning", [getattr(model, field)], [value], "points", b.BLUE, hollow=True
        )


def _details(result: PruneResult, mix: MixResult) -> Iterator[b.Block]:
    """Show what each layer keeps, the table of times, and the published reference."""
    rows = [
        [
            layer_name(layer.layer, layer.stack),
            "gone" if _is_gone(layer, mix) else f"{len(layer.heads)} of {layer.n_heads}",
            f"{layer.neurons:,} of {layer.n_neurons:,}" if layer.n_neurons else "-",
            ", ".join(f"H{h}" for h in range(layer.n_heads) if h not in layer.heads) or "none",
        ]
        for layer in mix.layers
    ]
    yield b.text_table(("layer", "heads left", "neurons left", "heads removed"), rows, "What stays")
    if mix.latency is not None:
        table = mix.latency
        rows = [
            [item.kind, item.stack, str(n), f"{ms:.3f}"]
            for item in table.units
            for n, ms in zip(item.counts, item.ms, strict=True)
        ]
        title = (
            f"Milliseconds a text of one layer ({table.runtime}, {table.precision}, "
            f"{table.threads} {plural(table.threads, 'thread')}); everything else "
            f"{table.rest:.2f}; a model with no say in the table took {table.checked:.2f}, the "
            f"table said {table.checked_predicted:.2f}"
        )
        yield b.text_table(("units", "stack", "left", "ms"), rows, title)
    if result.task == "similarity":
        rows = [[str(n), f"{n / 12:.0%}", f"{value:.2f}"] for n, value in PUBLISHED]
        yield b.text_table(
            ("layers", "left", "spearman"),
            rows,
            "For reference, published: roberta-base with fewer layers on STS-B, each distilled "
            "with labels (sentence-transformers, model distillation)",
        )
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in mix.seconds.items())
    yield b.Text(f"Time: {seconds}.", "soft")


def key_numbers(result: PruneResult) -> Iterator[KeyNumber]:
    """What the mix is worth, its size and its speed."""
    mix, metric = _mix(result), result.metric
    model, whole = mix.mix, mix.whole
    yield KeyNumber(
        f"{metric} of a smaller model",
        f"{number(model.value, metric)} ({span(model.ci, metric)})",
        f"whole model {number(whole.value, metric)}",
        Estimate(model.value, *(model.ci or ())),
    )
    yield KeyNumber(
        "megabytes of a smaller model",
        f"{model.megabytes:.1f}",
        f"whole model {whole.megabytes:.1f}",
        Estimate(model.megabytes),
    )
    if (speed := mix.speed) is not None:
        yield KeyNumber(
            "times as fast",
            f"{speed.ratio:.2f}",
            f"{mix.runtime}, {speed.threads} {plural(speed.threads, 'thread')}",
            Estimate(speed.ratio, speed.low, speed.high),
        )


def picture(result: PruneResult) -> bytes:
    """Draw the picture of the card, a PNG file."""
    from headscope.show.drawing import figure_files
    from headscope.show.figures import figures_of

    files = figure_files(dict(figures_of([_picture(result, _mix(result))])))
    return files["mix.png"]


def sentences(result: PruneResult) -> list[str]:
    """Return what the terminal says in words, for the card."""
    texts = (block for block in blocks(result) if isinstance(block, b.Text) and block.text)
    return [block.text for block in texts if block.style != "soft"]


def table(result: PruneResult) -> list[list[str]]:
    """Return the comparison as cells, its heading first."""
    compared = _compared(result, _mix(result))
    return [[name for name, *_ in compared.columns], *b.table_cells(compared)]


def csv_of(mix: MixResult) -> str:
    """Write every model of the picture as a row."""
    header: tuple[str, ...] = (
        "name",
        "arithmetic",
        "megabytes",
        "milliseconds",
        "value",
        "low",
        "high",
    )
    header += ("difference", "difference_low", "difference_high", "detail")
    return csv_text(header, [_csv_row(model) for model in mix.models])


def _csv_row(model: MixModel) -> Sequence[Any]:
    unknown = (None, None)
    return (
        *(model.name, model.arithmetic, model.megabytes, model.milliseconds, model.value),
        *(model.ci or unknown),
        *(model.difference, *(model.difference_ci or unknown), model.detail),
    )
