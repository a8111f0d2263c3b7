"""The sentences that say what ``depth`` found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.depth.result import DepthCurves, DepthResult, Protection
from headscope.show.cells import (
    frame_csv,
    joined,
    make_table,
    model_line,
    plural,
    plus_minus,
    ratio_text,
    tiny,
    to_csv,
)
from headscope.show.folders import folder_files
from headscope.show.page.parts import Part
from headscope.show.page.svg import Chart, Line, chart, highest, points_of
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate, Z

__all__ = ["VIEW"]


#: What the variants of the layers are called.
VARIANTS = {
    "full": "full model",
    "full-without-layernorm": "full, LayerNorm off",
    "attention+skip": "attention + skip",
    "attention+ffn": "attention + FFN",
    "attention": "attention only",
}
PART_NAMES = {
    "skip": "the skip connection",
    "ffn": "the feed-forward network",
    "layernorm": "LayerNorm",
}
WAYS = {"removed": "lost without it", "added": "gained beside attention"}
PLACEMENTS = {
    "post": "after each sum (post-LN)",
    "pre": "before each sublayer (pre-LN)",
    "mixed": "on both sides of the sums, layer by layer (mixed)",
}


def _layers(n: int) -> str:
    """Write a number of layers."""
    return f"{n} {plural(n, 'layer')}"


def collapse_sentence(result: DepthResult) -> str:
    """Say whether attention alone collapses, from which layer on, and what the model keeps."""
    alone, full = result.variants["attention"], result.variants["full"]
    n, after = len(alone) - 1, result.collapsed_after["attention"]
    ends = f"{ratio_text(alone[0])} at the embeddings, {ratio_text(alone[-1])} after {_layers(n)}"
    if after is None:
        found = f"Attention alone does not collapse within {_layers(n)}: {ends}"
    else:
        found = (
            f"Attention alone collapses: after {_layers(after)} its residual is below 1% of "
            f"its start ({ends}{_rounding(result)})"
        )
    return f"{found}. The full model still has {ratio_text(full[-1])}."


def _rounding(result: DepthResult) -> str:
    last = result.variants["attention"][-1]
    at_floor = last is not None and last < result.floor
    return f", no more than {result.provenance['dtype']}'s rounding" if at_floor else ""


def protection_sentence(result: DepthResult) -> str:
    """Say which parts keep the full model's residual up after the last layer, and which cost it."""
    removed = [p for p in result.protected if p.way == "removed" and p.mean[-1] is not None]
    if any(p.low[-1] is None for p in removed):
        return "A single window gives no interval, so nothing is said of what each part protects."
    removed.sort(key=lambda p: -abs(p.mean[-1] or 0.0))
    lost = [f"{_without(p)} {_share(p)}" for p in removed if _sign(p) > 0]
    kept = [f"{_without(p)} {_share(p)}" for p in removed if _sign(p) < 0]
    same = [_without(p) for p in removed if _sign(p) == 0]
    overflow = result.variants["full-without-layernorm"][-1] is None
    parts = [
        f"{joined(lost)} of that is lost" if lost else "",
        f"{joined(kept)} more is left" if kept else "",
        f"{joined(same)} no difference shows" if same else "",
        f"without LayerNorm the states overflow {result.provenance['dtype']}" if overflow else "",
    ]
    found = "; ".join(part for part in parts if part)
    return f"{found[:1].upper()}{found[1:]} (each taken out alone)." if found else ""


def _without(p: Protection) -> str:
    return f"without {PART_NAMES[p.part]}"


def _sign(p: Protection) -> int:
    """Return 1 or -1 where the 95% interval excludes zero, else 0."""
    low, high = p.low[-1], p.high[-1]
    return int(low is not None and low > 0) - int(high is not None and high < 0)


def _share(p: Protection) -> str:
    return f"{abs(p.mean[-1] or 0.0):.1%}"


def control_sentence(result: DepthResult) -> str:
    """Say what the same architecture with random weights does."""
    control = result.control
    if control is None:
        return "Control: not run; --control measures the same architecture with random weights."
    return (
        f"Control: with random weights (seed {control.seed}) attention alone "
        f"{_control_collapse(control)}; the full model has "
        f"{ratio_text(control.variants['full'][-1])} at the end, "
        f"{ratio_text(control.variants['attention+ffn'][-1])} without its skip connections."
    )


def _control_collapse(control: DepthCurves) -> str:
    after = control.collapsed_after["attention"]
    if after is None:
        return "does not collapse"
    return f"is below 1% of its start after {_layers(after)}"


#: Variants across the table, with what their columns are called.
_COLUMNS = {
    "attention": "attention",
    "attention+ffn": "+ ffn",
    "attention+skip": "+ skip",
    "full": "full",
    "full-without-layernorm": "no LayerNorm",
}
_PARTS = {"skip": "skip", "ffn": "ffn", "layernorm": "LayerNorm"}


