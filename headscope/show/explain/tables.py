"""The steps of ``explain`` in the terminal; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import visible
from headscope.results.explain import ExplainResult, ExplainStep, Matrix
from headscope.show.cells import decimal, make_table, model_line
from headscope.show.explain import words
from headscope.show.explain.grids import corner, score_text, square, weight_text

__all__ = ["explain_report"]

#: Matrices of a step whose corner is shown.
_CORNERS = {
    "input": ("x",),
    "weights": ("W_Q",),
    "qkv": ("q", "k", "v", "q rotated", "k rotated"),
    "z": ("z",),
    "mix": ("output",),
    "layernorm": ("LayerNorm",),
    "ffn": ("layer output",),
}


def explain_report(result: ExplainResult) -> Iterator[RenderableType]:
    """Show the sentence, why this head, and every step with its check."""
    yield model_line(result)
    yield Text(f"Text    {visible(result.sentence)}")
    yield Text(f"Tokens  {' '.join(words.token_names(result))}")
    other = " --layer and --head choose another." if result.chosen else ""
    yield Text(f"Head    {words.chosen_text(result)}{other}")
    for step in result.steps:
        yield from _step(result, step)
    yield Text("")
    for text in result.left_out:
        yield Text(text)
    yield Text(words.passed_text(result))


def _step(result: ExplainResult, step: ExplainStep) -> Iterator[RenderableType]:
    yield Text(f"\n{step.number}. {words.TITLES[step.key]}", style="bold underline")
    yield Text(f"   {words.FORMULAS[step.key]}", style="italic")
    for text in words.said(result, step):
        yield Text(text)
    yield from _matrices(result, step)
    for check in step.checks:
        yield Text(f"Check: {words.check_text(check)}", style="green")
    if not step.checks:
        yield Text("Read from the model; nothing is computed yet.", style="dim")


def _matrices(result: ExplainResult, step: ExplainStep) -> Iterator[RenderableType]:
    names = words.token_names(result)
    if step.key == "weights":
        yield _learned(step)
    if step.key == "heads":
        yield make_table(("heads", *words.COST.values()), words.cost_rows(step))
    if step.key == "scores":
        for matrix in step.matrices:
            if matrix.name != "sequence scale":
                yield square(matrix, names, score_text, limits=_positive(matrix))
    if step.key in ("mask", "softmax"):
        which = "other direction" if step.key == "mask" else "pattern"
        matrix = step.matrix(which)
        title = words.matrix_title(result, matrix)
        yield square(matrix, names, weight_text, title=title, cell=5, limits=(0.0, 1.0))
    if step.key == "mix":
        yield _shares(step)
    for matrix in step.matrices:
        if matrix.name in _CORNERS.get(step.key, ()):
            yield corner(matrix, names if matrix.rows else ())


def _positive(matrix: Matrix) -> tuple[float, float] | None:
    """Shade a matrix of scores from 0 on, where any is above."""
    highest = max((v for row in matrix.values for v in row if v is not None), default=0.0)
    return (0.0, highest) if highest > 0 else None


def _learned(step: ExplainStep) -> Table:
    rows = (
        [m.name, " x ".join(map(str, m.shape)), decimal(step.numbers[f"norm_{m.name}"])]
        for m in step.matrices
    )
    return make_table(("matrix", "shape", "norm"), rows)


def _shares(step: ExplainStep) -> Table:
    shares = [line[0] for line in step.matrix("heads").values]
    made = make_table(("adds", "share", "length"))
    made.add_column("")
    for row, share in zip(words.share_rows(step), shares, strict=True):
        made.add_row(*row, _bar(share))
    return made


def _bar(share: float | None) -> str:
    return "#" * round(40 * max(0.0, min(1.0, share or 0.0)))
