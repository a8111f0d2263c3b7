"""Pages and Markdown of a report and of ``explain``, without a browser, whatever they hold."""

import dataclasses
import io
import itertools
import json
import re

from hostile import HOSTILE, hostile, hostile_sentence
from markdown_it import MarkdownIt
from rich.console import Console

from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.explain.view import VIEW
from headscope.core.serialise import from_dict
from headscope.reports.files import report_json
from headscope.reports.markdown import report_markdown
from headscope.reports.page import report_html
from headscope.reports.page_heads import clearest
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.show.blocks import HeadMap, Matrix
from headscope.show.page.parts import Card, Place
from headscope.show.style import showing
from headscope.show.terminal import matrix_cell, terminal


def grid(n_layers: int, n_heads: int, n: int, removed: tuple[Place, ...] = ()) -> ReportResult:
    """A report that knows nothing but patterns."""
    row = tuple(round(1 / n, 2) for _ in range(n))
    heads = list(itertools.product(range(n_layers), range(n_heads)))
    names = [f"L{layer}H{head}" for layer, head in heads if (layer, head) not in removed]
    sample = SamplePatterns("text", ("token",) * n, dict.fromkeys(names, (row,) * n))
    model = {"id": "m", "family": "bert", "n_layers": n_layers, "n_heads": n_heads}
    model |= {"weights_sha256": None, "removed_heads": [list(head) for head in removed]}
    provenance = {
        "headscope": "0",
        "torch": "0",
        "transformers": "0",
        "dtype": "float32",
        "seed": 0,
        "device": "cpu",
        "command": "c",
        "model": model,
        "created": "2026-01-01",
    }
    return ReportResult(1, provenance, {}, {}, samples=(sample, sample))


def test_page_asks_for_nothing_and_escapes_its_data():
    page = report_html(hostile(grid(2, 2, 12)))
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    assert data[1].isascii()
    assert HOSTILE[2] in json.loads(data[1])["samples"][0]["tokens"]
    assert page.count("<script") == 2


def test_pages_of_many_heads_of_gaps_and_made_later():
    assert len(report_html(grid(12, 12, 16)).encode()) < 1_000_000
    page = report_html(grid(2, 3, 4, removed=((0, 1), (1, 0), (1, 1), (1, 2))))
    assert page.count('class="cell gone"') == 4
    assert 'data-head="L0H2"' in page
    assert 'data-head="L0H1"' not in page
    assert "4 removed" in page
    report = grid(2, 2, 4)
    later = dataclasses.replace(report, provenance={**report.provenance, "created": "later"})
    assert report_html(report) == report_html(later)
    assert report_markdown(report) == report_markdown(later)


def test_the_page_selects_the_head_whose_role_has_priority():
    """In the order of the roles themselves, a role without a head passed over."""
    broad = Card(0, 0, primary="broad")
    without_role = Card(0, 1, primary="none")
    syntactic = Card(1, 0, primary="syntactic")
    positional = Card(1, 1, primary="positional")
    assert clearest([without_role, broad, syntactic, positional]) == positional.name
    assert clearest([without_role, broad, syntactic]) == syntactic.name
    assert clearest([without_role, broad]) == broad.name
    assert clearest([without_role]) == without_role.name
    assert clearest([]) == ""


def test_markdown_of_hostile_strings_renders_as_text():
    text = report_markdown(hostile(grid(1, 1, 2)))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r"<(?:img|script|a|svg)\b", html)
    assert "@octocat" not in text
    for table in text.split("\n\n"):
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.replace(r"\|", "").count("|") for line in rows}) <= 1


def test_json_keeps_strings_that_look_like_lists():
    document = {"text": "[\\n 1,\\n 2\\n]", "numbers": [1.5, None, 3], "nested": [[1], ["a b"]]}
    written = report_json(document)
    assert json.loads(written) == document
    assert "[1.5, null, 3]" in written


def text_of(*shown: object) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*shown, sep="\n")
    return console.export_text()


def test_hostile_tokens_are_inert_on_the_page_of_a_sentence(documents, monkeypatch):
    monkeypatch.setattr("headscope.show.figures.figure_files", lambda drawn: {})
    explained = from_dict(ExplainResult, documents["explain"])
    model = {**explained.provenance["model"], "id": HOSTILE[0]}
    hostile_result = hostile_sentence(explained, {**explained.provenance, "model": model})
    page = VIEW.files(hostile_result)["explain.html"].decode()
    assert HOSTILE[0] not in page
    assert not re.search(r"<[^>]*onerror=|<(img|svg onload)", page)
    assert page.count("<script") == 2  # the data, and the page's own
    assert "\u202e" not in page
    data = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    with showing(["png"], verbose=True):
        shown = text_of(*VIEW.human(hostile_result))
    assert "4 x 8 wide" in shown
    assert "\u202e" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_square_says_how_much_of_it_is_shown():
    names = [f"t{i}" for i in range(20)]
    rows = tuple(tuple(1.0 if i == j else 0.0 for j in range(20)) for i in range(20))
    text = text_of(*terminal([Matrix("pattern", rows, names, names, (20, 20), weights=True)]))
    assert "queries down, keys across, first 14 of 20 tokens" in text
    expected = [[f"t{i}", *"." * i, "1.00", *"." * (13 - i)] for i in range(14)]
    assert [line.split() for line in text.splitlines()[2:]] == expected
    wide = Matrix("x", rows[:3], ("a", "b", "c"), shape=(3, 20))
    assert "x (3 x 20), first 8 of 20 columns" in text_of(*terminal([wide]))


def test_a_weight_has_two_digits_and_a_tiny_one_is_a_dot():
    weights = (None, 0.0, 0.0049, 0.005, 0.123, 0.994, 0.996, 1.0)
    cells = " ".join(matrix_cell(weight, True) for weight in weights)
    assert cells == ". . . .01 .12 .99 1.00 1.00"


def test_a_map_without_a_number_has_its_title():
    unknown = HeadMap("asymmetry", "exact", {("L0", 0): None}, 2)
    assert "asymmetry: exact" in text_of(*terminal([unknown]))
