"""Strings that come from files, made safe for a terminal and for a page of Markdown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

#: Characters that open markup in GitHub's Markdown, in a table or outside.
_MARKUP = r"[\\`*~|<&\[\]$]|(?<!-)>|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
#: Characters by which GitHub makes a link or a notification of a word: ``@name``, ``#12``,
#: ``http://``, ``www.``, ``GH-12``.
_AUTOLINK = r"@|#(?=\w)|(?<=:)//|(?<=www)\.|\bGH-(?=\d)"
#: An interval, ``[0.91, 0.96]``: brackets make a link only of what stands before ``(``, ``[`` or
#: ``:``, or of a name that is defined somewhere, which escaping prevents.
_INTERVAL = r"\[[-+\u2212\d.,%e \u00a0]+\](?![(\[:])"
_ACTIVE = re.compile(f"(?P<plain>{_INTERVAL})|(?P<markup>{_MARKUP})|{_AUTOLINK}", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "&#8203;"  # Behind such a character, nothing is made of the word


def visible(text: object) -> str:
    r"""Return a text on one line in which every control character is written out (``\x1b``).

    So escape sequences, line breaks, marks that change the direction of writing and halves of
    surrogate pairs cannot act on the terminal.
    """
    return "".join(map(_visible, str(text)))


def _visible(char: str) -> str:
    """Return a printable character as it is, any other as its code; every kind of space as one."""
    if char.isprintable():
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if code < 256:
        return f"\\x{code:02x}"
    if code < 65536:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def markdown(text: object) -> str:
    """Escape a text, so that Markdown shows it as it is: no markup, no link, no notification."""
    return _ACTIVE.sub(_inert, visible(text))


def _inert(match: re.Match[str]) -> str:
    """Write markup as a character reference, and break what GitHub would turn into a link."""
    if match["plain"]:
        return match[0]
    if match["markup"]:
        return f"&#{ord(match[0])};"
    return match[0] + _ZERO_WIDTH_SPACE


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list: ``L0H1, L0H2, L0H3 and 4 more``."""
    shown = ", ".join(names[:most])
    n_more = len(names) - most
    return f"{shown} and {n_more} more" if n_more > 0 else shown
