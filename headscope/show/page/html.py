"""``report.html``: one file that needs nothing else and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headscope.core.safe_text import visible
from headscope.results.measured import warnings_of
from headscope.results.report import ReportResult
from headscope.results.roles import PRIMARY
from headscope.show.cells import model_line
from headscope.show.classify.words import first_part, found_sentence, marks, role_counts
from headscope.show.page.body import body, svg_files
from headscope.show.page.cards import cards, scales
from headscope.show.page.data import page_json
from headscope.show.page.parts import Card, Part
from headscope.show.report.words import certificate, key_numbers, settings_rows, versions
from headscope.show.view import view_of

_MARKS = marks(3)
_LEGEND = (
    f"-1, +1 ... position; {_MARKS['syntactic']}; {_MARKS['rare']}; [ first and ] last special "
    f"token; {_MARKS['punctuation']}; {_MARKS['broad']}; {_MARKS['self']}; {_MARKS['duplicate']}; "
    "· no role on this corpus; dashed: removed from the model."
)
#: What the script reads of each head.
_CARD_FIELDS = ("name", "mark", "roles", "keys", "labels", "facts", "ranks", "values")


def report_html(
    report: ReportResult, files: Mapping[str, Mapping[str, bytes]] | None = None
) -> str:
    """Write the page; the same result gives the same text.

    ``files`` are those that sections have written already: the page shows their figures.

    Notes
    -----
    Strings of models and corpora go into the page through the template's escaping or as JSON, and
    from there through textContent. The page's security policy lets only the one script run whose
    hash it states, and nothing be fetched.
    """
    made = cards(report)
    shown = scales(report, made)
    parts = list(_parts(report, files or {}))
    claims = report.insights.insights if report.insights is not None else ()
    classified = report.classify
    columns, rows = _grid(report, made)
    return rendered(
        "page.html.j2",
        _role_colours(),
        ("page.js", "arrows.js"),
        data=page_json(_data(report, made)),
        title=visible(report.provenance["model"]["id"]),
        model_line=_model_line(report),
        certificate=visible(certificate(report)),
        warnings=[visible(warning) for warning in warnings_of(report)],
        failed=report.validate is not None and not report.validate.passed,
        contents=_contents(bool(claims), bool(rows), parts),
        claims=claims,
        waiting=[claim for claim in claims if claim.verdict == "not measured yet"],
        found=found_sentence(classified) if classified is not None else "",
        roles=role_counts(first_part(classified)) if classified is not None else (),
        scales={scale.key: scale.caption for scale in shown},
        columns=columns,
        rows=rows,
        legend=_LEGEND,
        parts=parts,
        table_header=[("head", False), ("roles", False), *((s.caption, True) for s in shown)],
        table_rows=[(card, [_cell(card, scale.key) for scale in shown]) for card in made],
        versions=visible(f"{versions(report, '; ')}. Made by: {report.provenance['command']}"),
    )


def part_html(part: Part, result: Any) -> str:
    """Write a page of one part alone, about the model of ``result``."""
    return rendered(
        "alone.html.j2",
        "",
        ("arrows.js",),
        title=visible(result.provenance["model"]["id"]),
        model_line=visible(model_line(result)),
        warnings=[visible(warning) for warning in warnings_of(result)],
        part=part,
        versions=visible(f"{versions(result, '; ')}. Made by: {result.provenance['command']}"),
    )


def rendered(template: str, more_style: str, scripts: Sequence[str], **values: Any) -> str:
    """Fill a template in, with the page's style and these scripts in it."""
    pages = Environment(
        loader=PackageLoader("headscope.show", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    assets = resources.files("headscope.show.page")
    style = assets.joinpath("style.css").read_text("utf-8") + more_style
    script = "".join(assets.joinpath(name).read_text("utf-8") for name in scripts)
    return pages.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        **values,
    )


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


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(report: ReportResult, made: Sequence[Card]) -> dict[str, Any]:
    samples = [
        {
            "text": visible(sample.text),
            "tokens": [visible(token) for token in sample.tokens],
            "patterns": {
                name: [round(100 * weight) for row in pattern for weight in row]
                for name, pattern in sample.patterns.items()
            },
        }
        for sample in report.samples
    ]
    return {
        "classified": report.classify is not None,
        "controls": list(report.rank.controls) if report.rank is not None else [],
        "heads": [{field: getattr(card, field) for field in _CARD_FIELDS} for card in made],
        "samples": samples,
    }


def _grid(
    report: ReportResult, made: Sequence[Card]
) -> tuple[list[int], list[tuple[int, list[Card | None]]]]:
    """Lay the heads out by their original numbers; None where one was removed."""
    shown = next((head.stack for head in report.classify.heads), "") if report.classify else ""
    gone = report.provenance["model"].get("removed_heads", ())
    removed = [tuple(place[-2:]) for place in gone if len(place) == 2 or place[0] == shown]
    places = {(card.layer, card.head): card for card in made}
    if not places:
        return [], []
    known = [*places, *removed]
    columns = list(range(max(head for _, head in known) + 1))
    layers = range(max(layer for layer, _ in known) + 1)
    return columns, [(n, [places.get((n, head)) for head in columns]) for n in layers]


def _cell(card: Card, key: str) -> str:
    return f"{card.values[key]:.4g}" if key in card.values else "-"


def _contents(claims: bool, grid: bool, parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Return anchor and text of each line of the contents."""
    first = [("claims", "Claims")] if claims else []
    middle = [("map", "Map of heads")] if grid else []
    last = [("heads", "All heads")] if grid else []
    return [*first, *middle, *((part.anchor, part.title) for part in parts), *last]


def _parts(report: ReportResult, files: Mapping[str, Mapping[str, bytes]]) -> Iterator[Part]:
    """Yield the key numbers, what each section has to show, and how the report was made."""
    numbers = list(key_numbers(report))
    if numbers:
        header = ("", "this model", "control")
        yield Part("numbers", "Key numbers", header=header, rows=numbers, numbers=3)
    for name, result in report.sections.items():
        view = view_of(name)
        if view.blocks is not None and view.title:
            shown = list(view.blocks(result))
            drawn = files.get(name) or svg_files(shown)
            yield Part(name, view.title, body=body(shown, drawn))
        elif (part := view.section(result)) is not None:
            yield part
        yield from view.more(result)
    if report.left_out:
        rows = [(name, visible(why)) for name, why in report.left_out.items()]
        yield Part("left-out", "Left out", header=("section", "why"), rows=rows, numbers=2)
    changed = [(section, name, visible(value)) for section, name, value in settings_rows(report)]
    text = [] if changed else ["Every setting is at its default."]
    header = ("section", "setting", "value")
    yield Part("settings", "Settings", text, header=header, rows=changed, numbers=3)


def _model_line(report: ReportResult) -> str:
    model = report.provenance["model"]
    removed = model.get("removed_heads") or []
    text = f"{model['family']}, {model['n_layers']} layers of {model['n_heads']} heads"
    if removed:
        text += f", {len(removed)} heads removed"
    sha = model["weights_sha256"]
    return visible(f"{text}; weights {sha[:12]}." if sha else f"{text}.")
