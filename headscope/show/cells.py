"""How all commands write tables, numbers and lists: for the terminal, CSV and Markdown.

``Table`` and ``Text`` are rich's here, not the blocks of ``show/blocks.py``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table
from rich.text import Text

from headscope.core.safe_text import markdown

if TYPE_CHECKING:
    import pandas

Layer = TypeVar("Layer")  # A layer's number, or its name
Cell = TypeVar("Cell")  # The value of a head


def make_table(
    columns: Sequence[str], rows: Iterable[Iterable[str | Text]] = (), numbers: bool = True
) -> Table:
    """Make a plain table whose first column is text; the others are numbers, or text too."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        is_number = numbers and i > 0
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def head_rows(
    cells: Mapping[tuple[Layer, int], Cell], layers: Iterable[Layer] | None = None
) -> list[tuple[Layer, list[Cell | None]]]:
    """Arrange values by (layer, head) in a row for each layer; None where there is no such head.

    ``{("L0", 0): a, ("L1", 1): b}`` -> ``[("L0", [a, None]), ("L1", [None, b])]``. ``layers`` are
    the rows, by default the layers of ``cells`` in their order.
    """
    heads = range(max((head for _, head in cells), default=-1) + 1)
    rows = dict.fromkeys(layer for layer, _ in cells) if layers is None else layers
    return [(layer, [cells.get((layer, head)) for head in heads]) for layer in rows]


def model_line(result: Any, heads: int | None = None) -> Text:
    """Say which model a result is of, and how far our attention is from the model's.

    ``heads`` is the number of all heads, if layers have different numbers of them.
    """
    model = result.provenance["model"]
    certificate = result.validation
    proof = f"checked against the model: differs by at most {tiny(certificate.max_abs_hidden)}"
    if certificate.passed is None:
        proof = "not validated (--no-validate)"
    size = model_size(model) if heads is None else f"{model['n_layers']} layers, {heads} heads"
    return Text(f"Model   {model['id']}: {model['family']}, {size}; {proof}")


def model_name(result: Any) -> str:
    """Return the last part of the model's path or id; of the demo, what it is."""
    name = last_part(result.provenance["model"]["id"])
    return "all-MiniLM-L6-v2" if name == "demo" else name


def last_part(name: object) -> str:
    """Return a path's or an id's last part: titles have no folders."""
    return str(name).rstrip("/").rpartition("/")[2]


def frame_csv(frame: pandas.DataFrame) -> str:
    """Write a frame as CSV, without its index."""
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def to_csv(result: Any) -> str:
    """Write a result's main table as CSV: its ``to_frame``."""
    return frame_csv(result.to_frame())


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write rows as CSV with a header line."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue()


def fields_csv(names: Sequence[str], items: Iterable[Any]) -> str:
    """Write attributes of items as CSV, by their dotted names.

    The column of ``error.mean`` is called ``error``, that of ``rank.value`` ``rank_value``.
    """
    header = [name.removesuffix(".mean").replace(".", "_") for name in names]
    return csv_text(header, map(attrgetter(*names), items))


def decimal(value: float | None, digits: int = 3) -> str:
    """Write a number with this many digits after the point, or a dash where there is none.

    A rounded zero has no sign.
    """
    return "-" if value is None else f"{value:z.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Write a share in percent: ``42.0%``; a dash where there is none."""
    return "-" if value is None else f"{value:z.{digits}%}"


def tiny(value: float | None) -> str:
    """Write a small number with two digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.1e}"


def ratio_text(value: float | None) -> str:
    """Write a number of any size: three digits, or powers of ten where those would be zeros."""
    if value is not None and 0 < abs(value) < 0.001:
        return tiny(value)
    return decimal(value)


def p_text(p: float | None) -> str:
    """Write a p-value, or a dash where there is none."""
    return "<1e-9" if p is not None and p < 1e-9 else tiny(p)


def interval_text(interval: Sequence[float] | None, form: int | Callable[[float], str] = 3) -> str:
    """Write a 95% interval: ``[0.910, 0.962]``; a dash where it is unknown.

    Intervals are written in this one way everywhere. ``form`` is the number of digits after the
    point, or the function that writes an end.
    """
    if interval is None:
        return "-"
    low, high = interval
    if isinstance(form, int):
        return f"[{decimal(low, form)}, {decimal(high, form)}]"
    return f"[{form(low)}, {form(high)}]"


def size_in_words(saved: Any) -> str:
    """Say how large a saved folder is, `` (48.2 MB)``; nothing where that is not known."""
    return "" if saved.megabytes is None else f" ({saved.megabytes:.1f} MB)"


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None


def plural(n: int, word: str) -> str:
    """Return ``word`` in the singular for 1, else in the plural."""
    return word if n == 1 else f"{word}s"


def joined(words: Sequence[str], last: str = "and") -> str:
    """List words in a sentence: ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def model_size(model: Mapping[str, Any], times: str = "x") -> str:
    """Say how many layers and heads a model has: ``6 layers x 12 heads``.

    Of an encoder-decoder model each stack's layers are counted. ``model`` is the description of a
    model in the provenance of a result.
    """
    stacks: Mapping[str, int] = model.get("stacks") or {}
    counts = [f"{n_layers} {stack}" for stack, n_layers in stacks.items()]
    layers = joined(counts).replace("cross", "cross-attention") or model.get("n_layers", "?")
    return f"{layers} layers {times} {model.get('n_heads', '?')} heads"


#: A hyphen that stands for a minus: before a number, and not within a word or a range.
_MINUS = re.compile(r"(?<![\w.)\]-])-(?=\.?\d)")
#: An interval, which no line break may tear apart.
_INTERVAL = re.compile(r"(\[[-+\u2212.\de%]+), ([-+\u2212.\de%]+\])")
#: What stands for a sign in plain text, longer ones first.
_SIGNS = {"+-": "±", "W_Q W_K^T": "W_QW_Kᵀ", "W_V W_O": "W_VW_O", "^T": "ᵀ", "R^2": "R²", "^2": "²"}


def tidy(text: str) -> str:
    """Write signs as print has them: a true minus, ±, R² and ᵀ; an interval stays on one line."""
    for plain, sign in _SIGNS.items():
        text = text.replace(plain, sign)
    return _INTERVAL.sub("\\1,\u00a0\\2", _MINUS.sub("\u2212", text))


def short(value: float) -> str:
    """Write a number with two significant digits and a true minus."""
    if value == 0 or abs(value) >= 100:
        return tidy(f"{value:,.0f}")
    return tidy(f"{value:.2g}" if abs(value) >= 0.001 else f"{value:.1e}")


# --- GitHub's Markdown ---


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None
) -> Iterator[str]:
    """Write a table of plain strings; the column ``bold`` stands out."""
    yield f"| {' | '.join(map(markdown, header))} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = [markdown(cell) for cell in row]
        if bold is not None:
            cells[bold] = f"**{cells[bold]}**"
        yield f"| {' | '.join(cells)} |"


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Fold lines up under a title; without lines, write nothing."""
    lines = list(lines)
    if lines:
        yield from ("", f"<details><summary>{markdown(title)}</summary>", "", *lines, "")
        yield "</details>"
