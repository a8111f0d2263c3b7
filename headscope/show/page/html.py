"""``report.html``: one file that needs nothing else and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headscope.results import ReportResult
from headscope.results.roles import PRIMARY
from headscope.safe_text import visible
from headscope.show.classify import words as classify_words
from headscope.show.classify.words import found_sentence
from headscope.show.depth import words as depth_words
from headscope.show.depth.words import collapse_sentence, protection_sentence
from headscope.show.key_numbers import certificate, key_numbers, role_counts, settings_rows
from headscope.show.page.cards import SCALES, Card, cards
from headscope.show.page.charts import (
    Figure,
    depth_chart,
    prune_chart,
    rank_chart,
    spectrum_chart,
)
from headscope.show.prune.words import verdict
from headscope.show.rank.words import rank_notes, rank_sentence
from headscope.show.spectrum.words import (
    control_sentence,
    sampling_sentence,
    verdict_sentence,
)

__all__ = ["report_html"]

_LEGEND = (
    "-1, +1 ... position; syn syntactic; rar rare word; [ first and ] last special token; pun "
    "punctuation; brd broad; · no role on this corpus; dashed: removed from the model."
)
#: What would end the JSON's script element, or start markup in it, written so that it cannot.
_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Part:
    """A section of the page: sentences, a chart, a table (text in its first columns)."""

    anchor: str
    title: str
    texts: Sequence[str] = ()
    figure: Figure | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    numbers: int = 1


def report_html(report: ReportResult) -> str:
    """Write the page; the same result gives the same text.

    Notes
    -----
    Strings of models and corpora go into the page through the template's escaping or as JSON, and
    from there through textContent. The page's security policy lets only the one script run whose
    hash it states, and nothing be fetched.
    """
    pages = Environment(
        loader=PackageLoader("headscope.show", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _asset(pages, "style.css") + _role_colours()
    script = _asset(pages, "page.js")
    made = cards(report)
    model = report.provenance["model"]
    parts = list(_parts(report))
    claims = report.insights.insights if report.insights is not None else ()
    columns, rows = _grid(report, made)
    text = pages.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(_json(_data(report, made))),
        title=visible(model["id"]),
        model_line=_model_line(report),
        certificate=visible(certificate(report)),
        failed=report.validate is not None and not report.validate.passed,
        contents=_contents(bool(claims), bool(rows), parts),
        claims=claims,
        waiting=[claim for claim in claims if claim.verdict == "not measured yet"],
        found=found_sentence(report.classify) if report.classify is not None else "",
        roles=role_counts(report),
        scales={key: text for key, text in SCALES.items() if any(key in c.values for c in made)},
        columns=columns,
        rows=rows,
        legend=_LEGEND,
        parts=parts,
        table_header=[("head", False), ("roles", False), *((t, True) for t in _shown(made))],
        table_rows=[(card, _cells(card, made)) for card in made],
        versions=visible(_versions(report)),
    )
    return text if text.endswith("\n") else text + "\n"


def _role_colours() -> str:
    """Write the style rules of the roles' backgrounds, by day and by night."""
    light, dark = (
        " ".join(f"--{role.key}: {getattr(role, kind)};" for role in PRIMARY)
        for kind in ("light", "dark")
    )
    rules = " ".join(f".{role.key} {{ background: var(--{role.key}); }}" for role in PRIMARY)
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{rules}\n"
    )


