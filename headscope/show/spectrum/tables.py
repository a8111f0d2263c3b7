"""Terminal tables of ``spectrum``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.efficient import EfficientResult
from headscope.results.spectrum import SpectrumHead, SpectrumResult
from headscope.show.cells import decimal, head_map, make_table, model_line, plus_minus
from headscope.show.spectrum import words

_HEADS_ACROSS = 14  # Heads beside each other in one block of the map.


def spectrum_report(result: SpectrumResult) -> Iterator[RenderableType]:
    """Show what was run, the verdict, the map, the controls, and the cheap forms if measured."""
    yield from _header(result)
    yield Text("\n" + words.verdict_sentence(result), style="bold")
    yield Text(words.control_sentence(result) + "\n")
    yield from _map(result)
    yield Text("")
    yield _controls(result)
    if result.efficient is not None:
        yield Text("")
        yield from _efficient(result.efficient)


def _header(result: SpectrumResult) -> Iterator[Text]:
    yield model_line(result)
    yield Text(f"Text    {result.provenance['data']['name']}: {words.sampling_sentence(result)}")
    if result.roles is not None:
        yield Text(f"Roles   from a classification on {result.roles.corpus}")


def _map(result: SpectrumResult) -> Iterator[RenderableType]:
    """Share at k of every head, in percent."""
    styles = dict.fromkeys(result.verdict.low_rank, "green")
    styles |= dict.fromkeys(result.verdict.not_low_rank, "bold red")
    positional = result.roles.positional if result.roles else {}
    cells = {
        (head.layer_name, head.head): _cell(
            head, styles.get(head.name, ""), head.name in positional
        )
        for head in result.heads
    }
    layers = dict.fromkeys(h.layer_name for h in result.heads)
    yield Text(f"% of the sum of singular values in the {result.k} largest of {result.length}")
    yield from head_map(cells, layers, across=_HEADS_ACROSS, width=5, name=str)
    yield Text(
        "+ low rank   - no more than random scores" + ("   p positional" if positional else ""),
        style="dim",
    )


def _cell(head: SpectrumHead, style: str, positional: bool) -> Text:
    mark = {"green": "+", "bold red": "-"}.get(style, " ")
    return Text(f"{'p' * positional}{100 * head.share_at_k.mean:.0f}{mark}", style=style)


def _controls(result: SpectrumResult) -> Table:
    """Random weights and closed forms beside the heads' own extremes."""
    table = make_table(("share of the k largest", "sigma", "sigma^2"))
    shares = [head.share_at_k.mean for head in result.heads]
    squares = [head.share_sq_at_k.mean for head in result.heads]
    for name, pick in (("lowest head", min), ("median head", median), ("highest head", max)):
        table.add_row(name, decimal(pick(shares)), decimal(pick(squares)))
    known: dict[str, Any] = {"random weights": result.random_weights, **result.controls}
    for name, control in known.items():
        if control is not None:
            shares_of = (control.share_at_k, control.share_sq_at_k)
            cells = (getattr(share, "mean", share) for share in shares_of)
            table.add_row(f"control: {name}", *map(decimal, cells))
    return table


def _efficient(found: EfficientResult) -> Iterator[RenderableType]:
    yield Text(
        f"What could replace full attention, on {found.sequences} sequences: error of each head's "
        "z alone (mean; 1 = zeros), attention mass kept, and fidelity of the model with all "
        "heads replaced (cosine of the pooled state)"
    )
    table = make_table(("form", "size", "cost/n^2", "error", "mass", "fidelity"))
    for point in found.points:
        control = point.form in found.controls
        table.add_row(
            f"{'control: ' if control else ''}{words.FORM_NAMES[point.form]}",
            str(point.size),
            decimal(point.cost),
            _plus_minus(point.error, point.error_half_width),
            decimal(point.mass),
            _plus_minus(point.fidelity.mean, point.fidelity_half_width),
            style="dim" if control else None,
        )
    yield table
    yield Text(words.bound_sentence(found), style="dim")


def _plus_minus(value: float, half: float | None) -> str:
    """Write a number with half of its interval; without one where that is unknown."""
    return plus_minus(f"{value:z.3f}", half).replace("+-0.", "+-.")
