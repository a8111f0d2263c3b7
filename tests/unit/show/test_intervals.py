"""An interval is written in one way: in sentences, tables, on pages, in Markdown and on cards."""

import re
from pathlib import Path

import pytest

import headscope
from headscope.analyses.classify.cards import loss_interval
from headscope.removal.metric_words import span, with_interval
from headscope.reports.claims.bar import Bar
from headscope.reports.claims.intervals import shown
from headscope.show.cells import decimal, interval_text, percent, tidy
from headscope.show.estimates import compared, ranged
from headscope.stats.estimate import Estimate, JointEstimate

KNOWN = Estimate(0.9381, 0.9349, 0.9412)
UNKNOWN = Estimate(0.9381)


def test_every_writer_puts_both_ends_into_brackets():
    assert ranged(KNOWN) == "0.938 [0.935, 0.941]"
    assert ranged(KNOWN, percent) == "93.8% [93.5%, 94.1%]"
    assert with_interval(KNOWN, "cosine") == "0.9381 [0.9349, 0.9412]"
    assert span(KNOWN, "cosine") == "[0.9349, 0.9412]"
    assert shown(KNOWN) == "0.94 [0.93, 0.94]"
    assert Bar("cosine", 0.5, None, "", 0.4, 0.6).text == "cosine 0.5 [0.4, 0.6]"
    assert loss_interval(JointEstimate(0.1, 0.05, 0.2)).startswith("[")
    assert compared(Estimate(-0.2, -0.3, -0.1), "that") == "below that by 0.200 [0.100, 0.300]"


def test_an_interval_that_is_not_known_has_no_width():
    assert ranged(UNKNOWN) == "0.938"
    assert interval_text(None) == "-"
    assert with_interval(UNKNOWN, "cosine") == "0.9381 [no interval]"
    assert shown(UNKNOWN) == "0.94 [no interval]"
    assert ranged(Estimate(None)) == ranged(None) == "-"


def test_a_rounded_zero_has_no_sign():
    assert decimal(-0.0001) == "0.000"
    assert percent(-0.0001) == "0.0%"
    assert ranged(Estimate(-0.0001, -0.3, 0.0)) == "0.000 [-0.300, 0.000]"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("x [-0.3, 0.1]", "x [\u22120.3,\u00a00.1]"),
        ("from heads [L0H1, L0H2]", "from heads [L0H1, L0H2]"),
        ("[75.3%, 78.2%]", "[75.3%,\u00a078.2%]"),
    ],
)
def test_no_line_break_tears_an_interval_apart(text, printed):
    assert tidy(text) == printed


def test_no_sentence_writes_half_of_an_interval_behind_a_sign():
    """Only a tolerance, which is no interval, has such a sign."""
    written = re.compile(r"""["'][^"'\n]*\{[^}\n]*\} ?(\+-|\u00b1) ?\{""")
    folder = Path(headscope.__file__).parent
    found = [
        f"{path.relative_to(folder)}: {match[0]}"
        for path in folder.rglob("*.py")
        for match in written.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