def _asset(pages: Environment, name: str) -> str:
    """Read a file as it stands, without taking it for a template."""
    assert pages.loader is not None
    text, _, _ = pages.loader.get_source(pages, name)
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    """Write JSON that no HTML parser can take for anything else; pure ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return "".join(_ESCAPES.get(char, char) for char in text)


def _data(report: ReportResult, made: Sequence[Card]) -> dict[str, Any]:
    return {
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "heads": [
            {
                "name": card.name,
                "mark": card.mark,
                "roles": card.roles,
                "keys": card.keys,
                "labels": card.labels,
                "facts": card.facts,
                "ranks": card.ranks,
                "values": card.values,
            }
            for card in made
        ],
        "samples": [
            {
                "text": visible(sample.text),
                "tokens": [visible(token) for token in sample.tokens],
                "patterns": {
                    name: [round(100 * weight) for row in pattern for weight in row]
                    for name, pattern in sample.patterns.items()
                },
            }
            for sample in report.samples
        ],
    }


def _grid(
    report: ReportResult, made: Sequence[Card]
) -> tuple[list[int], list[tuple[int, list[Card | None]]]]:
    """Lay the heads out by their original numbers; None where one was removed."""
    removed = [tuple(place) for place in report.provenance["model"].get("removed_heads", ())]
    places = {(card.layer, card.head): card for card in made}
    if not places:
        return [], []
    known = [*places, *removed]
    columns = list(range(max(head for _, head in known) + 1))
    layers = range(max(layer for layer, _ in known) + 1)
    return columns, [(n, [places.get((n, head)) for head in columns]) for n in layers]


def _shown(made: Sequence[Card]) -> list[str]:
    return [text for key, text in SCALES.items() if any(key in card.values for card in made)]


def _cells(card: Card, made: Sequence[Card]) -> list[str]:
    keys = [key for key in SCALES if any(key in other.values for other in made)]
    return [f"{card.values[key]:.4g}" if key in card.values else "-" for key in keys]


def _contents(claims: bool, grid: bool, parts: Sequence[Part]) -> list[tuple[str, str]]:
    first = [("claims", "Claims")] if claims else []
    middle = [("map", "Map of heads")] if grid else []
    last = [("heads", "All heads")] if grid else []
    return [*first, *middle, *((part.anchor, part.title) for part in parts), *last]


def _parts(report: ReportResult) -> Iterator[Part]:
    numbers = list(key_numbers(report))
    if numbers:
        header = ("", "this model", "control")
        yield Part("numbers", "Key numbers", header=header, rows=numbers, numbers=3)
    if report.classify is not None:
        yield _roles_part(report)
    if report.rank is not None and report.rank.heads:
        texts = [rank_sentence(report.rank), *rank_notes(report.rank)]
        yield Part("rank", "Ranks", texts, rank_chart(report.rank))
    if report.spectrum is not None:
        spectrum = report.spectrum
        texts = [verdict_sentence(spectrum), control_sentence(spectrum)]
        texts.append(sampling_sentence(spectrum))
        yield Part("spectrum", "Spectrum of the softmax", texts, spectrum_chart(spectrum))
    if report.depth is not None:
        depth = report.depth
        texts = [collapse_sentence(depth), protection_sentence(depth)]
        texts.append(depth_words.control_sentence(depth))
        yield Part("depth", "Depth", [text for text in texts if text], depth_chart(depth))
    if report.prune is not None:
        texts = [verdict(report.prune), *report.prune.warnings]
        yield Part("prune", "Pruning", [visible(text) for text in texts], prune_chart(report.prune))
    yield from _about(report)


def _roles_part(report: ReportResult) -> Part:
    result = report.classify
    assert result is not None
    corpus = result.corpus
    read = (
        f"{corpus.name}: {corpus.sentences:,} sentences, {corpus.skipped:,} skipped, "
        f"{corpus.queries:,} tokens; word frequencies from {corpus.frequencies}."
    )
    rows = [
        (name, "not testable" if role in result.untestable else str(n), control)
        for role, name, n, control in role_counts(report)
    ]
    texts = [read, *classify_words.roles_notes(result)]
    return Part(
        "roles",
        "Roles",
        [visible(text) for text in texts],
        header=("role", "heads", "heads of random weights"),
        rows=rows,
    )


def _about(report: ReportResult) -> Iterator[Part]:
    if report.left_out:
        rows = [(name, visible(why)) for name, why in report.left_out.items()]
        yield Part("left-out", "Left out", header=("section", "why"), rows=rows, numbers=2)
    changed = [(section, name, visible(value)) for section, name, value in settings_rows(report)]
    text = [] if changed else ["Every setting is at its default."]
    header = ("section", "setting", "value") if changed else ()
    yield Part("settings", "Settings", text, header=header, rows=changed, numbers=3)


def _model_line(report: ReportResult) -> str:
    model = report.provenance["model"]
    removed = model.get("removed_heads") or []
    text = f"{model['family']}, {model['n_layers']} layers of {model['n_heads']} heads"
    if removed:
        text += f", {len(removed)} heads removed"
    sha = model["weights_sha256"]
    return visible(f"{text}; weights {sha[:12]}." if sha else f"{text}.")


def _versions(report: ReportResult) -> str:
    made = report.provenance
    return (
        f"headscope {made['headscope']}, torch {made['torch']}, transformers "
        f"{made['transformers']}; {made['dtype']} on {made['device']}, seed {made['seed']}. "
        f"Made by: {made['command']}"
    )
