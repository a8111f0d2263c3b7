"""The sentences of ``spectrum``: for which heads "low rank" holds, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.analyses.classify.view import describe_offset
from headscope.analyses.spectrum.result import EfficientResult, SpectrumHead, SpectrumResult
from headscope.show.cells import (
    decimal,
    fields_csv,
    head_map,
    joined,
    make_table,
    model_line,
    plural,
    plus_minus,
    to_csv,
)
from headscope.show.folders import folder_files, names_of
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.view import KeyNumber, View
from headscope.stats.estimate import Estimate

__all__ = ["VIEW"]


_MOST_NAMES = 8  # Names listed in a sentence at most.
#: What the forms are called in tables and figures.
FORM_NAMES = {
    "truncated": "truncated P",
    "bound": "bound: best rank-k z",
    "random": "random projection",
    "pooled": "pooled keys",
    "window": "window",
    "window+global": "window + global",
    "window+global+random": "... + random blocks",
    "random-keys": "random keys",
    "uniform": "uniform attention",
}


def verdict_sentence(result: SpectrumResult) -> str:
    """Say in one sentence for which heads "self-attention is low rank" holds."""
    verdict = result.verdict
    if all(head.half_width is None for head in result.heads):
        return "A single sequence gives no interval, so no head is called low rank, or not."
    holds = (
        f"Low rank holds for {len(verdict.low_rank)} of {len(result.heads)} "
        f"heads{_by_layer(result)}: the "
        f"{result.k} largest of their {result.length} singular values hold more than "
        f"{verdict.threshold:.0%} of the sum (95% confidence)"
    )
    return f"{holds}; {_fails(result)}."


def _fails(result: SpectrumResult) -> str:
    exceptions = result.verdict.not_low_rank
    level = f"random scores ({result.verdict.random:.3f}){_between(result)}"
    if not exceptions:
        return f"no head is down at {level}"
    if result.roles is None:
        return (
            f"it does not for {_named(result, exceptions)}, which reach no more than {level} "
            "(no classification: --roles would tell which heads are positional)"
        )
    positional, others = _split(result, exceptions)
    groups = [f"the positional {_named(result, positional)}"] if positional else []
    groups += [f"{_named(result, others)}, not positional"] if others else []
    return f"it does not for {' and for '.join(groups)}, which reach no more than {level}"


def _split(result: SpectrumResult, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split names of heads into those that the classification calls positional, and others."""
    known = result.roles.positional if result.roles is not None else ()
    return [n for n in names if n in known], [n for n in names if n not in known]


def _between(result: SpectrumResult) -> str:
    """Say what lies between, positional heads by name."""
    between = result.verdict.between
    if not between:
        return ""
    text = f"; {len(between)} lie between"
    if positional := _split(result, between)[0]:
        text += f", among them the positional {_named(result, positional)}"
    if low := _split(result, result.verdict.low_rank)[0]:
        text += f"; of the low-rank ones {_named(result, low)} are positional all the same"
    return text


def _named(result: SpectrumResult, names: Sequence[str]) -> str:
    """List heads with what they look at and their share."""
    heads = {head.name: head for head in result.heads}
    shown = names[:_MOST_NAMES]
    listed = [f"{n} ({_looks_at(result, heads[n])}, {heads[n].share_at_k.mean:.3f})" for n in shown]
    if len(names) > len(shown):
        listed.append(f"{len(names) - len(shown)} more")
    return joined(listed)


def _looks_at(result: SpectrumResult, head: SpectrumHead) -> str:
    """Say where a head looks: by the classification, or else by its mean weights."""
    known = result.roles.positional if result.roles is not None else {}
    offset = known.get(head.name)
    if offset is not None:
        return describe_offset(offset)
    return f"{head.offset_mass:.0%} on {describe_offset(head.offset)}"


def _by_layer(result: SpectrumResult) -> str:
    """Say how they spread over layers: ``(L0 3, L5 all 12)``."""
    every = Counter(head.layer_name for head in result.heads)
    low = Counter(head.layer_name for head in result.heads if head.name in result.verdict.low_rank)
    parts = [f"{layer} {'all ' * (n == every[layer])}{n}" for layer, n in low.items()]
    return f" ({', '.join(parts)})" if 0 < len(parts) <= 12 else ""


def control_sentence(result: SpectrumResult) -> str:
    """Say what the same architecture with random weights has, and what that means."""
    random = result.random_weights
    if random is None:
        return (
            "Control: random weights not measured (--control); an untrained model's heads may well "
            "be of low rank too, so that low rank alone is no sign of learning."
        )
    n = len(random.draws)
    share = plus_minus(f"{random.share_at_k.mean:.3f}", random.half_width)
    counts = sorted({draw.above for draw in random.draws})
    above = " to ".join(map(str, [counts[0], counts[-1]] if len(counts) > 1 else counts))
    has_it = sum(draw.above for draw in random.draws) > n * random.heads / 2
    meaning = (
        "low rank alone is no sign of learning"
        if has_it
        else "most heads of an untrained model are not of low rank"
    )
    return (
        f"Control: with random weights ({n} {plural(n, 'initialisation')}, the same "
        f"sequences dealt out to them) the mean share is {share}, and {above} of "
        f"{random.heads} heads are above {result.verdict.threshold:g}: {meaning}. "
        f"{_against_random(result)}"
    )


