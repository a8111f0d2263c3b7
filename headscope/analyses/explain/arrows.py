"""The sentence's attention as lines from token to token: SVG, one head at a time.

Here the tokens and the patterns of all heads of the layer are handed over as JSON; a script of the
page lays the tokens out and draws the lines of the head that is chosen.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from headscope.analyses.explain.result import ExplainResult
from headscope.core.safe_text import visible
from headscope.show.page.script_data import page_json


def arrows(result: ExplainResult, names: list[str]) -> Markup:
    """Write the place of the drawing, and hand over the patterns.

    ``names`` are its tokens as the page writes them. ``result`` is of one head; the script begins
    with it.
    """
    model = shlex.quote(visible(str(result.provenance["model"]["id"])))
    data = {  # what the script draws with
        "head": result.name,
        "command": f"headscope explain {model} {shlex.quote(visible(result.sentence))} --head",
        "tokens": names,
        "special": result.special,
        "patterns": {name: _in_percent(pattern) for name, pattern in result.patterns.items()},
    }
    return Markup(
        '<figure class="arrows"><div class="tools">'
        '<span class="pair"><label class="soft" for="arrows-head">Head</label>'
        '<select id="arrows-head">{options}</select></span>'
        '<label class="soft"><input type="checkbox" checked> special tokens</label></div>'
        '<div class="scroll" role="region" aria-label="The sentence twice, with lines from each '
        'word to those that it attends to"></div>'
        '<figcaption class="soft reading" aria-live="polite">Point at a word: the first time it '
        "stands here, lines lead to the words that it attends to, the second time to those that "
        "attend to it; darker is more weight.</figcaption>"
        '<p class="chosen-head" aria-live="polite"></p>'
        '<script type="application/json">{data}</script></figure>'
    ).format(options=Markup("").join(_head_choices(result)), data=page_json(data))


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
