"""Pages of one file that needs nothing else and runs no script but its own.

Every string of a block is escaped here, and figures are images of matplotlib's SVG.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote

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
    Drawing,
    Matrix,
    Panels,
    Table,
    Text,
    table_cells,
)
from headscope.show.cells import decimal, model_line, tidy
from headscope.show.page.parts import Part
from headscope.show.style import FigureStyle, styled
from headscope.show.terminal import matrix_cell

_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_json(data: Any) -> Markup:
    """Write JSON that no HTML parser can take for anything else; pure ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup("".join(_ESCAPES.get(char, char) for char in text))


def versions(result: Any, joint: str = ", ") -> str:
    """Say which libraries made the report, and on what; ``joint`` stands between the two."""
    made = result.provenance
    return (
        f"headscope {made['headscope']}, torch {made['torch']}, transformers "
        f"{made['transformers']}{joint}{made['dtype']} on {made['device']}, seed {made['seed']}"
    )


def part_html(part: Part, result: Any) -> str:
    """Write a page of one part alone, about the model of ``result``."""
    return rendered(
        "alone.html.j2",
        "",
        ("arrows.js",),
        title=visible(result.provenance["model"]["id"]),
        model_line=visible(model_line(result)),
        warnings=[visible(warning) for warning in warnings_of(result)],
        part=part,
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
    return pages.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        **values,
    )


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
_TOKENS, _ACROSS, _DOWN = 16, 8, 6
#: What no browser needs of an SVG, and the characters of one that a quoted URL may hold.
_NOT_DRAWN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>", re.DOTALL)
_PLAIN = " !$'()*+,-./:;=?@[]^_{|}~"
#: No eye sees more than a hundredth of a point, or of a path a tenth; nothing refers to a group.
_DIGITS, _FINE = re.compile(r"(\d\.\d\d)\d+"), re.compile(r"(\d\.\d)\d+")
_FONTS = re.compile(r"(?<=font-family: )[^;\"]*sans-serif")
_PATH, _NAMES = re.compile(r' d="[^"]*"'), re.compile(r'(?<=<g) id="[^"]*"')
_TAG, _ATTRIBUTE = re.compile("<[^>]+>"), re.compile('="([^"\']*)"')
_PARAGRAPHS = {
    "formula": Markup("<p><code>{}</code></p>"),
    "check": Markup('<p class="check">{}</p>'),
    "soft": Markup('<p class="soft">{}</p>'),
}


def body(blocks: Iterable[Block], files: Mapping[str, bytes], *, opened: bool = False) -> Markup:
    """Draw the blocks that are for the page; ``files`` has the SVG of every chart."""
    parts = []
    for block in blocks:
        if PAGE not in block.on or block == Text(""):
            continue
        if isinstance(block, Text):
            parts.append(_PARAGRAPHS.get(block.style, Markup("<p>{}</p>")).format(block.text))
        elif isinstance(block, Table):
            rows = map(_row, table_cells(block))
            parts.append(_table([name for name, *_ in block.columns], rows, block.title))
        elif isinstance(block, Matrix):
            parts.append(_square(block) if block.columns else _corner(block))
        elif isinstance(block, Chart | Panels | Drawing):
            image = Markup('<img class="chart" alt="{}" src="{}">')
            name = f"{block.file}.svg"
            parts.append(
                image.format(
                    block.alt, _data_uri((files if name in files else svg_files([block]))[name])
                )
            )
        elif isinstance(block, Details):
            box = '<details class="step"{}><summary>{}</summary>{}</details>'
            inside = body(block.blocks, files)
            parts.append(Markup(box).format(Markup(" open" if opened else ""), block.title, inside))
        elif isinstance(block, Custom):
            parts.append(Markup(block.html))
    return Markup("\n").join(parts)


def _data_uri(svg: bytes) -> Markup:
    """Embed a figure, percent-encoded, which takes less than base64."""
    text = " ".join(_NOT_DRAWN.sub("", svg.decode()).split())
    text = _FONTS.sub("sans-serif", text)
    text = _NAMES.sub("", _DIGITS.sub(r"\1", text))
    text = _PATH.sub(lambda path: _FINE.sub(r"\1", path[0]), text)
    # A double quote takes three characters: attributes stand in single ones where they can.
    text = _TAG.sub(lambda tag: _ATTRIBUTE.sub(r"='\1'", tag[0]), text)
    return Markup("data:image/svg+xml;charset=utf-8,{}").format(Markup(quote(text, safe=_PLAIN)))


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
        Markup("<caption>{}</caption>").format(caption) if caption else "",
    )


def _row(cells: Sequence[str], tag: str = "td") -> Markup:
    """Write cells, the first as text and the others as numbers."""
    form = Markup(f"<{tag}{{}}>{{}}</{tag[:2]}>")
    return Markup("").join(
        form.format(Markup(' class="n"') if i else "", text) for i, text in enumerate(cells)
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
            text = matrix_cell(value, block.weights)
            row += Markup('<td class="q{}">{}</td>').format(min(9, int(10 * share)), text)
        rows.append(row)
    part = "" if n == len(block.rows) else f", the first {n} of {len(block.rows)} tokens"
    caption = f"{block.title}: queries down, keys across{part}"
    return _table(("", *block.columns[:n]), rows, caption, "matrix")


def svg_files(blocks: Iterable[Block]) -> dict[str, bytes]:
    """Draw the charts of a page that has been written to no folder."""
    from headscope.show.figures import figure_files, figures_of

    drawn = (b for b in blocks if isinstance(b, Chart | Panels | Drawing) and PAGE in b.on)
    with styled(FigureStyle()):
        return figure_files(dict(figures_of(drawn)))