def mean_share(result: SpectrumResult) -> float:
    """Return the mean share at k of all heads."""
    return sum(head.share_at_k.mean for head in result.heads) / len(result.heads)


def _against_random(result: SpectrumResult) -> str:
    """Say on which side of random weights the model's mean share lies, by its interval."""
    found = result.over_random_weights()
    text = f"This model's mean share is {mean_share(result):.3f}"
    if found is None or found.half_width is None:
        return f"{text}; too little was measured for an interval of the difference."
    gap = f"by {abs(found.mean):.3f} +-{found.half_width:.3f} (95%)"
    if abs(found.mean) <= found.half_width:
        return f"{text}, no different from that (95%)."
    return f"{text}, {'above' if found.mean > 0 else 'below'} that {gap}."


def bound_sentence(found: EfficientResult) -> str:
    """Say what the forms bound, and what the intervals hold."""
    return (
        "Bound: whatever projects K and V to k rows has at least this error (the best rank-k "
        "approximation of z itself; none from k = d_head on). It bounds the error of projections, "
        "neither that of windows nor the fidelity. Truncated P is P cut to rank k, nearest to P "
        "but not to z. Both, and random projections, need the full pattern: they are "
        "no methods. Uniform attention would keep a mass equal to the cost. +-: 95% over "
        f"sequences and, where something is drawn at random, {found.draws} draws."
        f"{_left_out(found)}"
    )


