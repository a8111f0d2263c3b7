"""Pages and Markdown of a report and of ``explain``, without a browser, whatever they hold."""

import dataclasses
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hostile import HOSTILE, hostile, hostile_sentence
from markdown_it import MarkdownIt
from rich.console import Console
from tiny_models import tiny_tokenizer
from transformers import BertConfig, BertModel

import headscope
from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.explain.view import VIEW
from headscope.reports.files import report_json
from headscope.reports.markdown import report_markdown
from headscope.reports.page import report_html
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.show.blocks import HeadMap, Matrix, Text
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.style import FigureStyle, styled
from headscope.show.terminal import matrix_cell, terminal
from headscope.show.view import KeyNumber, View


def grid(
    n_layers: int,
    n_heads: int,
    n: int,
    removed: tuple[Place, ...] = (),
    kind: type[ReportResult] = ReportResult,
) -> ReportResult:
    """A report that knows nothing but patterns."""
    row = tuple(round(1 / n, 2) for _ in range(n))
    places = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    names = [f"L{layer}H{head}" for layer, head in places if (layer, head) not in removed]
    sample = SamplePatterns("text", ("token",) * n, dict.fromkeys(names, (row,) * n))
    model = {"id": "m", "family": "bert", "n_layers": n_layers, "n_heads": n_heads}
    model |= {"weights_sha256": None, "removed_heads": [list(place) for place in removed]}
    made = {"headscope": "0", "torch": "0", "transformers": "0", "dtype": "float32", "seed": 0}
    made |= {"device": "cpu", "command": "c", "model": model, "created": "2026-01-01"}
    return kind(1, made, {}, {}, samples=(sample, sample))


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


@dataclass(frozen=True)
class NormResult:
    """A measurement that headscope does not have."""

    norms: dict[Place, float]


class LargerReport(ReportResult):
    """A report with one more section."""

    @property
    def sections(self) -> dict[str, Any]:
        return {**super().sections, "norm": NormResult({(0, 0): 1.25, (1, 1): 3.5})}


def facts(result: NormResult, places: Sequence[Place]) -> Iterator[Card]:
    for place, norm in result.norms.items():
        yield Card(*place, facts=[("Norm", f"{norm:.2f}")], values={"norm": norm})


def test_a_new_section_appears_on_the_page_and_in_the_markdown(monkeypatch):
    """What it puts there comes through its view alone, and a view may leave the report alone."""
    least = {"human": lambda result: (), "csv": lambda result: "", "files": lambda result: {}}
    module = ModuleType("headscope.analyses.norm.view")
    module.VIEW = View(  # type: ignore[attr-defined]
        **least,
        facts=facts,
        scales=(Scale("norm", "Norm of W_O"),),
        title="Norms",
        blocks=lambda result: [Text("Every norm is finite.")],
        key_numbers=lambda result: [KeyNumber("largest norm", f"{max(result.norms.values())}")],
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    report = grid(2, 2, 4, kind=LargerReport)
    page = report_html(report)
    for shown in ('data-head="L1H1"', "Norm of W_O", "Every norm is finite.", "largest norm"):
        assert shown in page
    assert '"captions":["Norm"]' in page
    assert '"facts":[[0,"1.25"]]' in page
    assert "| largest norm | 3.5 | - |" in report_markdown(report)
    view: View[NormResult] = View(**least)
    result = NormResult({})
    assert list(view.facts(result, [])) == list(view.key_numbers(result)) == list(view.scales) == []


@pytest.fixture(scope="module")
def explained() -> ExplainResult:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 180}
    config = BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = headscope.wrap(BertModel(config).eval(), tiny_tokenizer())
    return headscope.explain(model, "the cat sat on the mat and she ran", validate=False)


def text_of(*shown: object) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*shown, sep="\n")
    return console.export_text()


def test_hostile_tokens_are_inert_on_the_page(explained):
    made = {**explained.provenance, "model": {**explained.provenance["model"], "id": HOSTILE[0]}}
    files = VIEW.files(hostile_sentence(explained, made))
    page = files["explain.html"].decode()
    assert HOSTILE[0] not in page
    assert not re.search(r"<[^>]*onerror=", page)
    assert page.count("<script") == 2  # the data, and the page's own
    assert not re.search(r"<(img|svg onload)", page)
    assert "\u202e" not in page
    data = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    with styled(FigureStyle(), verbose=True):
        shown = text_of(*VIEW.human(hostile_sentence(explained, made)))
    assert "2 x 8 wide" in shown
    assert "\u202e" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_square_says_how_much_of_it_is_shown():
    names = [f"t{i}" for i in range(20)]
    rows = tuple(tuple(1.0 if i == j else 0.0 for j in range(20)) for i in range(20))
    text = text_of(*terminal([Matrix("pattern", rows, names, names, (20, 20), weights=True)]))
    assert "queries down, keys across, first 14 of 20 tokens" in text
    expected = [[f"t{i}", *"." * i, "1.00", *"." * (13 - i)] for i in range(14)]
    assert [line.split() for line in text.splitlines()[2:]] == expected
    given = (None, 0.0, 0.0049, 0.005, 0.123, 0.994, 0.996, 1.0)
    assert [matrix_cell(v, True) for v in given] == [
        ".",
        ".",
        ".",
        ".01",
        ".12",
        ".99",
        "1.00",
        "1.00",
    ]
    wide = Matrix("x", rows[:3], ("a", "b", "c"), shape=(3, 20))
    assert "x (3 x 20), first 8 of 20 columns" in text_of(*terminal([wide]))
    unknown = HeadMap("asymmetry", "exact", {("L0", 0): None}, 2)
    assert "asymmetry: exact" in text_of(*terminal([unknown]))
