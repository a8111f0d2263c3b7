"""Terminal tables of ``depth``, drawn from its result; 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.results.depth import DepthCurves, DepthResult, Protection
from headscope.show.cells import make_table, model_line, plus_minus, ratio_text, tiny
from headscope.show.depth import words

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
    yield Text(
        f"\n{words.collapse_sentence(result)} {words.protection_sentence(result)}\n", style="bold"
    )
    yield Text("Residual: ||res(H)|| / ||H||, mean +-std over windows")
    yield _table(result, _COLUMNS.values(), _ratios)
    for way, title in words.WAYS.items():
        yield Text(f"\nProtected, share of the full model's residual: {title}, +-95%")
        parts = [f"{_PARTS[p.part]:>15}" for p in result.protected if p.way == way]
        yield _table(result, parts, partial(_shares, way=way), first=1)
    yield Text("\n" + words.control_sentence(result))


def _header(result: DepthResult) -> Iterator[Text]:
    data, proof = result.provenance["data"], result.decomposition
    yield model_line(result)
    yield Text(
        f"Text    {data['name']}: {result.sequences:,} of {result.available:,} windows of "
        f"{result.length} tokens"
    )
    yield Text(
        f"Layers  LayerNorm {words.PLACEMENTS[result.layer_norm]}; taken apart and put together "
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
    return (_share(p, point) for p in curves.protected if p.way == way)


def _share(p: Protection, point: int) -> str:
    mean, low, high = p.mean[point], p.low[point], p.high[point]
    if mean is None:
        return "-"
    half = None if low is None or high is None else (high - low) / 2
    return plus_minus(f"{mean:z.1%}", half, ".1%")  # z: no minus before a rounded zero
