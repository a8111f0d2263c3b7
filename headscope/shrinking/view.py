"""What is shown of ``shrink``: the answer, every model that was measured, and one picture.

:func:`blocks` lists what is shown, in order; :func:`answer` is the first sentence. Blocks are made
with :mod:`headscope.show`, here ``b``. A *form* is a runtime and a precision; the *whole model* is
the one that was given, in torch. ``result.best`` is the model that was chosen; it may fail to reach
what was asked for (``reached``). ``most_lost`` of a model is the bad end of the interval of its
metric's change; ``elsewhere`` is how near its outputs stay on text of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headscope.core.heads import layer_name
from headscope.removal.metric_words import amount, change_words, number
from headscope.show import blocks as b
from headscope.show.cells import joined, last_part, model_line, plural, size_in_words
from headscope.show.command_lines import was_given
from headscope.show.metric_names import SHORT_NAMES
from headscope.show.view import next_step, view
from headscope.shrinking.result import BatchEffect, MeasuredModel, ShrinkResult
from headscope.stats.estimate import FEWEST_TESTED

_COLOURS = {"torch": b.BLACK, "onnxruntime": b.ORANGE, "openvino": b.BLUE}


def answer(result: ShrinkResult) -> str:
    """Say what the chosen model gains and loses, also on text of another kind.

    Without a chosen model, which form of the whole model is fastest.
    """
    if result.best is None:
        return _answer_about_whole(result)
    best = result.best
    confirmed = "" if result.speeds_confirmed or best.is_whole else " (not confirmed)"
    return (
        f"{description(result, best)}: {best.speed.value:.2f} times as fast{confirmed}, "
        f"{best.megabytes:.1f} MB in place of {result.whole.megabytes:.1f}, "
        f"{_change(result, best)}{_words_elsewhere(best)}."
    )


def _answer_about_whole(result: ShrinkResult) -> str:
    """Say which form of the whole model is fastest of those that lose nothing, if one does."""
    other_forms = result.models[1:]
    if not other_forms:
        return f"Only the whole model in {result.whole.form} was measured."
    known = [model for model in other_forms if model.most_lost is not None]
    if not known:
        return "What other forms of the whole model lose at most is not known."
    lossless = [model for model in other_forms if loses_nothing(result, model)]
    if not lossless:
        least = min(known, key=lambda model: model.most_lost or 0.0)
        return (
            "Every other form of the whole model loses something. "
            f"{least.form} loses least: {_change(result, least)}."
        )
    fastest = _fastest_lossless(result)
    assert fastest is not None  # one of these
    confirmed = "" if result.speeds_confirmed else " (not confirmed)"
    return (
        f"Without removing anything, {fastest.form} is {fastest.speed.value:.2f} times as fast as "
        f"torch{confirmed}: {_change(result, fastest)}{_words_elsewhere(fastest)}."
    )


def _fastest_lossless(result: ShrinkResult) -> MeasuredModel | None:
    """Return the fastest form of the whole model that loses nothing; None where none does."""
    lossless = [model for model in result.models[1:] if loses_nothing(result, model)]
    return max(lossless, key=lambda model: model.speed.value or 0.0, default=None)


def description(result: ShrinkResult, model: MeasuredModel) -> str:
    """Name a model: ``3 of 6 layers (L0, L1, L5), distilled for 5 min, in openvino int8``."""
    size = model.size(result.whole).capitalize()
    if len(model.layers) < len(result.whole.layers):
        names = ", ".join(_layer_words(layer) for layer in model.layers)
        size = size.replace(" layers", f" layers ({names})", 1)
    trained = ""
    if model.training is not None:
        trained = f", distilled for {model.training.minutes:.3g} min"
    return f"{size}{trained}, in {model.form}"


def _layer_words(layer: Any) -> str:
    """Name a layer by its number, or by its stack and number: ``L3``, ``decoder:L3``."""
    return layer_name(layer) if isinstance(layer, int) else layer_name(layer[1], layer[0])


def _change(result: ShrinkResult, model: MeasuredModel) -> str:
    """Say what the metric was and is: ``accuracy 91.30 -> 90.95; at most 0.62 is lost``."""
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


def _words_elsewhere(model: MeasuredModel) -> str:
    """Return the end of a sentence: how near a model's outputs stay on text of another kind.

    And that they depend on the batch, where they do; empty where there is nothing to say.
    """
    clauses: list[str] = []
    for compared in model.elsewhere:
        if compared.nearness.value is None:
            continue
        text = _NEARNESS[compared.of].format(compared.nearness.value)
        if compared.neighbours.value is not None:
            text += (
                f", and {compared.neighbours.value:.0%} of the ten nearest neighbours are the same"
            )
        clauses.append(f"on {last_part(compared.text)} {text}")
    elsewhere = f"; {joined(clauses)}" if clauses else ""
    depends = "" if model.batch_effect is None else "; its outputs depend on the batch"
    return elsewhere + depends


def loses_nothing(result: ShrinkResult, model: MeasuredModel) -> bool:
    """Whether no loss is seen: the change's interval holds zero, or its bad end rounds to zero."""
    if model.most_lost is None:
        return False
    interval = model.change.interval
    holds_zero = interval is not None and interval[0] <= 0 <= interval[1]
    most_lost_as_written = number(max(model.most_lost, 0.0), result.metric)
    return holds_zero or float(most_lost_as_written) == 0


