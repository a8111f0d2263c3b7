"""What is shown of ``spectrum``: for which heads "low rank" holds, and what could replace them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from headscope.analyses.classify.cards import describe_offset
from headscope.analyses.spectrum.result import (
    CheapPoint,
    EfficientResult,
    SpectrumHead,
    SpectrumResult,
)
from headscope.show import blocks as b
from headscope.show.cells import (
    decimal,
    joined,
    model_line,
    model_name,
    plural,
    plus_minus,
)
from headscope.show.estimates import compared
from headscope.show.folders import names_of
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_UNITS

_MOST_NAMES = 8  # Heads that a sentence, or a legend, lists at most.
#: What the forms are called in tables and figures, and their colours and markers.
_FORMS = {
    "truncated": ("truncated P", b.BLACK, "o"),
    "bound": ("bound: best rank-k z", b.VERMILION, "*"),
    "random": ("random projection", b.ORANGE, "s"),
    "pooled": ("pooled keys", b.SKY, "D"),
    "window": ("window", b.GREEN, "^"),
    "window+global": ("window + global", b.BLUE, "v"),
    "window+global+random": ("... + random blocks", b.PURPLE, "P"),
    "random-keys": ("random keys", b.GREY, "x"),
    "uniform": ("uniform attention", b.BLACK, ""),
}
#: Colours and dashes of the controls' curves.
_CONTROLS: dict[str, tuple[str, Any]] = {
    "uniform": (b.BLACK, ":"),
    "random-logits": (b.VERMILION, "--"),
    "previous-token": (b.PURPLE, "--"),
    "identity": (b.BLUE, ":"),
    "random weights": (b.GREEN, "--"),
}


def blocks(result: SpectrumResult) -> Iterator[b.Block]:
    """Show the verdict, the map, the controls, the curves, and the cheap forms if measured."""
    lines = [
        model_line(result).plain,
        f"Text    {result.provenance['data']['name']}: {sampling_sentence(result)}",
    ]
    if result.roles is not None:
        lines.append(f"Roles   from a classification on {result.roles.corpus}")
    yield b.Text(verdict_sentence(result), "lead")
    yield b.Text(control_sentence(result))
    yield b.Text(f"{sampling_sentence(result)}.", on=b.PAGE)
    marks = dict.fromkeys(result.verdict.low_rank, "+")
    marks |= dict.fromkeys(result.verdict.not_low_rank, "-")
    controls = _controls(result)
    control_shares = ", ".join(f"{name} {_value(x.share_at_k):.3f}" for name, x in controls.items())
    yield b.HeadMap(
        f"Share of sigma in the {result.k} largest of {result.length}, {model_name(result)}\n"
        f"controls: {control_shares}",
        "share of sigma",
        {(h.layer_name, h.head): h.share_at_k.value for h in result.heads},
        digits=2,
        file="spectrum_map",
        marks={(h.layer_name, h.head): marks.get(h.name, "") for h in result.heads},
    )
    yield b.Text("+ low rank   - no more than random scores", "soft", on=b.TERMINAL)
    yield b.Text("\n".join(lines), on=b.TERMINAL)
    rows: list[list[str]] = []
    shares, squares = (
        [_value(getattr(head, field)) for head in result.heads]
        for field in ("share_at_k", "share_sq_at_k")
    )
    for name, pick in (("lowest head", min), ("median head", median), ("highest head", max)):
        rows.append([name, *map(decimal, (pick(shares), pick(squares)))])
    for name, control in controls.items():
        values = (control.share_at_k, control.share_sq_at_k)
        rows.append([f"control: {name}", *(decimal(_value(value)) for value in values)])
    yield b.text_table((f"share of the {result.k} largest", "sigma", "sigma^2"), rows)
    yield _curves(result)
    if result.efficient is not None:
        yield from _efficient(result, result.efficient)
    yield next_step(result, "what do heads lose without the softmax?", "linear {}")


def verdict_sentence(result: SpectrumResult) -> str:
    """Say in one sentence for which heads "self-attention is low rank" holds."""
    verdict = result.verdict
    if all(head.share_at_k.interval is None for head in result.heads):
        return (
            f"From {result.sequences} {plural(result.sequences, 'sequence')} there is no interval "
            f"({FEWEST_UNITS} are needed), so no head is called low rank, or not."
        )
    every = Counter(head.layer_name for head in result.heads)
    low = Counter(head.layer_name for head in result.heads if head.name in verdict.low_rank)
    layers = [f"{layer} {'all ' * (n == every[layer])}{n}" for layer, n in low.items()]
    by_layer = f" ({', '.join(layers)})" if 0 < len(layers) <= 12 else ""
    text = (
        f"{len(verdict.low_rank)} of {len(result.heads)} heads are low rank{by_layer}: the "
        f"{result.k} largest of their {result.length} singular values hold more than "
        f"{verdict.threshold:.0%} of the sum (95% confidence)"
    )
    positional = result.roles.positional if result.roles is not None else {}
    level = f"random scores ({verdict.random:.3f})"
    named = [name for name in verdict.not_low_rank if name in positional]
    others = [name for name in verdict.not_low_rank if name not in positional]
    groups = [f"the positional {_named(result, named)}"] if named else []
    if others:
        groups.append(_named(result, others) + ", not positional" * (result.roles is not None))
    if groups:
        text += f"; clearly not low rank: {' and '.join(groups)}, no higher than {level}"
        if result.roles is None:
            text += " (with --roles classify.json positional heads are named)"
    else:
        text += f"; no head is as low as {level}"
    if verdict.between:
        text += f"; {len(verdict.between)} are in between"
        if named := [name for name in verdict.between if name in positional]:
            text += f", among them the positional {_named(result, named)}"
    return f"{text}."


def _named(result: SpectrumResult, names: Sequence[str]) -> str:
    """List heads with what they look at and their share."""
    heads = {head.name: head for head in result.heads}
    positional = result.roles.positional if result.roles is not None else {}

    def looks_at(head: SpectrumHead) -> str:
        offset = positional.get(head.name)
        if offset is not None:
            return describe_offset(offset)
        return f"{head.offset_mass:.0%} on {describe_offset(head.offset)}"

    shown = names[:_MOST_NAMES]
    listed = [f"{n} ({looks_at(heads[n])}, {decimal(heads[n].share_at_k.value)})" for n in shown]
    if len(names) > len(shown):
        listed.append(f"{len(names) - len(shown)} more")
    return joined(listed)


def control_sentence(result: SpectrumResult) -> str:
    """Say what the same architecture with random weights has, and what that means."""
    random = result.random_weights
    gap = result.over_random_weights()
    if random is None:
        return (
            "Control: random weights not measured (--control); an untrained model's heads may well "
            "be of low rank too, so that low rank alone is no sign of learning."
        )
    n = len(random.draws)
    counts = sorted({draw.above for draw in random.draws})
    above = " to ".join(map(str, [counts[0], counts[-1]] if len(counts) > 1 else counts))
    meaning = "most heads of an untrained model are not of low rank"
    if sum(draw.above for draw in random.draws) > n * random.heads / 2:
        meaning = "low rank alone is no sign of learning"
    return (
        f"Control: with random weights ({n} {plural(n, 'initialisation')}, the same "
        f"sequences dealt out to them) the mean share is {_share(random.share_at_k)}, and {above} "
        f"of {random.heads} heads are above {result.verdict.threshold:g}: {meaning}. This model's "
        f"mean share is {result.mean_share:.3f}, {compared(gap, 'that')} (95%)."
    )


def sampling_sentence(result: SpectrumResult) -> str:
    """Say how many sequences were measured and how precise the shares are."""
    sampling = result.sampling
    text = (
        f"{result.sequences:,} {plural(result.sequences, 'sequence')} of exactly {result.length} "
        f"tokens out of {sampling.windows:,}"
    )
    if sampling.requested is not None and sampling.requested > sampling.windows:
        text += f" ({sampling.requested:,} were asked for; the text has no more)"
    if sampling.half_width is None:
        return f"{text}; fewer than {FEWEST_UNITS} have no interval"
    if sampling.reached is None:
        return f"{text}; every share is within {sampling.half_width:.3g} (95%)"
    if sampling.reached:
        return (
            f"{text}, in random order until every share was within {sampling.precision:g} (95%): "
            f"{sampling.half_width:.3g}"
        )
    return (
        f"{text}: all of the text, and still the widest 95% half-width is "
        f"{sampling.half_width:.3g}, not {sampling.precision:g}; give a longer text"
    )


def _controls(result: SpectrumResult) -> dict[str, Any]:
    """Return random weights, if they were measured, and the patterns whose spectrum is known."""
    random = result.random_weights
    return {**({} if random is None else {"random weights": random}), **result.controls}


def _value(share: Estimate | float) -> float:
    """Return a share that was measured, or that is known without an interval."""
    return (share.value or 0.0) if isinstance(share, Estimate) else share


def _share(number: Estimate) -> str:
    """Write a share with half of its interval."""
    return plus_minus(f"{_value(number):z.3f}", number.half_width)


def _curves(result: SpectrumResult) -> b.Panels:
    """Draw cumulative shares: heads thin, layer means bold, exceptions by name, controls dashed."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    x = range(1, result.length + 1)
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))
    colours = [
        to_hex(colormaps["viridis"](0.92 * i / max(1, len(layers) - 1))) for i in range(len(layers))
    ]
    controls = _controls(result)
    exceptions = result.verdict.not_low_rank[:_MOST_NAMES]
    panels: list[b.Chart] = []
    for field, symbol in (("curve", "sigma"), ("curve_sq", "sigma^2")):
        series = []
        for layer, colour in zip(layers, colours, strict=True):
            heads = [head for head in result.heads if head.layer_name == layer]
            for head in heads:
                named = head.name in exceptions
                name, width = (head.name, 1.2) if named else ("", 0.5)
                y = getattr(head, field)
                series.append(b.Series(name, x, y, "line", colour, "", width=width))
            mean = [
                fmean(column) for column in zip(*(getattr(h, field) for h in heads), strict=True)
            ]
            series.append(b.Series(f"{layer}, mean", x, mean, "line", colour, "", width=2.2))
        for name, (colour, dash) in _CONTROLS.items():
            if name in controls:
                y = getattr(controls[name], field)
                series.append(b.Series(f"control: {name}", x, y, "line", colour, "", dash))
        caption = "" if panels else "cumulative share"
        ticks = {f"k = {result.k}": float(result.k)}
        panels.append(
            b.Chart(
                f"share of the sum of {symbol}",
                "largest singular values counted",
                caption,
                series,
                x_levels=ticks,
            )
        )
    return b.Panels(
        f"Singular values of attention patterns, {model_name(result)}: mean over "
        f"{result.sequences:,} sequences of {result.length} tokens",
        panels,
        "spectrum_curves",
        across=2,
        size=(10.0, 4.8),
        alt="Share of the largest singular values of each head's pattern, beside controls; the "
        "numbers at k are in spectrum.csv, the curves in spectrum.json.",
        on=b.PAGE,
    )


