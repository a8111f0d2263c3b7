"""Pages of one file that needs nothing else and runs no script but its own.

Every string of a block is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headscope.core.roles import primary_roles, role_class
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.show.blocks import (
    PAGE,
    Block,
    Chart,
    Custom,
    Details,
    Matrix,
    Panels,
    Table,
    Text,
    table_cells,
)
from headscope.show.cells import decimal, model_line, model_name, tidy, tiny
from headscope.show.page.script_data import chart_html
from headscope.show.terminal import matrix_cell


def versions(result: Any, joint: str = ", ") -> str:
    """Say which libraries made the report, and on what; ``joint`` stands between the two."""
    made = result.provenance
    return (
        f"headscope {made['headscope']}, torch {made['torch']}, transformers "
        f"{made['transformers']}{joint}{made['dtype']} on {made['device']}, seed {made['seed']}"
    )


def proof(check: Any) -> str:
    """Say in a few words whether our attention equals the model's."""
    if check is None or check.passed is None:
        return "not validated"
    differs = f"\u2713 differs from the model by at most {tiny(check.max_abs_hidden)}"
    return differs if check.passed else "\u2717 validation failed"


def page_of(title: str, blocks: Iterable[Block], result: Any) -> str:
    """Write the page of one result: its answer, the evidence, then the rest."""
    lead, figure, rest = answered(blocks)
    model = result.provenance["model"]
    return rendered(
        "alone.html.j2",
        "",
        ("pictures.js", "charts.js", "arrows.js"),
        name=visible(model_name(result)),
        size=f"{model['n_layers']} layers \u00d7 {model['n_heads']} heads",
        proof=proof(result.validation),
        title=title,
        headline=[(tidy(text.text), text.style == "failed") for text in lead],
        model_line=visible(model_line(result)),
        warnings=[visible(warning) for warning in warnings_of(result)],
        body=body([*figure, *rest], opened=True),
        versions=visible(f"{versions(result, '; ')}. Made by: {result.provenance['command']}"),
    )


