"""What ``linear`` puts on the report's page: coherence of keys against the error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.linear import LinearResult
from headscope.show.cells import decimal
from headscope.show.estimates import cosine_text, ranged
from headscope.show.linear import words
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber

SCALES = (
    Scale("coherence", "Coherence of its keys"),
    Scale("linear", "Error without the softmax, best scale"),
)


def section(result: LinearResult) -> Part:
    """What is lost without the softmax, and whether keys say why."""
    texts = (
        words.loss_sentence(result),
        words.forms_sentence(result),
        f"{words.coherence_sentence(result)} {words.correlation_sentence(result)}",
        words.memory_sentence(result),
        *words.notes(result),
    )
    rows = [
        [
            form.mean.form,
            ranged(form.mean.scaled, 2),
            ranged(form.whole_scaled.cosine),
            ranged(form.whole.cosine),
        ]
        for form in result.forms
    ]
    return Part(
        "linear",
        "Without the softmax",
        [text for text in texts if text],
        _chart(result),
        header=("all heads", "error, best scale", "cosine, best scale", "cosine as it is"),
        rows=rows,
    )


def _chart(result: LinearResult) -> Chart:
    """A dot for each head: coherence of its keys against its error."""
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))
    lines = []
    for i, layer in enumerate(layers):
        points = [
            (head.coherence.value, head.error("linear").scaled.value)
            for head in result.heads
            if head.layer_name == layer and head.coherence.value is not None
        ]
        points.sort()
        lines.append(Line(layer, points, i % 8, dots=True))
    return chart(
        lines,
        label="Error of each head without softmax, at its best scale, by the coherence of its "
        "keys; the numbers are in linear.csv.",
        x_title="mean |cosine| of two keys",
        y_title="error, best scale",
    )


def facts(result: LinearResult, places: Sequence[Place]) -> Iterator[Card]:
    """Each head's error without the softmax, and how alike its keys are."""
    for head in result.heads:
        if head.stack != "encoder" and any(h.stack == "encoder" for h in result.heads):
            continue
        error = head.error("linear")
        text = (
            f"error {ranged(error.scaled, 2)} without the softmax at its best scale (even "
            f"attention {ranged(head.error('even').scaled, 2)}, constant output 1)"
        )
        if head.alone is not None:
            text += f"; alone so, cosine {cosine_text(head.alone)}"
        keys = (
            f"mean |cosine| {ranged(head.coherence, 2)}, {ranged(head.coherence_centred, 2)} "
            f"without their mean (random directions {decimal(result.random_coherence, 2)})"
        )
        yield Card(
            head.layer,
            head.head,
            facts=[("Linear", text), ("Keys", keys)],
            values={"coherence": head.coherence.value, "linear": error.scaled.value},
        )


def key_numbers(result: LinearResult) -> Iterator[KeyNumber]:
    """The cosine without the softmax, and the correlation of coherence and error."""
    linear = result.form("linear")
    cosine = linear.whole_scaled.cosine
    yield KeyNumber(
        "cosine without the softmax, best scales",
        ranged(cosine),
        f"constant outputs {decimal(result.mean_output.cosine.value)}",
        cosine,
    )
    control = "-"
    if result.control is not None:
        control = f"random weights {ranged(result.control.correlations[0].spearman, 2)}"
    what = "key coherence and error without softmax, Spearman within layers"
    found = result.correlations[0].spearman
    yield KeyNumber(what, ranged(found, 2), control, found)
