"""What ``depth`` puts on the report's page: the residual by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headscope.results.depth import DepthResult
from headscope.results.estimated import Estimated
from headscope.show.cells import ratio_text
from headscope.show.depth import words
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart, highest, points_of
from headscope.show.view import KeyNumber
from headscope.verdicts.diff.facts import Z

#: Where the axis ends: lower still, the variants that do not collapse would lie on each other.
_LOWEST = 1e-4


def section(result: DepthResult) -> Part:
    """Whether attention alone collapses, and what protects the model from it."""
    texts = (
        words.collapse_sentence(result),
        words.protection_sentence(result),
        words.control_sentence(result),
    )
    return Part("depth", "Depth", [text for text in texts if text], _chart(result))


def _chart(result: DepthResult) -> Chart:
    """Residual by layer, one line a variant; random weights dashed."""
    curves, control = result.variants, result.control
    lines = [Line(words.VARIANTS[n], points_of(curves[n]), i) for i, n in enumerate(words.VARIANTS)]
    for i, (name, text) in enumerate(words.VARIANTS.items()):
        if control is not None and name in ("full", "attention+skip", "attention"):
            points = points_of(control.variants[name])
            lines.append(Line(f"{text}, random weights", points, i, dashed=True))
    return chart(
        lines,
        label="Residual of the tokens' states by layer, one line for each variant of the "
        "layers; the numbers are in depth.csv. A triangle lies below the axis.",
        x_title="after",
        y_title=f"residual (log; triangles: below {_LOWEST:.0e})",
        y_limits=(_LOWEST, max(highest(lines), 1.0)),
        x_names=["emb.", *(f"L{i}" for i in range(len(curves["full"]) - 1))],
        log=True,
    )


def key_numbers(result: DepthResult) -> Iterator[KeyNumber]:
    """What is left after the last layer, of attention alone and of the full model."""
    for name in ("attention", "full"):
        found = _last(result, name)
        control = "-"
        if result.control is not None:
            control = f"random weights {ratio_text(result.control.variants[name][-1])}"
        what = f"residual after the last layer, {words.VARIANTS[name]}"
        yield KeyNumber(what, _ranged(found), control, found)


def _last(result: DepthResult, name: str) -> Estimated:
    """Return what is left after the last layer, with its interval over windows."""
    mean, std, windows = result.variants[name][-1], result.std[name][-1], result.sequences
    half = None if std is None or windows < 2 else Z * std / math.sqrt(windows)
    return Estimated.around(mean, half)


def _ranged(found: Estimated) -> str:
    """Write a ratio of any size with its interval."""
    text = ratio_text(found.value)
    if found.interval is None:
        return text
    return f"{text} [{', '.join(map(ratio_text, found.interval))}]"