def rendered(template: str, more_style: str, scripts: Sequence[str], **values: Any) -> str:
    """Fill a template in, with the page's style and these scripts in it."""
    pages = Environment(
        loader=PackageLoader("headscope.show", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"tidy": tidy, "role_class": role_class}
    assets = resources.files("headscope.show.page")
    style = assets.joinpath("style.css").read_text("utf-8") + more_style
    script = "".join(assets.joinpath(name).read_text("utf-8") for name in scripts)
    values |= {"style": Markup(style), "script": Markup(script)}
    values |= {"style_hash": _hash(style), "script_hash": _hash(script)}
    page = pages.get_template(template).render(**values)
    return page.encode("utf-8", "replace").decode()  # a file's name may be no UTF-8


def role_colours() -> str:
    """Write the style rules of the roles' backgrounds, by day and by night."""
    colours = " ".join(f"--{r.key}: light-dark({r.light}, {r.dark});" for r in primary_roles())
    rules = " ".join(
        f".{r.key} {{ background: var(--{r.key}); }} .dot.{r.key} {{ fill: {r.colour}; }}"
        for r in primary_roles()
    )
    return f":root {{ {colours} }}\n{rules}\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- blocks as HTML ---

#: Tokens of a matrix, and columns and rows of a corner, that are shown.
_TOKENS = 16
_ACROSS = 8
_DOWN = 6
_PARAGRAPHS = {
    "formula": Markup("<p><code>{}</code></p>"),
    "check": Markup('<p class="check">{}</p>'),
    "soft": Markup('<p class="soft">{}</p>'),
    "failed": Markup('<p class="warn">{}</p>'),
    "warning": Markup('<p class="warn">{}</p>'),
}


def body(blocks: Iterable[Block], *, opened: bool = False) -> Markup:
    """Write the blocks that are for the page."""
    parts = []
    for block in blocks:
        if PAGE not in block.on or block == Text("", on=block.on):
            continue
        if isinstance(block, Text):
            form = _PARAGRAPHS.get(block.style, Markup("<p>{}</p>"))
            parts.append(form.format(tidy(block.text)))
        elif isinstance(block, Table):
            rows = map(_row, table_cells(block))
            parts.append(_table([name for name, *_ in block.columns], rows, block.title))
        elif isinstance(block, Matrix):
            parts.append(_square(block) if block.columns else _corner(block))
        elif isinstance(block, Chart | Panels):
            parts.append(chart_html(block))
        elif isinstance(block, Details):
            box = '<details class="step"{}><summary>{}</summary>{}</details>'
            inside = body(block.blocks)
            title = tidy(block.title)
            parts.append(Markup(box).format(Markup(" open" if opened else ""), title, inside))
        elif isinstance(block, Custom):
            parts.append(Markup(block.html))
    return Markup("\n").join(parts)


def answered(blocks: Iterable[Block]) -> tuple[list[Text], list[Block], list[Block]]:
    """Split the blocks of the page: the sentence that answers, its evidence, and the rest.

    What shows it is the first figure, or without one the first table.
    """
    shown = [b for b in blocks if PAGE in b.on and b != Text("", on=b.on)]
    texts = [b for b in shown if isinstance(b, Text)]
    lead = [b for b in texts if b.style in ("lead", "failed")][:1] or texts[:1]
    figures: list[Block] = [b for b in shown if isinstance(b, Chart | Panels | Custom)]
    figures = (figures or [b for b in shown if isinstance(b, Table)])[:1]
    rest = [b for b in shown if not any(b is used for used in (*lead, *figures))]
    return lead, figures, rest


def _table(header: Sequence[str], rows: Iterable[Markup], caption: str, kind: str = "") -> Markup:
    box = (
        '<div class="scroll" role="region" aria-label="{0}" tabindex="0"><table{3}>{4}'
        "<thead><tr>{1}</tr></thead>\n<tbody>\n{2}\n</tbody></table></div>"
    )
    return Markup(box).format(
        caption or header[0],
        _row(header, 'th scope="col"'),
        Markup("\n").join(Markup("<tr>{}</tr>").format(row) for row in rows),
        Markup(f' class="{kind}"') if kind else "",
        Markup("<caption>{}</caption>").format(tidy(caption)) if caption else "",
    )


def _row(cells: Sequence[str], tag: str = "td") -> Markup:
    """Write cells, the first as text and the others as numbers."""
    form = Markup(f"<{tag}{{}}>{{}}</{tag[:2]}>")
    return Markup("").join(
        form.format(Markup(' class="n"') if i else "", tidy(text)) for i, text in enumerate(cells)
    )


def _corner(block: Matrix) -> Markup:
    """Show the first rows and columns of a wide matrix."""
    values = [row[:_ACROSS] for row in block.values[:_DOWN]]
    names = [visible(name) for name in block.rows] or [str(i) for i in range(len(values))]
    shown = (len(values), len(values[0]) if values else 0)
    part = "" if shown == block.shape else f", its first {shown[0]} rows and {shown[1]} columns"
    caption = f"{block.title} ({' x '.join(map(str, block.shape))}){part}"
    rows = (_row([name, *map(decimal, row)]) for name, row in zip(names, values, strict=False))
    return _table(("", *map(str, range(shown[1]))), rows, caption)


def _square(block: Matrix) -> Markup:
    """Draw a matrix of tokens by tokens as a table whose cells are shaded in ten steps."""
    n = min(_TOKENS, len(block.rows))
    known = [v for row in block.values[:n] for v in row[:n] if v is not None]
    low, high = (0.0, 1.0) if block.weights else (min(known), max(known))
    rows = []
    for name, values in zip(block.rows[:n], block.values, strict=False):
        row = Markup('<th scope="row">{}</th>').format(name)
        for value in values[:n]:
            share = 0.0 if value is None or high <= low else (value - low) / (high - low)
            text = tidy(matrix_cell(value, block.weights))
            row += Markup('<td class="q{}">{}</td>').format(min(9, int(10 * share)), text)
        rows.append(row)
    part = "" if n == len(block.rows) else f", the first {n} of {len(block.rows)} tokens"
    # A pattern has the same tokens on both sides; titles of other matrices name their sides.
    sides = ": queries down, keys across" if block.rows == block.columns else ""
    caption = f"{block.title}{sides}{part}"
    return _table(("", *block.columns[:n]), rows, caption, "matrix")