def _efficient(result: SpectrumResult, efficient: EfficientResult) -> Iterator[b.Block]:
    """Show what cheap forms of attention cost, and how near they stay."""
    rows = [
        [
            f"{'control: ' * (point.form in efficient.controls)}{_FORMS[point.form][0]}",
            str(point.size),
            decimal(point.cost),
            _share(point.error).replace("+-0.", "+-."),
            decimal(point.mass),
            _share(point.fidelity).replace("+-0.", "+-."),
        ]
        for point in efficient.points
    ]
    yield b.text_table(
        ("form", "size", "cost/n^2", "error", "mass", "fidelity"),
        rows,
        f"What could replace full attention, on {efficient.sequences} sequences: error of each "
        "head's z alone (mean; 1 = zeros), attention mass kept, and fidelity of the model with all "
        "heads replaced (cosine of the pooled state)",
    )
    if efficient.left_out:
        names = joined([_FORMS[form][0] for form in efficient.left_out])
        yield b.Text(
            f"Left out: {names}. This model's scores depend on the pair of positions (a bias, or "
            "keys that a query may not see), and a mean of several keys has no position."
        )
    yield b.Text(
        "Bound: whatever projects K and V to k rows has at least this error (the best rank-k "
        "approximation of z itself; none from k = d_head on). It bounds the error of projections, "
        "neither that of windows nor the fidelity. Truncated P is P cut to rank k, nearest to P "
        "but not to z. Both, and random projections, need the full pattern: they are "
        "no methods. Uniform attention would keep a mass equal to the cost. +-: 95% over "
        f"sequences and, where something is drawn at random, {efficient.draws} draws.",
        "soft",
    )

    def missing(point: CheapPoint, field: str) -> Estimate:
        """Return the error of each head alone, or 1 minus the full model's fidelity."""
        if field == "error":
            return point.error
        return Estimate.around(1.0 - _value(point.fidelity), point.fidelity.half_width)

    panels = []
    for field, title, caption in (
        ("error", "each head alone", "relative error of z, mean over heads"),
        ("fidelity", "the model with all heads replaced", "1 - cosine of the pooled last state"),
    ):
        series = []
        for form, (name, colour, marker) in _FORMS.items():
            points = [point for point in efficient.points if point.form == form != "uniform"]
            # A logarithmic axis cannot show an error of 0.
            values = [(p.cost, y) for p in points if _value(y := missing(p, field)) > 0]
            control = form in efficient.controls
            exact = "" if len(values) == len(points) else ", then 0"
            series.append(
                b.Series(
                    f"{'control: ' * control}{name}{exact}" if points else "",
                    [cost for cost, _ in values],
                    [y for _, y in values],
                    "line",
                    colour,
                    marker,
                    "--" if control else "-",
                )
            )
        uniform = next(point for point in efficient.points if point.form == "uniform")
        levels = {"control: uniform attention": _value(missing(uniform, field))}
        levels |= {"zeros in place of z": 1.0} if field == "error" else {}
        panels.append(
            b.Chart(
                title,
                "fraction of the n^2 scores",
                caption,
                series,
                levels={name: level for name, level in levels.items() if level > 0},
                x_scale="log",
                y_scale="log10",
            )
        )
    yield b.Panels(
        f"What could replace attention in {model_name(result)}: {efficient.sequences} sequences of "
        f"{result.length} tokens",
        panels,
        "spectrum_efficient",
        across=2,
        size=(10.0, 4.6),
        alt="Error of each head and loss of fidelity by the cost of cheap forms of attention; the "
        "numbers are in spectrum.json.",
        on=b.PAGE,
    )