def blocks(result: ShrinkResult) -> Iterator[b.Block]:
    """Show the answer, the table, the picture, and how all of it was measured."""
    failed = result.best is not None and not result.reached
    yield b.Text(answer(result), "failed" if failed else "lead")
    yield b.Text(result.stopped)
    yield b.Text(_other_speeds(result))
    yield b.Text(_lead(result))
    if result.unsteady:
        yield b.Text(f"{result.unsteady[0].upper()}{result.unsteady[1:]}.", "warning")
    yield b.Text(_disturbance(result), "warning")
    yield _table(result)
    yield picture(result)
    yield from _speeds(result)
    yield b.Text(_other_metrics(result))
    yield from _elsewhere(result)
    yield b.Text(" ".join(_how(result)), "control")
    for sentence in result.refused:
        yield b.Text(f"Not used: {sentence}")
    for model in result.models:
        if model.batch_effect is not None:
            yield _batch_text(result, model, model.batch_effect)
    for warning in result.warnings:
        yield b.Text(warning, "warning")
    saved = result.saved
    if saved is not None:
        yield b.Text(
            f"Saved in {saved.folder}{size_in_words(saved)}: opened again, {saved.file} has "
            f"{number(saved.measured, result.metric)}. To open it in Python:"
        )
        yield b.Text(saved.code, "code", b.TERMINAL)
    yield b.Text(model_line(result).plain, "soft", b.TERMINAL)
    if result.target is None and result.max_drop is None:
        text = "" if was_given(result.provenance.get("command", ""), "text") else " --text TEXT"
        yield next_step(
            result, "narrower or fewer layers, distilled:", f"shrink {{}} --speed 6{text}"
        )


def _other_speeds(result: ShrinkResult) -> str:
    """Say how fast the answer's model is with tokenising, and on one text at a time."""
    model = result.best or _fastest_lossless(result)
    if model is None or model.is_whole:
        return ""
    with_tokenising = model.with_tokenising.value
    one_text = model.one_text.value
    if with_tokenising is None or one_text is None:  # without a tokenizer; of an older version
        return ""
    return (
        f"With tokenising it is {with_tokenising:.2f} times as fast as torch, on one text at a "
        f"time {one_text:.2f} times (without)."
    )


def _lead(result: ShrinkResult) -> str:
    """Say which of the two fastest forms is faster; empty where there are no two."""
    lead = result.lead
    if lead is None or lead.speed.value is None:
        return ""
    how_many = f"{lead.speed.value:.2f}"
    if lead.speed.interval is not None:
        how_many += " [{:.2f}, {:.2f}]".format(*lead.speed.interval)
    if lead.known and not result.unsteady:  # an equally busy machine keeps their order
        return (
            f"In turns with each other, {lead.first} is {how_many} times as fast as {lead.second}."
        )
    return (
        f"Which is faster, {lead.first} or {lead.second}, this run cannot tell: in turns with each "
        f"other, the first is {how_many} times as fast as the second."
    )


def _disturbance(result: ShrinkResult) -> str:
    """Warn of other programs; empty where they left this run its cores."""
    if not result.contended:
        return ""
    return (
        f"Other programs used up to {result.competitors:.1f} of {result.cores} cores while models "
        "were timed. Torch suffers more from that than other runtimes do: speeds come out too "
        "high, and none is confirmed. Run it again when nothing else runs."
    )


def _batch_text(result: ShrinkResult, model: MeasuredModel, effect: BatchEffect) -> b.Text:
    """Say how much a form's outputs for a text depend on the other texts of its batch.

    A warning, unless the metric is the same in every order as far as it is written.
    """
    metric = result.metric
    low = number(min(effect.values), metric)
    high = number(max(effect.values), metric)
    values = f"{low} in every order" if low == high else f"{low} to {high}"
    text = (
        f"{model.form} reads a text otherwise beside other texts: last states differ by up to "
        f"{effect.difference:.1%} of the largest. So it was measured in {len(effect.values)} "
        f"orders of the texts, in batches of {result.batch_size} as its speed is: "
        f"{SHORT_NAMES.get(metric, metric)} is {values}. Its value is their mean, and its "
        "intervals hold those of every order."
    )
    return b.Text(text, "" if low == high else "warning")


