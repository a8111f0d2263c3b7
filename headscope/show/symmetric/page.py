"""What ``symmetric`` puts on the report's page: heads changed against heads removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.symmetric import SymmetricResult
from headscope.show.cells import decimal
from headscope.show.estimates import cosine_text, ranged
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.symmetric import words
from headscope.show.view import KeyNumber

SCALES = (Scale("symmetric", "What symmetric scores in it change, 1 - cosine"),)


def section(result: SymmetricResult) -> Part:
    """What symmetric scores do to the output, beside other changes."""
    texts = (
        words.whole_sentence(result),
        words.control_sentence(result),
        words.alone_sentence(result),
        *words.notes(result),
    )
    rows = [[words.CHANGES[name], ranged(d.cosine)] for name, d in result.whole.items()]
    return Part(
        "symmetric",
        "Symmetric scores",
        [text for text in texts if text],
        _chart(result),
        header=("all heads at once", "cosine to the model's, 95% interval"),
        rows=rows,
    )


def _chart(result: SymmetricResult) -> Chart:
    """Cosine by number of heads, symmetric and removed."""
    n, lines = len(result.heads), []
    for i, (name, text) in enumerate((("symmetric", "scores symmetric"), ("removed", "removed"))):
        points: list[tuple[float, float | None]] = [(0.0, 1.0)]
        points += [(float(s.heads), getattr(s, name).cosine.value) for s in result.sets]
        points.append((float(n), result.whole[name].cosine.value))
        lines.append(Line(text, points, i, dashed=name == "removed"))
    return chart(
        lines,
        label="Cosine of the embeddings to the model's own by the number of random heads that are "
        "made symmetric, or removed; the numbers are in symmetric_sets.csv.",
        x_title="heads changed",
        y_title="cosine",
    )


def facts(result: SymmetricResult, places: Sequence[Place]) -> Iterator[Card]:
    """What each head alone does with symmetric scores, beside noise and its removal."""
    for head in result.heads:
        if head.stack != "encoder" and any(h.stack == "encoder" for h in result.heads):
            continue
        text = f"asymmetry of the scores {ranged(head.asymmetry, 2)}"
        moved = None
        if head.symmetric is not None and head.symmetric.cosine.value is not None:
            moved = 1 - head.symmetric.cosine.value
            text = (
                f"cosine {ranged(head.symmetric.cosine)} with this head's scores symmetric (random "
                f"change of the same size {cosine_text(head.noise)}, removed "
                f"{cosine_text(head.removed)}); {text}"
            )
        yield Card(head.layer, head.head, facts=[("Symmetric", text)], values={"symmetric": moved})


def key_numbers(result: SymmetricResult) -> Iterator[KeyNumber]:
    """The cosine with all scores symmetric, beside noise of the same size and no head at all."""
    whole = result.whole
    control = (
        f"random change {decimal(whole['noise'].cosine.value)}, all heads removed "
        f"{decimal(whole['removed'].cosine.value)}"
    )
    found = whole["symmetric"].cosine
    yield KeyNumber("cosine with all scores symmetric", ranged(found), control, found)