def _cards(result: SpectrumResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its share and the controls'."""
    shares = [
        f"random scores {result.controls['random-logits'].share_at_k:.3f}",
        f"identity {result.controls['identity'].share_at_k:.3f}",
    ]
    if result.random_weights is not None:
        shares.append(f"random weights {decimal(result.random_weights.share_at_k.value)}")
    for head in result.heads:
        text = (
            f"{_share(head.share_at_k)} of the sum in the {result.k} largest of {result.length} "
            f"singular values ({', '.join(shares)})"
        )
        values = {"share": head.share_at_k.value}
        yield Card(head.layer, head.head, facts=[("Spectrum", text)], values=values)


def _key_numbers(result: SpectrumResult) -> Iterator[KeyNumber]:
    """Yield the share at k, mean of heads."""
    if not result.heads:
        return
    control = f"random scores {result.controls['random-logits'].share_at_k:.3f}"
    if result.random_weights is not None:
        control = f"random weights {decimal(result.random_weights.share_at_k.value)}, {control}"
    what = f"share of the {result.k} largest of {result.length} singular values, mean of heads"
    yield KeyNumber(what, f"{result.mean_share:.3f}", control, Estimate(result.mean_share))


VIEW = view(
    "Spectrum of the softmax",
    blocks,
    {"spectrum": SpectrumResult.to_frame, "spectrum_efficient": SpectrumResult.efficient_frame},
    stale=names_of("spectrum_efficient"),
    facts=_cards,
    scales=(Scale("share", "Share of the largest singular values", of_pattern=True),),
    key_numbers=_key_numbers,
)