def _table(result: ShrinkResult) -> b.Table:
    """Show every model's size, speed and metric."""
    # A column: its title, a model's attribute or a function of the model, and digits or a writer.
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


def _speeds(result: ShrinkResult) -> Iterator[b.Table]:
    """Show what stands behind each speed, and speeds under other conditions."""
    if all(model.ms_of_whole.value is None for model in result.models):  # of an older version
        return
    columns: list[b.Column] = [
        ("model", _short(result), str),
        ("served by", "form", str),
        ("times as fast", lambda model: model.speed.value, 2),
        ("with tokenising", lambda model: model.with_tokenising.value, 2),
        ("one text at a time", lambda model: model.one_text.value, 2),
        ("torch beside it, ms a text", lambda model: model.ms_of_whole.value, 2),
    ]
    yield b.Table(columns, result.models, "How many times as fast as torch, in turns with it")


def _other_metrics(result: ShrinkResult) -> str:
    """Compare the task's other metrics of the chosen model with the whole one's."""
    best = result.best
    if best is None or best is result.whole:
        return ""
    changes = [
        f"{name} {number(result.whole.metrics[name], name)} -> {number(value, name)}"
        for name, value in best.metrics.items()
        if name != result.metric
    ]
    return f"Other metrics: {', '.join(changes)}." if changes else ""


def _short(result: ShrinkResult) -> Callable[[MeasuredModel], str]:
    """Return a function that names a model in a table: ``4 layers of 896 neurons*``.

    The star marks the chosen one.
    """

    def name(model: MeasuredModel) -> str:
        n_layers = len(model.layers)
        size = "whole"
        if model.neurons < result.whole.neurons:
            size = f"{n_layers} {plural(n_layers, 'layer')} of {model.neurons:,} neurons"
        elif n_layers < len(result.whole.layers):
            size = f"{n_layers} of {len(result.whole.layers)} layers"
        chosen = "*" if model is result.best else ""
        return f"{size}{chosen}"

    return name


def _elsewhere(result: ShrinkResult) -> Iterator[b.Table]:
    """Show how near models stay to the whole one on text of another kind, if that was measured."""
    models = [model for model in result.models if model.elsewhere]
    if not models:
        return
    text = models[0].elsewhere[0]  # there is one such text at most, the same for all models
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
    series: list[b.Series] = []
    for runtime, colour in _COLOURS.items():
        models = [model for model in result.models if model.runtime == runtime]
        if models:
            times = [model.ms.value for model in models]
            changes = [model.change for model in models]
            series.append(b.Series(runtime, times, changes, kind="points", colour=colour))
    if (best := result.best) is not None:
        chosen = b.Series(
            name="chosen",
            x=[best.ms.value],
            y=[best.change.value],
            kind="points",
            colour=b.VERMILION,
            marker="*",
        )
        series.append(chosen)
    return b.Chart(
        title="What each smaller model loses, and how long it takes",
        x="milliseconds a text",
        y=f"change of {SHORT_NAMES.get(result.metric, result.metric)}, 95%",
        series=series,
        alt="The change of the metric against milliseconds a text; the table has the numbers",
        file="shrink",
        levels={"whole model": 0.0},  # a horizontal line
    )


def _how(result: ShrinkResult) -> Iterator[str]:
    """Say on what everything was measured, and how the smaller models were trained."""
    examples = result.provenance["data"].get("drawn") or f"{result.examples:,} examples"
    yield (
        f"Measured on {result.data}: {examples}. Times of batches of "
        f"{result.batch_size} texts with the examples' own lengths, each model in turns "
        f"with the whole one in torch, {result.threads} {plural(result.threads, 'thread')}."
    )
    if result.competitors is not None and not result.contended:
        yield (
            f"Other programs used at most {result.competitors:.1f} of {result.cores} cores while "
            "models were timed."
        )
    if result.text:
        text = joined([str(name) for name in result.text])
        contents = "texts without labels"
        if result.task == "seq2seq":
            contents = "pairs, whose targets the decoder reads"
        dropped = ""
        if result.dropped:
            dropped = f"; {result.dropped:,} that are in the data were left out"
        yield f"Trained and calibrated on {text}: {result.sentences:,} {contents}{dropped}."
    for model in result.models:
        training = model.training
        if training is not None:
            ended = " (it came no nearer)" if training.ended == "no nearer" else ""
            yield (
                f"{model.size(result.whole).capitalize()}: {training.steps:,} steps in "
                f"{training.minutes:.3g} minutes{ended}, {training.arithmetic}; distance on "
                f"held-out text {training.before:.4f} before, {training.after:.4f} after."
            )
    if result.max_drop is not None:
        yield f"At most {amount(result.max_drop, result.metric)} may be lost."


VIEW = view("A smaller model", blocks, {"models": ShrinkResult.to_frame}, page="shrink")