def depth_report(result: DepthResult) -> Iterator[RenderableType]:
    """Show what was run, the verdict, the ratios by layer and what each part protects."""
    yield from _header(result)
    yield Text(f"\n{collapse_sentence(result)} {protection_sentence(result)}\n", style="bold")
    yield Text("Residual: ||res(H)|| / ||H||, mean +-std over windows")
    yield _table(result, _COLUMNS.values(), _ratios)
    for way, title in WAYS.items():
        yield Text(f"\nProtected, share of the full model's residual: {title}, +-95%")
        parts = [f"{_PARTS[p.part]:>15}" for p in result.protected if p.way == way]
        yield _table(result, parts, partial(_shares, way=way), first=1)
    yield Text("\n" + control_sentence(result))


def _header(result: DepthResult) -> Iterator[Text]:
    data, proof = result.provenance["data"], result.decomposition
    yield model_line(result)
    yield Text(
        f"Text    {data['name']}: {result.sequences:,} of {result.available:,} windows of "
        f"{result.length} tokens"
    )
    yield Text(
        f"Layers  LayerNorm {PLACEMENTS[result.layer_norm]}; taken apart and put together "
        f"again they give the model's own states to {tiny(proof.max_abs)}"
    )


def _table(
    result: DepthResult,
    columns: Iterable[str],
    cells: Callable[[DepthCurves, int], Iterable[str]],
    first: int = 0,
) -> Table:
    """One row per point from the first on, and one for the end of random weights."""
    points = range(first, len(result.variants["full"]))
    names = ("embed.", *(f"L{layer}" for layer in range(points.stop)))
    table = make_table(("after", *columns), ((names[p], *cells(result, p)) for p in points))
    if result.control is not None:
        table.add_row("random", *cells(result.control, -1), style="dim")
    return table


def _ratios(curves: DepthCurves, point: int) -> Iterator[str]:
    """Each variant's ratio and its spread; what is too small for three digits stands without."""
    for name in _COLUMNS:
        text = ratio_text(curves.variants[name][point])
        spread = None if "e" in text else curves.std[name][point]
        yield plus_minus(text, spread, ".2f").replace("+-0.", "+-.")


def _shares(curves: DepthCurves, point: int, way: str) -> Iterator[str]:
    """What each part protects, with half of its interval."""
    return (_share_tables(p, point) for p in curves.protected if p.way == way)


def _share_tables(p: Protection, point: int) -> str:
    mean, low, high = p.mean[point], p.low[point], p.high[point]
    if mean is None:
        return "-"
    half = None if low is None or high is None else (high - low) / 2
    return plus_minus(f"{mean:z.1%}", half, ".1%")  # z: no minus before a rounded zero


#: Where the axis ends: lower still, the variants that do not collapse would lie on each other.
_LOWEST = 1e-4


def section(result: DepthResult) -> Part:
    """Whether attention alone collapses, and what protects the model from it."""
    texts = (
        collapse_sentence(result),
        protection_sentence(result),
        control_sentence(result),
    )
    return Part("depth", "Depth", [text for text in texts if text], _chart(result))


def _chart(result: DepthResult) -> Chart:
    """Residual by layer, one line a variant; random weights dashed."""
    curves, control = result.variants, result.control
    lines = [Line(VARIANTS[n], points_of(curves[n]), i) for i, n in enumerate(VARIANTS)]
    for i, (name, text) in enumerate(VARIANTS.items()):
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
        what = f"residual after the last layer, {VARIANTS[name]}"
        yield KeyNumber(what, _ranged(found), control, found)


def _last(result: DepthResult, name: str) -> Estimate:
    """Return what is left after the last layer, with its interval over windows."""
    mean, std, windows = result.variants[name][-1], result.std[name][-1], result.sequences
    half = None if std is None or windows < 2 else Z * std / math.sqrt(windows)
    return Estimate.around(mean, half)


def _ranged(found: Estimate) -> str:
    """Write a ratio of any size with its interval."""
    text = ratio_text(found.value)
    if found.interval is None:
        return text
    return f"{text} [{', '.join(map(ratio_text, found.interval))}]"


def depth_files(result: DepthResult, *, log: bool = False) -> dict[str, bytes]:
    """Return depth.csv, protected.csv and the figures; ``log``: ratios on a logarithmic axis."""
    from headscope.analyses.depth.figures import protection_bars, ratio_curves

    csv = {"depth": to_csv(result), "protected": frame_csv(result.protected_frame())}
    figures = {"depth": ratio_curves(result, log=log), "protected": protection_bars(result)}
    return folder_files(csv, figures)


VIEW = View(depth_report, depth_files, section=section, key_numbers=key_numbers)
