"""Pages in one file, which needs nothing else and runs no script but its own.

:func:`page_of` is the page of one result; :func:`rendered` fills in a template, also for a report.
Style and scripts are the files beside this one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from headscope.core.roles import NO_ROLE, primary_roles
from headscope.core.safe_text import visible
from headscope.core.serialise import warnings_of
from headscope.show.blocks import Block
from headscope.show.cells import model_line, model_name, model_size, tidy
from headscope.show.page.environment import templates
from headscope.show.page.html_blocks import answered, body


def versions(result: Any, joint: str = ", ") -> str:
    """Say which libraries made a result, and how it was run; ``joint`` stands between the two."""
    run = result.provenance
    return (
        f"headscope {run['headscope']}, torch {run['torch']}, transformers {run['transformers']}"
        f"{joint}{run['dtype']} on {run['device']}, seed {run['seed']}"
    )


def proof(certificate: Any) -> str:
    """Say in a few words whether our attention equals the model's, by the certificate of a run.

    By how much they differ, up to rounding, stands beside the model's name on every page.
    """
    if certificate is None or certificate.passed is None:
        return "not validated"
    if not certificate.passed:
        return "\u2717 validation failed"
    return "\u2713 same numbers as the model"


def page_of(title: str, blocks: Iterable[Block], result: Any) -> str:
    """Write the page of one result: its answer, the evidence for it, then the rest."""
    lead, evidence, rest = answered(blocks)
    model = result.provenance["model"]
    return rendered(
        "alone.html.j2",
        "",
        ("pictures.js", "sentence.js", "charts.js", "arrows.js"),
        name=visible(model_name(result)),
        size=model_size(model, times="\u00d7"),
        proof=proof(result.validation),
        title=title,
        headline=[(tidy(text.text), text.style == "failed") for text in lead],
        model_line=visible(model_line(result)),
        warnings=[visible(warning) for warning in warnings_of(result)],
        body=body([*evidence, *rest], opened=True),
        versions=visible(f"{versions(result, '; ')}. Made by: {result.provenance['command']}"),
    )


def rendered(template: str, more_style: str, scripts: Sequence[str], **values: Any) -> str:
    """Fill a template in, with the page's style and these script files inside.

    ``more_style`` is added to style.css. The template states the hash of style and script, so that
    a browser runs nothing else.
    """
    assets = resources.files("headscope.show.page")
    style = assets.joinpath("style.css").read_text("utf-8") + more_style
    script = "".join(assets.joinpath(name).read_text("utf-8") for name in scripts)
    page = (
        templates()
        .get_template(template)
        .render(
            style=Markup(style),
            style_hash=_hash(style),
            script=Markup(script),
            script_hash=_hash(script),
            **values,
        )
    )
    return page.encode("utf-8", "replace").decode()  # a file name in it may be no UTF-8


def role_colours() -> str:
    """Write the style rules of the roles' colours, by day and by night.

    The frame of a head in the map has the hue of what its letters stand on, but is stronger: a
    contrast of 3 to 1 at least with the page around it.
    """
    colours = []
    rules = []
    for role in primary_roles():
        key = role.key
        by_day = f"oklch(from {role.light} 0.52 0.13 h)"
        by_night = f"oklch(from {role.dark} 0.72 0.11 h)"
        frame = "var(--edge)" if role is NO_ROLE else f"light-dark({by_day}, {by_night})"
        colours.append(f"--{key}: light-dark({role.light}, {role.dark});")
        rules.append(f".{key} {{ background: var(--{key}); --frame: {frame}; }}")
        rules.append(f".dot.{key} {{ fill: {role.colour}; }}")
    return f":root {{ {' '.join(colours)} }}\n{' '.join(rules)}\n"


def _hash(text: str) -> str:
    """Return the hash by which a page's security policy allows a script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
