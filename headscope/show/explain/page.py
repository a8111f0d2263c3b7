"""What ``explain`` puts on the report's page, and on a page of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from headscope.core.safe_text import visible
from headscope.results.estimated import Estimated
from headscope.results.explain import ExplainResult, ExplainStep, Matrix
from headscope.show.cells import decimal
from headscope.show.explain import words
from headscope.show.explain.arrows import arrows
from headscope.show.explain.grids import score_text, weight_text
from headscope.show.page.parts import Card, Part, Place
from headscope.show.view import KeyNumber

__all__ = ["facts", "key_numbers", "section"]

#: Tokens, and numbers of a wide matrix, that are shown.
_MOST, _ACROSS, _DOWN = 16, 8, 6
#: Opacity of the darkest cell: its number can still be read on it.
_DARKEST = 0.5
#: Matrices that the terminal leaves out too, or that have a table of their own.
_ELSEWHERE = ("sequence scale", "cost", "heads", "z W_O", "x + attention", "mask")


def section(result: ExplainResult, *, opened: bool = False) -> Part:
    """Show the sentence's attention as arrows, then every step, folded up unless ``opened``."""
    texts = [
        f"\u201c{visible(result.sentence)}\u201d, followed through one head.",
        words.chosen_text(result),
        words.passed_text(result),
        *result.left_out,
    ]
    steps = Markup("").join(_step(result, step, opened) for step in result.steps)
    return Part("explain", "One sentence, step by step", texts, body=arrows(result) + steps)


def facts(result: ExplainResult, places: Sequence[Place]) -> Iterator[Card]:
    """Say of every head how it spreads its attention on the sentence."""
    for head in result.heads:
        text = f"{head.entropy:.2f} bits (evenly spread {head.even:.2f})"
        yield Card(head.layer, head.head, facts=[("Entropy on the explained sentence", text)])


def key_numbers(result: ExplainResult) -> Iterator[KeyNumber]:
    """How the explained head spreads its attention, beside attention that is spread evenly."""
    softmax = result.step("softmax")
    if softmax is not None:
        entropy, even = (softmax.numbers[name] for name in ("entropy", "even"))
        yield KeyNumber(
            "entropy of the explained head on its sentence, bits",
            f"{decimal(entropy, 2)} ({result.name})",
            f"even {decimal(even, 2)}",
            Estimated(entropy),
        )


def _step(result: ExplainResult, step: ExplainStep, opened: bool) -> Markup:
    parts = [Markup("<p><code>{}</code></p>").format(words.FORMULAS[step.key])]
    parts += [Markup("<p>{}</p>").format(text) for text in words.said(result, step)]
    parts += _tables(step)
    shown = [m for m in step.matrices if m.name not in _ELSEWHERE]
    drawn = [_square(result, m) if m.columns else _corner(m) for m in shown]
    if drawn:
        box = Markup('<div class="squares">{}</div>')
        parts.append(box.format(Markup("").join(drawn)))
    parts += [
        Markup('<p class="check">{}</p>').format(words.check_text(check)) for check in step.checks
    ]
    return Markup('<details class="step"{}><summary>{}. {}</summary>{}</details>').format(
        Markup(" open") if opened else "",
        step.number,
        words.TITLES[step.key],
        Markup("").join(parts),
    )


def _tables(step: ExplainStep) -> list[Markup]:
    if step.key == "heads":
        header = ("heads", *words.COST.values())
        return [_table(header, words.cost_rows(step), "What this sentence costs")]
    if step.key == "mix":
        caption = "What is added up, as shares of the output"
        return [_table(("adds", "share", "length"), words.share_rows(step), caption)]
    return []


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Markup:
    top = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(Markup(' class="n"') if i else "", text)
        for i, text in enumerate(header)
    )
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td{}>{}</td>").format(Markup(' class="n"') if i else "", text)
                for i, text in enumerate(row)
            )
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll" role="region" aria-label="{0}" tabindex="0"><table>'
        "<caption>{0}</caption><thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>"
    ).format(caption, top, body)


def _corner(matrix: Matrix) -> Markup:
    """Show the first rows and columns of a wide matrix."""
    values = [row[:_ACROSS] for row in matrix.values[:_DOWN]]
    names = [visible(name) for name in matrix.rows] or [str(i) for i in range(len(values))]
    rows = [
        [name, *(decimal(value) for value in row)] for name, row in zip(names, values, strict=False)
    ]
    size = " x ".join(map(str, matrix.shape))
    shown = (len(values), len(values[0]) if values else 0)
    part = "" if shown == matrix.shape else f", its first {shown[0]} rows and {shown[1]} columns"
    header = ("", *map(str, range(shown[1])))
    return _table(header, rows, f"{matrix.name} ({size}){part}")


def _square(result: ExplainResult, matrix: Matrix) -> Markup:
    """Draw a matrix of tokens by tokens, shaded, each cell with its number."""
    names = words.token_names(result)[:_MOST]
    n, side, left, top = len(names), 26, 84, 70
    weights = matrix.name in ("pattern", "other direction")
    known = [v for row in matrix.values[:n] for v in row[:n] if v is not None]
    low, high = (0.0, 1.0) if weights else (min(known), max(known))
    cells = []
    for i, name in enumerate(names):
        middle = (i + 0.5) * side + 4
        at = left + middle
        short = name if len(name) <= 11 else f"{name[:10]}\u2026"
        cells.append(
            Markup(
                '<text x="{}" y="{}" text-anchor="end">{}</text>'
                '<text x="{}" y="{}" transform="rotate(-60 {} {})">{}</text>'
            ).format(left - 5, top + middle, short, at, top - 5, at, top - 5, short)
        )
        for j, value in enumerate(matrix.values[i][:n]):
            cells.append(_cell(value, left + j * side, top + i * side, side, low, high, weights))
    title = words.matrix_title(result, matrix)
    part = "" if n == len(result.tokens) else f", the first {n} of {len(result.tokens)} tokens"
    caption = f"{title}: queries down, keys across{part}"
    return Markup(
        '<figure><figcaption class="soft">{0}</figcaption><svg class="heat" viewBox="0 0 {1} {2}" '
        'role="img" aria-label="{0}">{3}</svg></figure>'
    ).format(caption, left + n * side + 34, top + n * side + 4, Markup("").join(cells))


def _cell(
    value: float | None, x: int, y: int, side: int, low: float, high: float, weights: bool
) -> Markup:
    if value is None:
        return Markup()
    share = 0.0 if high <= low else (value - low) / (high - low)
    text = weight_text(value) if weights else score_text(value)
    return Markup(
        '<rect x="{}" y="{}" width="{}" height="{}" fill-opacity="{:.2f}"/>'
        '<text class="value" x="{}" y="{}" text-anchor="middle">{}</text>'
    ).format(
        *(x, y, side - 1, side - 1, _DARKEST * share),
        *(x + side // 2, y + side // 2 + 3, text),
    )
