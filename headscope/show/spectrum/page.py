"""What ``spectrum`` puts on the report's page: the share of the largest singular values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.results.estimated import Estimated
from headscope.results.spectrum import SpectrumResult
from headscope.show.cells import plus_minus
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.page.svg import Chart, Line, chart
from headscope.show.spectrum import words
from headscope.show.view import KeyNumber

SCALES = (Scale("share", "Share of the largest singular values", of_pattern=True),)


def section(result: SpectrumResult) -> Part:
    """For which heads low rank holds, and how sure that is."""
    texts = [
        words.verdict_sentence(result),
        words.control_sentence(result),
        words.sampling_sentence(result),
    ]
    return Part("spectrum", "Spectrum of the softmax", texts, _chart(result))


def _chart(result: SpectrumResult) -> Chart:
    """Share of the largest singular values: a dot for each head, lines for the controls."""
    names = list(dict.fromkeys(h.layer_name for h in result.heads))
    layers = range(len(names))
    dots = [(float(names.index(head.layer_name)), head.share_at_k.mean) for head in result.heads]
    lines = [Line("one head", dots, 0, dots=True)]
    for i, (name, share) in enumerate(_controls(result).items(), start=1):
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


def _controls(result: SpectrumResult) -> dict[str, float]:
    """Share at k of the controls that the page shows."""
    known = {name: result.controls[name].share_at_k for name in ("random-logits", "identity")}
    if result.random_weights is not None:
        known["random weights"] = result.random_weights.share_at_k.mean
    return known


def facts(result: SpectrumResult, places: Sequence[Place]) -> Iterator[Card]:
    """The share of every head beside the controls."""
    names = {"random-logits": "random scores"}
    shares = [f"{names.get(name, name)} {share:.3f}" for name, share in _controls(result).items()]
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
    mean = words.mean_share(result)
    yield KeyNumber(what, f"{mean:.3f}", control, Estimated(mean))
