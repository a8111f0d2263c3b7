"""The templates of the pages: the files ``*.html.j2`` in this folder (Jinja)."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from headscope.core.roles import role_class
from headscope.show.cells import tidy


@cache
def templates() -> Environment:
    """Return the templates; all that is filled into them is escaped, unless it is Markup."""
    environment = Environment(
        loader=PackageLoader("headscope.show", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"tidy": tidy, "role_class": role_class}
    return environment
