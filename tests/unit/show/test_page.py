"""The page and the Markdown of a report, without a browser."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hostile import HOSTILE, hostile
from markdown_it import MarkdownIt

from headscope.results import ReportResult, SamplePatterns
from headscope.show.markdown import report_markdown
from headscope.show.page.html import report_html
from headscope.show.page.svg import Line, chart
from headscope.show.report.files import report_json


def grid(
    n_layers: int, n_heads: int, n: int, removed: tuple[tuple[int, int], ...] = ()
) -> ReportResult:
    """A report that knows nothing but patterns."""
    row = tuple(round(1 / n, 2) for _ in range(n))
    names = [
        f"L{layer}H{head}"
        for layer in range(n_layers)
        for head in range(n_heads)
        if (layer, head) not in removed
    ]
    sample = SamplePatterns("text", ("token",) * n, dict.fromkeys(names, (row,) * n))
    model = {
        "id": "m",
        "family": "bert",
        "n_layers": n_layers,
        "n_heads": n_heads,
        "weights_sha256": None,
        "removed_heads": [list(place) for place in removed],
    }
    made = {
        "headscope": "0",
        "torch": "0",
        "transformers": "0",
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "command": "c",
        "model": model,
        "created": "2026-01-01",
    }
    return ReportResult(1, made, {}, {}, {}, samples=(sample, sample))


def test_page_asks_for_nothing_and_escapes_its_data() -> None:
    page = report_html(hostile(grid(2, 2, 12)))
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    assert data[1].isascii()
    assert HOSTILE[2] in json.loads(data[1])["samples"][0]["tokens"]
    assert page.count("<script") == 2


def test_twelve_by_twelve_heads_stay_far_below_five_megabytes() -> None:
    assert len(report_html(grid(12, 12, 16)).encode()) < 1_000_000


def test_removed_heads_are_gaps() -> None:
    page = report_html(grid(2, 3, 4, removed=((0, 1), (1, 0), (1, 1), (1, 2))))
    assert page.count('class="cell gone"') == 4
    assert 'data-head="L0H2"' in page
    assert 'data-head="L0H1"' not in page
    assert "4 heads removed" in page


def test_markdown_of_hostile_strings_renders_as_text() -> None:
    text = report_markdown(hostile(grid(1, 1, 2)))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r"<(?:img|script|a|svg)\b", html)
    assert "@octocat" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for table in text.split("\n\n"):
        widths = {line.replace(r"\|", "").count("|") for line in table.splitlines() if line in rows}
        assert len(widths) <= 1


def test_json_keeps_strings_that_look_like_lists() -> None:
    document = {"text": "[\\n 1,\\n 2\\n]", "numbers": [1.5, None, 3], "nested": [[1], ["a b"]]}
    written = report_json(document)
    assert json.loads(written) == document
    assert "[1.5, null, 3]" in written


def test_the_same_report_gives_the_same_page_whenever_it_was_made() -> None:
    report = grid(2, 2, 4)
    later = dataclasses.replace(report, provenance={**report.provenance, "created": "later"})
    assert report_html(report) == report_html(later)
    assert report_markdown(report) == report_markdown(later)


def test_names_of_places_stand_at_whole_numbers_wherever_the_points_are() -> None:
    points: list[tuple[float, float | None]] = [(-0.1, 1.0), (0.1, 2.0), (0.9, 1.0), (1.1, 3.0)]
    line = Line("a", points, 0)
    svg = chart([line], label="l", x_title="x", y_title="y", x_names=["L0", "L1"]).svg
    assert re.findall(r">(L\d)<", svg) == ["L0", "L1"]


def test_a_cloud_of_points_has_round_numbers_along_x() -> None:
    points: list[tuple[float, float | None]] = [(0.1 + 0.0173 * i, 1.0 + i) for i in range(30)]
    svg = chart([Line("a", points, 0)], label="l", x_title="x", y_title="y").svg
    assert re.findall(r'"middle">([\d.]+)<', svg) == ["0.2", "0.4", "0.6"]


@pytest.mark.parametrize("log", [False, True])
def test_charts_survive_any_values(log: bool) -> None:
    empty = chart([Line("a", [(0, None)], 0)], label="l", x_title="x", y_title="y", log=log)
    assert empty.svg == ""
    assert empty.legend == ((0, False, "a"),)
    flat = chart(
        [Line("<b>", [(0, 1.0)], 0)],
        label="<l>",
        x_title="x",
        y_title="y",
        log=log,
        y_limits=(1e-4, 1.0),
    ).svg
    assert "nan" not in flat
    assert "&lt;l&gt;" in flat
