"""Strings from files cannot act: not on a terminal, not on a page."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.core.safe_text import markdown, visible


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_visible_texts_are_one_printable_line(text):
    shown = visible(text)
    assert shown.isprintable()
    shown.encode()
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\nb\r\tc", r"a\x0ab\x0d\x09c"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\ud800", r"\ud800"),
        ("non\u00a0break", "non break"),
        ("größe 东 🙂", "größe 东 🙂"),
    ],
)
def test_what_controls_is_seen(text, shown):
    assert visible(text) == shown


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="<>|`*_[]()!~$&\\@#:/wW.hHtTpPs-1aG\n\x1b"))
def test_nothing_of_a_text_is_markup(text):
    """Take the entities away, and nothing is left that opens anything in GitHub's Markdown."""
    plain = re.sub(r"&#\d+;", "", markdown(text))
    assert not re.search(r"[<|`*\[\]~$&\\\n\x1b]", plain)
    page = markdown(text).replace("&#8203;", "\u200b")
    assert not re.search(r"@\w|://\w|www\.\w|(?<!&)#\w|\bGH-\d", page)


def test_hostile_names_in_a_cell_and_plain_words():
    cell = markdown("</td><script>alert(1)</script> | x ![a](http://e.vil/x.png) @org/team #1")
    assert not [mark for mark in ("<", "|", "![", "@org", "http://e") if mark in cell]
    for plain in ("obj dep->head of L3H5: 0.5 (0.4 to 0.6)", "en_ewt-ud-test.conllu"):
        assert markdown(plain) == plain
