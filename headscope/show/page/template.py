"""Pages from the templates: one file that needs nothing else and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headscope.core.roles import primary_roles
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.show.cells import model_line, tidy
from headscope.show.page.parts import Part

_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_json(data: Any) -> Markup:
    """Write JSON that no HTML parser can take for anything else; pure ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup("".join(_ESCAPES.get(char, char) for char in text))


def versions(result: Any, joint: str = ", ") -> str:
    """Say which libraries made the report, and on what; ``joint`` stands between the two."""
    made = result.provenance
    return (
        f"headscope {made['headscope']}, torch {made['torch']}, transformers "
        f"{made['transformers']}{joint}{made['dtype']} on {made['device']}, seed {made['seed']}"
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
    pages.filters["tidy"] = tidy
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


def role_colours() -> str:
    """Write the style rules of the roles' backgrounds, by day and by night."""
    colours = " ".join(f"--{r.key}: light-dark({r.light}, {r.dark});" for r in primary_roles())
    rules = " ".join(
        f".{r.key} {{ background: var(--{r.key}); }} .dot.{r.key} {{ fill: {r.colour}; }}"
        for r in primary_roles()
    )
    return f":root {{ {colours} }}\n{rules}\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
