"""The sentence's attention as arrows from token to token: SVG, one head at a time.

Here the tokens are laid out, queries on the left and keys on the right, and the patterns of all
heads of the layer are handed over as JSON; a script of the page draws the arrows of the head that
is chosen. The page's style sheet knows the classes in the markup.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from headscope.analyses.explain.result import ExplainResult
from headscope.core.safe_text import visible
from headscope.show.page.script_data import page_json

# In units of the drawing:
_ROW = 26  # Height of a token's row
_TOP = 46  # Where the first row begins
_LEFT = 132  # x at which arrows begin: the queries stand left of it
_RIGHT = 332  # x at which arrows end: the keys stand right of it
_WIDTH = 464  # Width of the drawing

_LEAST = 0.02  # Weights below this have no arrow.
_LONGEST = 13  # Characters of a token that fit beside the arrows.


def arrows(result: ExplainResult, names: list[str]) -> Markup:
    """Lay out the sentence, and hand over the patterns.

    ``names`` are its tokens as the page writes them. ``result`` is of one head; the script begins
    with it.
    """
    height = _TOP + _ROW * len(names)
    model = shlex.quote(visible(str(result.provenance["model"]["id"])))
    data = {  # what the script draws with
        "head": result.name,
        "command": f"headscope explain {model} {shlex.quote(visible(result.sentence))} --head",
        "tokens": names,
        "special": result.special,
        "patterns": {name: _in_percent(pattern) for name, pattern in result.patterns.items()},
        "row": _ROW,
        "top": _TOP,
        "left": _LEFT,
        "right": _RIGHT,
        "least": _LEAST,
    }
    return Markup(
        '<figure class="arrows"><div class="tools">'
        '<span class="pair"><label class="soft" for="arrows-head">Head</label>'
        '<select id="arrows-head">{options}</select></span>'
        '<label class="soft"><input type="checkbox" checked> special tokens</label></div>'
        '<svg class="links" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" '
        'markerHeight="5" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
        '{captions}{tokens}<g class="weights"></g></svg>'
        '<figcaption class="soft">Queries left, keys right; the darker an arrow, the more weight. '
        'Weights below {least} have none. <span class="pointer">Point at a token on the left to '
        "see its arrows alone.</span>"
        '</figcaption><p class="chosen-head" aria-live="polite"></p>'
        '<script type="application/json">{data}</script></figure>'
    ).format(
        options=Markup("").join(_head_choices(result)),
        width=_WIDTH,
        height=height,
        label=f"Attention of {result.name} from each token to each other; the numbers are in the "
        "table of the pattern below.",
        captions=_text(_LEFT - 8, 20, "end", "column", "token (query)")
        + _text(_RIGHT + 8, 20, "start", "column", "looks at (key)"),
        tokens=Markup("").join(_tokens(names)),
        least=_LEAST,
        data=page_json(data),
    )


def _in_percent(pattern: Sequence[Sequence[float]]) -> list[int]:
    """Return the weights of a pattern in percent, row by row.

    [[1, 0], [.3, .7]] -> [100, 0, 30, 70].
    """
    weights: list[int] = []
    for row in pattern:
        weights += [round(100 * weight) for weight in row]
    return weights


def _head_choices(result: ExplainResult) -> Iterator[Markup]:
    """Yield a choice for each head; the explained one is selected."""
    for name in result.patterns:
        chosen = Markup(" selected") if name == result.name else ""
        yield Markup('<option value="{0}"{1}>{0}</option>').format(name, chosen)


def _tokens(names: list[str]) -> Iterator[Markup]:
    """Yield each token twice: on the left as a query, on the right as a key."""
    for i, name in enumerate(names):
        short_name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"
        y = _TOP + _ROW * i + 5
        # With tabindex a keyboard reaches the query, as a mouse does.
        yield _text(_LEFT - 8, y, "end", "query", short_name, Markup(' tabindex="0"'))
        yield _text(_RIGHT + 8, y, "start", "key-token", short_name)


def _text(x: int, y: int, anchor: str, css_class: str, text: str, attributes: str = "") -> Markup:
    """Write a line of text in the drawing; its start or its end (``anchor``) stands at x."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        css_class, x, y, anchor, attributes, text
    )
