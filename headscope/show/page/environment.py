"""The templates of the pages."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from headscope.core.roles import role_class
from headscope.show.cells import tidy


@cache
def templates() -> Environment:
    """Return the templates of this folder; all that they are filled in with is escaped."""
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
