"""What is shown of ``shrink``: the answer, every model that was measured, and one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headscope.core.heads import layer_name
from headscope.removal.metric_words import SHORT_NAMES, amount, change_words, number
from headscope.show import blocks as b
from headscope.show.cells import joined, model_line, plural
from headscope.show.view import next_step, view
from headscope.shrinking.result import BatchEffect, MeasuredModel, ShrinkResult
from headscope.stats.estimate import FEWEST_TESTED

_COLOURS = {"torch": b.BLACK, "onnxruntime": b.ORANGE, "openvino": b.BLUE}


def answer(result: ShrinkResult) -> str:
    """Say in one or two sentences what came of it, loss in domain and nearness elsewhere."""
    best = result.best
    if best is None:
        if len(result.models) == 1:
            return f"Only the whole model in {result.whole.form} was measured."
        keeps = [model for model in result.models[1:] if loses_nothing(result, model)]
        known = [model for model in result.models[1:] if model.most_lost is not None]
        if not known:
            return "What other forms of the whole model lose at most is not known."
        if not keeps:
            least = min(known, key=lambda model: model.most_lost or 0.0)
            return (
                "Every other form of the whole model loses something. "
                f"{least.form} loses least: {_change(result, least)}."
            )
        fast = max(keeps, key=lambda model: model.speed.value or 0.0)
        return (
            f"Without removing anything, {fast.form} is {fast.speed.value:.2f} times as fast as "
            f"torch: {_change(result, fast)}{_also(fast)}."
        )
    what = description(result, best)
    return (
        f"{what}: {best.speed.value:.2f} times as fast, {best.megabytes:.1f} MB in place of "
        f"{result.whole.megabytes:.1f}, {_change(result, best)}{_also(best)}."
    )


def description(result: ShrinkResult, model: MeasuredModel) -> str:
    """Name a model: ``3 of 6 layers (L0, L1, L5) in openvino int8``."""
    parts = model.parts(result.whole).capitalize()
    if len(model.layers) < len(result.whole.layers):
        names = (
            layer_name(n) if isinstance(n, int) else layer_name(n[1], n[0]) for n in model.layers
        )
        parts = parts.replace(" layers", f" layers ({', '.join(names)})", 1)
    trained = "" if model.training is None else f", distilled for {model.training.minutes:.3g} min"
    return f"{parts}{trained}, in {model.form}"


def _change(result: ShrinkResult, model: MeasuredModel) -> str:
    return (
        f"{SHORT_NAMES.get(result.metric, result.metric)} "
        f"{number(result.whole.value.value, result.metric)} -> "
        f"{number(model.value.value, result.metric)}; {_loss(result, model)}"
    )


#: How near a model's outputs are to the whole one's, by what is compared.
_NEARNESS = {
    "cosine": "the mean cosine to the whole model's embeddings is {:.3f}",
    "classes": "{:.1%} of the classes are the whole model's",
    "labels": "{:.1%} of the texts have the whole model's set of labels",
    "scores": "the Spearman correlation of the scores with the whole model's is {:.3f}",
}


def _loss(result: ShrinkResult, model: MeasuredModel) -> str:
    """Say what is lost at most, or why that is not known."""
    if model.most_lost is None and result.examples < FEWEST_TESTED:
        return (
            f"what is lost at most is not known ({result.examples} examples; {FEWEST_TESTED} are "
            "needed)"
        )
    if model.most_lost is None:
        return "what is lost at most is not known"
    if model.change.interval is None:
        return "nothing is lost, since its outputs are the whole model's up to rounding"
    return change_words(result.metric, model.change)


def _also(model: MeasuredModel) -> str:
    """Say in the same sentence what it does to text of another kind."""
    parts = []
    for item in model.elsewhere:
        if item.nearness.value is None:
            continue
        text = _NEARNESS[item.of].format(item.nearness.value)
        if item.neighbours.value is not None:
            text += f", and {item.neighbours.value:.0%} of the ten nearest neighbours are the same"
        parts.append(f"on {item.text} {text}")
    elsewhere = "; " + joined(parts) if parts else ""
    depends = "" if model.batch_effect is None else "; its outputs depend on the batch"
    return elsewhere + depends


def loses_nothing(result: ShrinkResult, model: MeasuredModel) -> bool:
    """Whether no loss is seen: the interval holds zero, or its bad end is written as zero."""
    if model.most_lost is None:
        return False
    ends = model.change.interval
    holds_zero = ends is not None and ends[0] <= 0 <= ends[1]
    return holds_zero or float(number(max(model.most_lost, 0.0), result.metric)) == 0


def blocks(result: ShrinkResult) -> Iterator[b.Block]:
    """Show the answer, the table, the picture, and what everything rests on."""
    yield b.Text(answer(result), "lead" if result.best is None or result.reached else "failed")
    yield b.Text(result.stopped)
    yield _table(result)
    yield picture(result)
    yield b.Text(_other_metrics(result))
    yield from _elsewhere(result)
    yield b.Text(" ".join(_how(result)), "control")
    for sentence in result.refused:
        yield b.Text(f"Not used: {sentence}")
    for model in result.models:
        if model.batch_effect is not None:
            yield b.Text(_batch_words(result, model, model.batch_effect), "warning")
    for warning in result.warnings:
        yield b.Text(warning, "warning")
    if result.saved is not None:
        yield b.Text(
            f"Saved in {result.saved.folder}: opened again, {result.saved.file} has "
            f"{number(result.saved.measured, result.metric)}. To open it in Python:"
        )
        yield b.Text(result.saved.code, "code", b.TERMINAL)
    yield b.Text(model_line(result).plain, "soft", b.TERMINAL)
    if result.best is None:
        yield next_step(
            result, "narrower or fewer layers, distilled:", "shrink {} --speed 6 --text TEXT"
        )


def _batch_words(result: ShrinkResult, model: MeasuredModel, effect: BatchEffect) -> str:
    """Say what the texts that share a batch do to a form."""
    metric = result.metric
    low, high = (number(end(effect.values), metric) for end in (min, max))
    return (
        f"{model.form} reads a text otherwise beside other texts: last states differ by up to "
        f"{effect.difference:.1%} of the largest. So it was measured in {len(effect.values)} "
        f"orders of the texts, in batches of {result.batch_size} as its speed is: "
        f"{SHORT_NAMES.get(metric, metric)} is {low} to {high}. Its value is their mean, and its "
        "intervals hold those of every order."
    )


def _table(result: ShrinkResult) -> b.Table:
    digits = {"cosine": 4, "loss": 3}.get(result.metric, 2)
    metric = SHORT_NAMES.get(result.metric, result.metric).removeprefix("the ")
    columns: list[b.Column] = [
        ("model", _short(result), str),
        ("served by", "form", str),
        ("MB", "megabytes", 1),
        ("ms a text", "ms", 2),
        ("times as fast", "speed", 2),
        (metric, lambda model: model.value.value, digits),
        ("change (95%)", "change", digits),
    ]
    return b.Table(columns, result.models)


def _other_metrics(result: ShrinkResult) -> str:
    """Put the task's other metrics of the chosen model beside the whole one's."""
    best = result.best or result.whole
    others = [
        f"{name} {number(result.whole.metrics[name], name)} -> {number(value, name)}"
        for name, value in best.metrics.items()
        if name != result.metric and best is not result.whole
    ]
    return f"Other metrics: {', '.join(others)}." if others else ""


def _short(result: ShrinkResult) -> Callable[[MeasuredModel], str]:
    def name(model: MeasuredModel) -> str:
        parts = "whole"
        if model.neurons < result.whole.neurons:
            n = len(model.layers)
            parts = f"{n} {plural(n, 'layer')} of {model.neurons:,} neurons"
        elif len(model.layers) < len(result.whole.layers):
            parts = f"{len(model.layers)} of {len(result.whole.layers)} layers"
        if model.rows < result.whole.rows:
            parts += f", {model.rows:,} rows"
        chosen = "*" if model is result.best else ""
        return f"{parts}{chosen}"

    return name


def _elsewhere(result: ShrinkResult) -> Iterator[b.Table]:
    """Compare the models with the whole one on text of another kind, of which there is one."""
    models = [model for model in result.models if model.elsewhere]
    if not models:
        return
    text = models[0].elsewhere[0]
    columns: list[b.Column] = [
        ("model", _short(result), str),
        ("served by", "form", str),
        ("nearness to the whole model", lambda model: model.elsewhere[0].nearness, 3),
        ("ten neighbours kept", lambda model: model.elsewhere[0].neighbours, 3),
    ]
    title = f"On text of another kind: {text.text} ({text.texts:,} texts)"
    if result.target is not None or result.max_drop is not None:
        title += "; of the whole model's forms the fastest one and the one that is taken"
    yield b.Table(columns, models, title)


def picture(result: ShrinkResult) -> b.Chart:
    """Draw the paired change of the metric against milliseconds a text, a point for every model."""
    series = [
        b.Series(
            runtime,
            [model.ms.value for model in models],
            [model.change for model in models],
            "points",
            _COLOURS[runtime],
        )
        for runtime in _COLOURS
        if (models := [model for model in result.models if model.runtime == runtime])
    ]
    if (best := result.best) is not None:
        series.append(
            b.Series("chosen", [best.ms.value], [best.change.value], "points", b.VERMILION, "*")
        )
    return b.Chart(
        "Every model that was measured",
        "milliseconds a text",
        f"change of {SHORT_NAMES.get(result.metric, result.metric)}, 95%",
        series,
        "The change of the metric against milliseconds a text; the table has the numbers",
        "shrink",
        levels={"whole model": 0.0},
    )


def _how(result: ShrinkResult) -> Iterator[str]:
    read = result.provenance["data"].get("drawn") or f"{result.examples:,} examples"
    yield (
        f"Measured on {result.data}: {read}. Times of batches of "
        f"{result.batch_size} texts with the examples' own lengths, each model in turns "
        f"with the whole one in torch, {result.threads} {plural(result.threads, 'thread')}."
    )
    dropped = f"; {result.dropped:,} that are in the data were left out" if result.dropped else ""
    text = joined([str(name) for name in result.text])
    kind = "texts without labels"
    if result.task == "seq2seq":
        kind = "pairs, whose targets the decoder reads"
    if result.text:
        yield f"Trained and calibrated on {text}: {result.sentences:,} {kind}{dropped}."
    for model in result.models:
        if (t := model.training) is not None:
            ended = " (it came no nearer)" if t.ended == "no nearer" else ""
            yield (
                f"{model.parts(result.whole).capitalize()}: {t.steps:,} steps in {t.minutes:.3g} "
                f"minutes{ended}, {t.arithmetic}; distance on held-out text {t.before:.4f} before, "
                f"{t.after:.4f} after."
            )
    if result.max_drop is not None:
        yield f"At most {amount(result.max_drop, result.metric)} may be lost."


VIEW = view("A smaller model", blocks, {"models": ShrinkResult.to_frame}, page="shrink")
