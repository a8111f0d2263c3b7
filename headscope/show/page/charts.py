"""The charts of the report's page, one per section that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headscope.results import DepthResult, PruneResult, RankResult, SpectrumResult
from headscope.show.page.svg import Line, chart
from headscope.show.prune.words import METRIC_NAMES

__all__ = ["Figure", "depth_chart", "prune_chart", "rank_chart", "spectrum_chart"]

_VARIANTS = {
    "full": "full model",
    "full-without-layernorm": "full, LayerNorm off",
    "attention+skip": "attention + skip",
    "attention+ffn": "attention + FFN",
    "attention": "attention only",
}
#: Below this the ratio is of no interest.
_LOWEST = 1e-4


@dataclass(frozen=True)
class Figure:
    """A chart and its legend: (style, dashed, name) of each line."""

    svg: Markup
    legend: tuple[tuple[int, bool, str], ...]


def depth_chart(result: DepthResult) -> Figure:
    """Residual by layer, one line a variant; random weights dashed."""
    lines = [Line(t, _points(result.variants[n]), i) for i, (n, t) in enumerate(_VARIANTS.items())]
    if result.control is not None:
        shown = ("full", "attention+skip", "attention")
        lines += [
            Line(
                f"{_VARIANTS[n]}, random weights",
                _points(result.control.variants[n]),
                list(_VARIANTS).index(n),
                dashed=True,
            )
            for n in shown
        ]
    n_points = len(result.variants["full"])
    top = max((y for line in lines for _, y in line.points if y is not None), default=1.0)
    names = ["emb.", *(f"L{i}" for i in range(n_points - 1))]
    return _figure(
        lines,
        label="Residual of the tokens' states by layer, one line for each variant of the "
        "layers; the numbers are in depth.csv.",
        x_title="after",
        y_title="residual (log)",
        y_limits=(_LOWEST, max(top, 1.0)),
        x_names=names,
        log=True,
    )


def prune_chart(result: PruneResult) -> Figure:
    """Metric by share of heads removed, one line a method; random heads with their extremes."""
    lines = []
    for i, curve in enumerate(result.curves):
        name = curve.method + ("" if curve.repair == "none" else f" + {curve.repair}")
        points = [(p.fraction, p.value) for p in curve.points]
        band = [(p.ci[0], p.ci[1]) for p in curve.points]
        lines.append(Line(name, points, i % 8, dashed=curve.method == "random", band=band))
    values = [v for line in lines for pair in line.band for v in pair]
    return _figure(
        lines,
        label=f"{result.metric} by share of heads removed, one line for each method; the "
        "numbers are in curves.csv.",
        x_title="heads removed",
        y_title=METRIC_NAMES.get(result.metric, result.metric).partition(" (")[0],
        y_limits=(min(values), max(values)),
        percent=True,
    )


def rank_chart(result: RankResult) -> Figure:
    """dims90 of each layer's concatenated product beside its controls."""
    layers = [layer.layer for layer in result.layers]
    lines = [Line("this model", [(x.layer, x.qk.dims["90"]) for x in result.layers], 0)]
    for i, (name, control) in enumerate(result.controls.items(), start=1):
        if control is None:
            continue
        values = []
        for layer in result.layers:
            known = control.of(len(layer.heads))
            values.append((float(layer.layer), known.layers["qk"].dims["90"] if known else None))
        lines.append(Line(f"{name} control", values, i, dashed=True))
    return _figure(
        lines,
        label="dims90 of W_Q W_K^T with all heads of a layer together, by layer, beside its "
        "controls; the numbers are in rank.csv.",
        x_title="layer",
        y_title="dims90",
        y_limits=(0, _highest(lines)),
        x_names=[f"L{i}" for i in layers],
    )


def spectrum_chart(result: SpectrumResult) -> Figure:
    """Share of the largest singular values: a dot for each head, lines for the controls."""
    layers = sorted({head.layer for head in result.heads})
    dots = [(float(head.layer), head.share_at_k.mean) for head in result.heads]
    lines = [Line("one head", dots, 0, dots=True)]
    known = {name: result.controls[name].share_at_k for name in ("random-logits", "identity")}
    if result.random_weights is not None:
        known["random weights"] = result.random_weights.share_at_k.mean
    for i, (name, share) in enumerate(known.items(), start=1):
        lines.append(Line(name, [(float(layer), share) for layer in layers], i, dashed=True))
    return _figure(
        lines,
        label=f"Share of the {result.k} largest of {result.length} singular values, a dot "
        "for each head by layer; the numbers are in spectrum.csv.",
        x_title="layer",
        y_title="share",
        y_limits=(0, 1),
        x_names=[f"L{i}" for i in layers],
    )


def _figure(lines: Sequence[Line], **options: object) -> Figure:
    svg = chart(lines, **options)  # type: ignore[arg-type]
    return Figure(svg, tuple((line.style, line.dashed, line.name) for line in lines))


def _points(curve: Sequence[float | None]) -> list[tuple[float, float | None]]:
    return [(float(i), value) for i, value in enumerate(curve)]


def _highest(lines: Sequence[Line]) -> float:
    return max((y for line in lines for _, y in line.points if y is not None), default=1.0)
