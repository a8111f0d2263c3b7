"""What is shown of cheap stand-ins for attention: what they cost, and how near they stay.

A stand-in, or *form*, computes only some of the n^2 scores of a sequence (its *cost* is the share
of them) and gives every head another output z'. Of each form at each size (a :class:`CheapPoint`):
its *error*, how far z' is from z; its *mass*, the share of attention on the keys that it keeps; its
*fidelity*, the cosine of the model's pooled state with that of the unchanged model when all heads
are replaced. Blocks (``b``) are plain values that the terminal, the page and the figure files draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from headscope.analyses.spectrum.result import CheapPoint, EfficientResult, SpectrumResult
from headscope.analyses.spectrum.words import value_of
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, model_name
from headscope.show.estimates import ranged
from headscope.stats.estimate import Estimate

#: By form: its name in tables and figures, and the colour and marker of its line. Uniform attention
#: has one size only, so it has no line over costs but a horizontal one (:func:`_cost_chart`).
_FORMS = {
    "truncated": ("truncated P", b.BLACK, "o"),
    "bound": ("bound: best rank-k output", b.VERMILION, "*"),
    "random": ("random projection", b.ORANGE, "s"),
    "pooled": ("pooled keys", b.SKY, "D"),
    "window": ("window", b.GREEN, "^"),
    "window+global": ("window + global", b.BLUE, "v"),
    "window+global+random": ("... + random blocks", b.PURPLE, "P"),
    "random-keys": ("random keys", b.GREY, "x"),
    "uniform": ("uniform attention", "#8B4513", ""),
}
#: Forms that are made of the full pattern.
_NEED_THE_PATTERN = {"truncated", "bound", "random"}
_CHEAP = 0.5  # Most of the scores that a form may compute to be called cheap


def efficient_blocks(result: SpectrumResult, efficient: EfficientResult) -> Iterator[b.Block]:
    """Show what cheap forms of attention cost, and how near they stay."""
    yield b.Text(best_form_sentence(efficient))
    yield _table(efficient)
    if efficient.left_out:
        names = joined([_FORMS[form][0] for form in efficient.left_out])
        yield b.Text(
            f"Left out: {names}. This model's scores depend on the pair of positions (a bias, or "
            "keys that a query may not see), and a mean of several keys has no position."
        )
    yield b.Text(
        "Bound: whatever projects K and V to k rows has at least this error (the best rank-k "
        "approximation of a head's output; none from k = d_head on). It bounds the error of "
        "projections, neither that of windows nor the fidelity. Truncated P is P cut to rank k, "
        "nearest to P but not to the output. Both, and random projections, need the full pattern: "
        "they are no methods. Uniform attention would keep a mass equal to the cost. Brackets: 95% "
        f"over sequences and, where something is drawn at random, {efficient.draws} draws.",
        "soft",
    )
    yield b.Panels(
        f"What could replace attention in {model_name(result)}: {efficient.sequences} sequences of "
        f"{result.length} tokens",
        [
            _cost_chart(
                efficient,
                title="each head alone",
                y_title="relative error of the heads' outputs, mean",
                loss_of=lambda point: point.error,
                levels={"zeros in place of outputs": 1.0},
            ),
            _cost_chart(
                efficient,
                title="the model with all heads replaced",
                y_title="1 - cosine of the pooled last state",
                loss_of=_lost_fidelity,
                levels={},
            ),
        ],
        "spectrum_efficient",
        across=2,
        size=(10.0, 4.6),
        alt="Error of each head and loss of fidelity by the cost of cheap forms of attention; the "
        "numbers are in spectrum.json.",
        on=b.PAGE,
    )


def best_form_sentence(efficient: EfficientResult) -> str:
    """Name the cheap form that keeps the model nearest, at half of the scores or fewer.

    Forms that need the full pattern are no methods, and no more than bounds.
    """
    cheap = [
        point
        for point in efficient.points
        if point.form not in _NEED_THE_PATTERN
        and point.cost <= _CHEAP
        and point.fidelity.value is not None
    ]
    methods = [point for point in cheap if point.form not in efficient.controls]
    if not methods:
        return ""
    best = max(methods, key=lambda point: float(point.fidelity))
    name, _, _ = _FORMS[best.form]
    controls: list[str] = []
    for form in efficient.controls:
        points = [point for point in cheap if point.form == form]
        if points:
            control = max(points, key=lambda point: float(point.fidelity))
            controls.append(f"{_FORMS[form][0]} {ranged(control.fidelity)}")
    beside = f"; for comparison {joined(controls)}" if controls else ""
    return (
        f"Of forms that compute at most {_CHEAP:.0%} of the scores, {name} of size {best.size} in "
        f"all heads stays nearest to the model: fidelity {ranged(best.fidelity)} at "
        f"{best.cost:.0%} of them{beside}."
    )


def _table(efficient: EfficientResult) -> b.Table:
    """Show each form at each size: its cost, its error head by head, and the model's fidelity."""
    rows = []
    for point in efficient.points:
        name, _, _ = _FORMS[point.form]
        rows.append(
            [
                f"control: {name}" if point.form in efficient.controls else name,
                str(point.size),
                decimal(point.cost),
                ranged(point.error),
                decimal(point.mass),
                ranged(point.fidelity),
            ]
        )
    return b.text_table(
        ("form", "size", "cost/n^2", "error", "mass", "fidelity"),
        rows,
        f"What could replace full attention, on {efficient.sequences} sequences: error of each "
        "head's output alone (mean; 1 = zeros), attention mass kept, and fidelity of the model "
        "with all heads replaced (cosine of the pooled state)",
    )


def _lost_fidelity(point: CheapPoint) -> Estimate:
    """Return 1 - fidelity; the fidelity of the unchanged model is 1."""
    return Estimate.around(1.0 - value_of(point.fidelity), point.fidelity.half_width)


def _cost_chart(
    efficient: EfficientResult,
    title: str,
    y_title: str,
    loss_of: Callable[[CheapPoint], Estimate],
    levels: Mapping[str, float],
) -> b.Chart:
    """Draw what each form loses by its cost: a line for each form.

    Uniform attention, whose cost is 0, and what ``levels`` names are horizontal lines. A
    logarithmic axis cannot show 0: points and lines without a loss are left out, and the name of a
    form says so.
    """
    series = []
    for form, (name, colour, marker) in _FORMS.items():
        is_control = form in efficient.controls
        points = [point for point in efficient.points if point.form == form]
        if form == "uniform":  # a series without points or name, which draws nothing
            points = []
        shown = [point for point in points if value_of(loss_of(point)) > 0]
        label = ""
        if points:
            label = f"control: {name}" if is_control else name
        if len(shown) < len(points):
            label += ", then 0"
        series.append(
            b.Series(
                name=label,
                x=[point.cost for point in shown],
                y=[loss_of(point) for point in shown],
                colour=colour,
                marker=marker,
                dash="--" if is_control else "-",
            )
        )
    uniform = next(point for point in efficient.points if point.form == "uniform")
    all_levels = {"control: uniform attention": value_of(loss_of(uniform)), **levels}
    return b.Chart(
        title=title,
        x="fraction of the n^2 scores",
        y=y_title,
        series=series,
        levels={name: level for name, level in all_levels.items() if level > 0},
        x_scale="log",  # powers of 2, as sizes are
        y_scale="log10",  # powers of 10
    )