def _left_out(found: EfficientResult) -> str:
    """Say which forms were not measured, and why."""
    if not found.left_out:
        return ""
    names = joined([FORM_NAMES[form] for form in found.left_out])
    return (
        f" Left out: {names}. This model's scores depend on the pair of positions (a bias, or keys "
        "that a query may not see), and a mean of several keys has no position."
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
        return f"{text}; a single sequence has no interval"
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


_HEADS_ACROSS = 14  # Heads beside each other in one block of the map.


def spectrum_report(result: SpectrumResult) -> Iterator[RenderableType]:
    """Show what was run, the verdict, the map, the controls, and the cheap forms if measured."""
    yield from _header(result)
    yield Text("\n" + verdict_sentence(result), style="bold")
    yield Text(control_sentence(result) + "\n")
    yield from _map(result)
    yield Text("")
    yield _controls(result)
    if result.efficient is not None:
        yield Text("")
        yield from _efficient(result.efficient)


def _header(result: SpectrumResult) -> Iterator[Text]:
    yield model_line(result)
    yield Text(f"Text    {result.provenance['data']['name']}: {sampling_sentence(result)}")
    if result.roles is not None:
        yield Text(f"Roles   from a classification on {result.roles.corpus}")


def _map(result: SpectrumResult) -> Iterator[RenderableType]:
    """Share at k of every head, in percent."""
    styles = dict.fromkeys(result.verdict.low_rank, "green")
    styles |= dict.fromkeys(result.verdict.not_low_rank, "bold red")
    positional = result.roles.positional if result.roles else {}
    cells = {
        (head.layer_name, head.head): _cell(
            head, styles.get(head.name, ""), head.name in positional
        )
        for head in result.heads
    }
    layers = dict.fromkeys(h.layer_name for h in result.heads)
    yield Text(f"% of the sum of singular values in the {result.k} largest of {result.length}")
    yield from head_map(cells, layers, across=_HEADS_ACROSS, width=5, name=str)
    yield Text(
        "+ low rank   - no more than random scores" + ("   p positional" if positional else ""),
        style="dim",
    )


def _cell(head: SpectrumHead, style: str, positional: bool) -> Text:
    mark = {"green": "+", "bold red": "-"}.get(style, " ")
    return Text(f"{'p' * positional}{100 * head.share_at_k.mean:.0f}{mark}", style=style)


def _controls(result: SpectrumResult) -> Table:
    """Random weights and closed forms beside the heads' own extremes."""
    table = make_table(("share of the k largest", "sigma", "sigma^2"))
    shares = [head.share_at_k.mean for head in result.heads]
    squares = [head.share_sq_at_k.mean for head in result.heads]
    for name, pick in (("lowest head", min), ("median head", median), ("highest head", max)):
        table.add_row(name, decimal(pick(shares)), decimal(pick(squares)))
    known: dict[str, Any] = {"random weights": result.random_weights, **result.controls}
    for name, control in known.items():
        if control is not None:
            shares_of = (control.share_at_k, control.share_sq_at_k)
            cells = (getattr(share, "mean", share) for share in shares_of)
            table.add_row(f"control: {name}", *map(decimal, cells))
    return table


def _efficient(found: EfficientResult) -> Iterator[RenderableType]:
    yield Text(
        f"What could replace full attention, on {found.sequences} sequences: error of each head's "
        "z alone (mean; 1 = zeros), attention mass kept, and fidelity of the model with all "
        "heads replaced (cosine of the pooled state)"
    )
    table = make_table(("form", "size", "cost/n^2", "error", "mass", "fidelity"))
    for point in found.points:
        control = point.form in found.controls
        table.add_row(
            f"{'control: ' if control else ''}{FORM_NAMES[point.form]}",
            str(point.size),
            decimal(point.cost),
            _plus_minus(point.error, point.error_half_width),
            decimal(point.mass),
            _plus_minus(point.fidelity.mean, point.fidelity_half_width),
            style="dim" if control else None,
        )
    yield table
    yield Text(bound_sentence(found), style="dim")


def _plus_minus(value: float, half: float | None) -> str:
    """Write a number with half of its interval; without one where that is unknown."""
    return plus_minus(f"{value:z.3f}", half).replace("+-0.", "+-.")


SCALES = (Scale("share", "Share of the largest singular values", of_pattern=True),)


def section(result: SpectrumResult) -> Part:
    """For which heads low rank holds, and how sure that is."""
    texts = [
        verdict_sentence(result),
        control_sentence(result),
        sampling_sentence(result),
    ]
    return Part("spectrum", "Spectrum of the softmax", texts, _chart(result))


def _chart(result: SpectrumResult) -> Chart:
    """Share of the largest singular values: a dot for each head, lines for the controls."""
    names = list(dict.fromkeys(h.layer_name for h in result.heads))
    layers = range(len(names))
    dots = [(float(names.index(head.layer_name)), head.share_at_k.mean) for head in result.heads]
    lines = [Line("one head", dots, 0, dots=True)]
    for i, (name, share) in enumerate(_controls_page(result).items(), start=1):
        lines.append(Line(name, [(float(layer), share) for layer in layers], i, dashed=True))
    return chart(
        lines,
        label=f"Share of the {result.k} largest of {result.length} singular values, a dot "
        "for each head by layer; the numbers are in spectrum.csv.",
        x_title="layer",
        y_title="share",
        y_limits=(0, 1),
        x_names=names,
    )


def _controls_page(result: SpectrumResult) -> dict[str, float]:
    """Share at k of the controls that the page shows."""
    known = {name: result.controls[name].share_at_k for name in ("random-logits", "identity")}
    if result.random_weights is not None:
        known["random weights"] = result.random_weights.share_at_k.mean
    return known


def facts(result: SpectrumResult, places: Sequence[Place]) -> Iterator[Card]:
    """The share of every head beside the controls."""
    names = {"random-logits": "random scores"}
    shares = [
        f"{names.get(name, name)} {share:.3f}" for name, share in _controls_page(result).items()
    ]
    for head in result.heads:
        text = (
            f"{plus_minus(f'{head.share_at_k.mean:.3f}', head.half_width)} of the sum in the "
            f"{result.k} largest of {result.length} singular values ({', '.join(shares)})"
        )
        values = {"share": head.share_at_k.mean}
        yield Card(head.layer, head.head, facts=[("Spectrum", text)], values=values)


def key_numbers(result: SpectrumResult) -> Iterator[KeyNumber]:
    """Share at k, mean of heads."""
    if not result.heads:
        return
    control = f"random scores {result.controls['random-logits'].share_at_k:.3f}"
    if result.random_weights is not None:
        control = f"random weights {result.random_weights.share_at_k.mean:.3f}, {control}"
    what = f"share of the {result.k} largest of {result.length} singular values, mean of heads"
    mean = mean_share(result)
    yield KeyNumber(what, f"{mean:.3f}", control, Estimate(mean))


#: Columns of the cheap forms' table: one row per head, form and size.
_FORMS = ("layer", "head", "form", "size", "error.mean", "error.sem", "half_width", "mass")


def spectrum_files(result: SpectrumResult) -> dict[str, bytes]:
    """Return the tables as CSV and the figures."""
    from headscope.analyses.spectrum.figures import cost_curves, share_map, spectrum_curves

    csv = {"spectrum": to_csv(result)}
    figures = {
        "spectrum_curves": spectrum_curves(result),
        "spectrum_map": share_map(result),
        "spectrum_map_sq": share_map(result, squared=True),
    }
    if result.efficient is not None:
        csv["spectrum_efficient"] = fields_csv(_FORMS, result.efficient.heads)
        figures["spectrum_efficient"] = cost_curves(result, result.efficient)
    return folder_files(csv, figures)


VIEW = View(
    spectrum_report,
    spectrum_files,
    stale=names_of("spectrum_efficient"),
    facts=facts,
    scales=SCALES,
    section=section,
    key_numbers=key_numbers,
)
