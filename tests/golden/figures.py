"""Figures as data: what stands in place of a PNG or SVG file while the golden record is made."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: How a file begins that holds a figure's data in place of its picture.
MARK = b"<svg xmlns='http://www.w3.org/2000/svg'><desc>"
END = b"</desc></svg>"
#: Longer arrays are kept as a few numbers.
_WHOLE = 100


def instead_of_pictures() -> None:
    """Let matplotlib write the data of a figure as JSON, in place of any PNG or SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasAgg.print_png = _writer  # type: ignore[method-assign]
    FigureCanvasSVG.print_svg = _writer  # type: ignore[method-assign]


def _writer(canvas: Any, target: Any, **_: Any) -> None:
    text = json.dumps(figure_data(canvas.figure), ensure_ascii=True)
    data = MARK + text.replace("<", "\\u003c").replace("&", "\\u0026").encode() + END
    if hasattr(target, "write"):
        target.write(data)
    else:
        Path(target).write_bytes(data)


def figure_data(figure: Any) -> dict[str, Any]:
    """Return what a figure shows: texts, axes, and the numbers that are drawn."""
    texts = [text.get_text() for text in figure.texts]
    legends = [_legend(legend) for legend in figure.legends]
    axes = [_axes(axes) for axes in figure.axes]
    return {"texts": texts, "legends": legends, "axes": axes}


def _axes(axes: Any) -> dict[str, Any]:
    legend = axes.get_legend()
    return {
        "title": axes.get_title(),
        "labels": [axes.get_xlabel(), axes.get_ylabel()],
        "scales": [axes.get_xscale(), axes.get_yscale()],
        "limits": [round_all(axes.get_xlim()), round_all(axes.get_ylim())],
        "ticks": [_ticks(axes.xaxis), _ticks(axes.yaxis)],
        "texts": [text.get_text() for text in axes.texts],
        "legend": legend and _legend(legend),
        "lines": [[line.get_label(), *map(digest, line.get_data())] for line in axes.lines],
        "patches": digest([_corners(patch) for patch in axes.patches]),
        "images": [[digest(image.get_array()), digest(image.get_clim())] for image in axes.images],
        "collections": [list(_drawn(collection)) for collection in axes.collections],
    }


def _ticks(axis: Any) -> list[str]:
    """Return the words at an axis; numbers follow from its limits."""
    words = [tick.get_text() for tick in axis.get_ticklabels()]
    return words if any(any(c.isalpha() for c in word) for word in words) else []


def _legend(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def _corners(patch: Any) -> list[float]:
    return [float(x) for x in patch.get_path().get_extents(patch.get_patch_transform()).bounds]


def _drawn(collection: Any) -> Iterator[Any]:
    """Yield the points, the outlines and the colours' numbers of a collection."""
    yield digest(collection.get_offsets())
    paths = [path.vertices for path in collection.get_paths()]
    yield digest(np.concatenate(paths) if paths else [])
    if (values := collection.get_array()) is not None:
        yield digest(values)


def digest(values: Any) -> Any:
    """Return numbers rounded; of many of them the shape, a few statistics and a weighted mean."""
    try:
        array = np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan)
    except (TypeError, ValueError):  # words along an axis
        return [str(value) for value in values]
    if array.size <= _WHOLE:
        return round_all(array.tolist())
    flat = np.nan_to_num(array.ravel(), nan=0.0, posinf=0.0, neginf=0.0)
    weights = 2 + np.cos(np.arange(flat.size))  # tells places apart, and never cancels
    functions: tuple[Callable[[Any], Any], ...] = (np.mean, np.std, np.min, np.max)
    numbers = [*(float(f(flat)) for f in functions), float(flat @ weights / flat.size)]
    finite = int(np.isfinite(array).sum())
    return {"shape": list(array.shape), "finite": finite, "digest": round_all(numbers)}


def round_all(value: Any) -> Any:
    """Keep six digits of every float, in lists and mappings too; none that JSON cannot write."""
    if isinstance(value, dict):
        return {key: round_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_all(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else str(value)
    return value
