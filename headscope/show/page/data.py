"""Data for the page's script, as JSON inside the page."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

__all__ = ["page_json"]

#: What would end the JSON's script element, or start markup in it, written so that it cannot.
_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_json(data: Any) -> Markup:
    """Write JSON that no HTML parser can take for anything else; pure ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup("".join(_ESCAPES.get(char, char) for char in text))
