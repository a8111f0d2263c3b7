"""The report's page in a real browser."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hostile import HOSTILE

from headscope.core.serialise import to_dict
from headscope.reports.compare import side_by_side
from headscope.reports.compare_page import compare_html
from headscope.reports.page import report_html
from headscope.reports.reading import Results
from headscope.reports.result import Insight, InsightsResult

Open = Callable[..., Any]


@pytest.fixture
def show(browser):
    """Open a file; the test fails at any console message, error, dialog or request."""
    seen = []
    contexts = []

    def call(path, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        url = path.as_uri()
        page.on("console", lambda message: seen.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: None if request.url == url else seen.append(request.url))
        page.goto(url)
        return page

    yield call
    for context in contexts:
        context.close()
    assert seen == []


def test_a_head_is_selected_everywhere_by_click_name_address_and_keyboard(show, page_file):
    page = show(page_file, viewport={"width": 1280, "height": 800})
    page.click("button.cell[data-head=L0H2]")
    panel = page.locator("#panel")
    text = panel.inner_text()
    for phrase in ("L0H2", "positional", "look most at the token before", "a random choice"):
        assert phrase in text
    assert panel.locator("svg.heat rect").count() > 10
    assert panel.locator("dl.three > div").count() == 3
    panel.locator("details.more summary").click()
    text = panel.inner_text()
    for phrase in ("previous token", "baseline", "this head", "Pruning rank"):
        assert phrase in text
    assert page.evaluate("location.hash") == "#L0H2"
    assert page.get_attribute("button.cell[data-head=L0H2]", "aria-current") == "true"
    assert page.inner_text("h2 .who") == "L0H2"
    assert page.get_attribute("circle.chosen", "data-head") == "L0H2"
    page.click("circle[data-head=L5H11]")
    assert panel.locator("h3").inner_text() == "L5H11"
    page.fill("#jump", "l1h8")
    page.press("#jump", "Enter")
    assert panel.locator("h3").inner_text() == "L1H8"
    page.fill("#jump", "L9H9")
    page.press("#jump", "Enter")
    assert page.get_attribute("#jump", "aria-invalid") == "true"
    page.goto(page_file.as_uri() + "#L3H4")
    assert panel.locator("h3").inner_text() == "L3H4"
    page.focus("button.cell[data-head=L0H2]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "L1H3"
    assert page.inner_text("#panel h3") == "L1H3"
    page.focus("#panel button[aria-label='Next head']")
    page.keyboard.press("Enter")
    assert page.inner_text("#panel h3") == "L1H4"


def test_bars_of_claims_have_one_scale(show, small, tmp_path):
    """Where a bar ends tells its number, whatever the claim; what is not measured has one name."""
    rows = [
        (0, "holds", {"median": 1.3, "gaussian": 1.4}),
        (5, "mixed", {"mean_share": 0.5, "random_weights": 0.9, "k": 32, "length": 128}),
        (6, "mixed", {"spearman": -0.25, "random_spearman": -0.3}),
        (7, "not measured", {}),
        (8, "not measured yet", {}),
    ]
    claims = tuple(Insight(n, "A claim.", verdict, "", "", "", held) for n, verdict, held in rows)
    insights = InsightsResult(small.schema, small.provenance, small.classify.validation, claims, {})
    path = tmp_path / "bars.html"
    path.write_text(report_html(dataclasses.replace(small, insights=insights)), encoding="utf-8")
    page = show(path, viewport={"width": 1280, "height": 800})
    assert page.locator(".verdict").all_inner_texts()[3:] == ["not measured"] * 2
    drawn = page.evaluate(
        """[...document.querySelectorAll(".number svg")].map(svg => {
          const x = (name) => svg.querySelector(name).getBoundingClientRect();
          const zero = x(".zero").left, bar = x(".bar");
          return [zero, bar.left < zero - 1 ? bar.left - zero : bar.right - zero];
        })"""
    )
    assert len(drawn) == 3
    assert max(zero for zero, _ in drawn) - min(zero for zero, _ in drawn) < 1
    units = [
        right_edge / value for (_, right_edge), value in zip(drawn, (1.3, 0.5, -0.25), strict=True)
    ]
    assert max(units) / min(units) < 1.05
    ticks = page.locator(".axis text").all_text_contents()
    assert ticks == ["\u22120.5", "0", "1", "1.5"]


_TYPE = """() => {
  for (const box of document.querySelectorAll("details")) box.open = true;
  let least = 99, count = 0;
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.getClientRects().length || !text.textContent) continue;
    const svg = text.ownerSVGElement, box = svg.viewBox.baseVal;
    const scale = box && box.width ? svg.getBoundingClientRect().width / box.width : 1;
    least = Math.min(least, parseFloat(getComputedStyle(text).fontSize) * scale);
    count++;
  }
  for (const node of document.querySelectorAll("body *")) {
    const own = Array.from(node.childNodes).some((c) => c.nodeType === 3 && c.data.trim());
    if (own && node.getClientRects().length && !(node instanceof SVGElement))
      least = Math.min(least, parseFloat(getComputedStyle(node).fontSize));
  }
  return [least, count];
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_screen(show, page_file, width):
    """The map is drawn on the first screen; type can be read; every figure shows something."""
    height = 844 if width < 900 else 800
    page = show(page_file, viewport={"width": width, "height": height})
    tops = page.evaluate(
        "[...document.querySelectorAll('.map canvas')].map(c => c.getBoundingClientRect().bottom)"
    )
    assert len(tops) == 72
    assert min(tops) < height
    inks = page.evaluate(
        """[...document.querySelectorAll('.map canvas')].map(c => {
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          return new Set([...d].filter((_, i) => i % 4 === 0)).size; })"""
    )
    assert min(inks) > 3  # none is blank
    sheet = page.evaluate("getComputedStyle(document.querySelector('#panel')).position")
    assert (sheet == "fixed") == (width < 900)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(_TYPE)  # opens what is folded up
    page.wait_for_timeout(100)
    least, count = page.evaluate(_TYPE)
    assert count > 50
    assert least >= 10.99
    figures = "[...document.querySelectorAll('figure.chart {}')]"
    marks = page.evaluate(figures.format("svg[role] > .marks") + ".map(g => g.children.length)")
    assert len(marks) > 5
    assert min(marks) > 0
    widths = page.evaluate(figures.format("svg") + ".map(svg => svg.getBoundingClientRect().right)")
    assert max(widths) <= width


def test_colours_filter_and_table(show, page_file, small):
    """Numbers of both signs have two colours and a legend; roles filter, columns sort."""
    page = show(page_file, viewport={"width": 1280, "height": 800})
    page.select_option("#colours", "removed")
    below = sum(head.removed.value < 0 for head in small.attribute.heads)
    assert page.locator("button.cell.less").count() == below > 0
    low, zero, high = page.locator("#scale b").all_inner_texts()
    assert zero == "0"
    assert low == "\u2212" + high
    assert "Effect of removing it" in page.inner_text("#scale")
    for text in page.locator("button.cell .mark").all_inner_texts():
        digits = text.lstrip("\u2212").partition("e")[0].replace(".", "").lstrip("0")
        assert len(digits) <= 2
    cut = (
        "[...document.querySelectorAll('.cell')].filter(c => c.scrollWidth > c.clientWidth).length"
    )
    assert page.evaluate(cut) == 0  # every number fits into its cell
    page.select_option("#colours", "share")
    assert float(page.inner_text("button.cell[data-head=L0H2]")) < 0.5
    assert page.locator("button.cell.less").count() == 0
    page.select_option("#colours", "role")
    assert page.locator("#scale").is_hidden()
    assert page.inner_text("button.cell[data-head=L0H2]") == "-1"

    positional = sum("positional" in head.roles for head in small.classify.heads)
    assert 0 < positional < 36
    page.click("summary#table")
    page.click(".chip[data-role=positional]")
    assert page.inner_text("#count") == f"{positional} of 72 heads"
    assert page.locator("button.cell:not(.out)").count() == positional
    assert page.locator("#heads-table tbody tr:visible").count() == positional
    page.click(".chip[data-role=positional]")
    assert page.locator("button.cell.out").count() == 0

    page.click("#heads-table th:nth-child(3) button")
    rows = "[...document.querySelectorAll('#heads-table tbody tr td:nth-child(3)')]"
    numbers = page.evaluate(f"{rows}.map(cell => +cell.dataset.value)")
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 10
    assert page.get_attribute("#heads-table th:nth-child(3)", "aria-sort") == "descending"
    page.click("#heads-table th:nth-child(3) button")
    assert page.evaluate(f"{rows}.map(cell => +cell.dataset.value)") == sorted(numbers)


def test_everything_has_a_name_and_print_leaves_out_what_needs_a_pointer(show, page_file):
    page = show(page_file, viewport={"width": 1000, "height": 800})
    levels = page.evaluate(
        "Array.from(document.querySelectorAll('body h1, main h2, main h3'), h => +h.tagName[1])"
    )
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    nameless = page.evaluate(
        """Array.from(document.querySelectorAll('svg:not([aria-hidden]), button, select'))
        .filter(n => !(n.getAttribute('aria-label') || n.textContent.trim())).length"""
    )
    assert nameless == 0
    assert page.locator("#settings + p + .more[open]").count() == 0  # settings are folded up
    page.emulate_media(media="print")
    for name in ("#jump", "#theme", "#colours", "#whole-screen", "#special", "#reading", "nav"):
        assert page.locator(name).is_hidden(), name
    assert page.locator(".pointer:visible, button:visible:not(.cell, .chip)").count() == 0
    assert page.locator("details:not([open]):not(.claim):visible").count() == 0
    assert page.locator(".map canvas").first.is_visible()


def test_a_removed_head_looks_empty_and_the_legend_says_so(show, small, tmp_path):
    model = small.provenance["model"] | {"removed_heads": [[0, 12]]}
    path = tmp_path / "removed.html"
    report = dataclasses.replace(small, provenance=small.provenance | {"model": model})
    path.write_text(report_html(report), encoding="utf-8")
    page = show(path, viewport={"width": 1280, "height": 800})
    assert page.locator(".cell.gone").count() > 0
    assert "dashed, empty: removed from the model." in page.inner_text(".legend")
    assert "switched off" not in page.inner_text(".legend")


def test_the_plane_is_one_stop_and_a_click_beside_a_dot_means_it(show, page_file):
    page = show(page_file, viewport={"width": 1280, "height": 800})
    assert page.locator("#plane-chart [tabindex='0']").count() == 1
    page.focus("#plane-chart [tabindex='0']")
    before = page.inner_text("#panel h3")
    page.keyboard.press("ArrowLeft")
    after = page.inner_text("#panel h3")
    assert after != before
    assert page.evaluate("document.activeElement.dataset.head") == after
    box = page.locator("circle[data-head=L5H11]").bounding_box()
    page.mouse.click(box["x"] + box["width"] + 2, box["y"] + box["height"] / 2)
    assert page.inner_text("#panel h3") != after


def test_nothing_is_wider_than_the_smallest_screen(show, page_file):
    page = show(page_file, viewport={"width": 320, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.click("button.cell[data-head=L1H8]")
    assert page.evaluate("document.querySelector('#panel').getBoundingClientRect().width") <= 320
    page.click("#panel .sheet")
    assert page.get_attribute("#panel .sheet", "aria-expanded") == "true"
    assert page.locator("#panel dl.three").is_visible()


_CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = {};
  const rgb = (colour) => {
    if (known[colour]) return known[colour];
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return (known[colour] = Array.from(context.getImageData(0, 0, 1, 1).data));
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const grounds = new Map();
  const ground = (node) => {
    if (!node) return [255, 255, 255, 255];
    if (!grounds.has(node)) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      grounds.set(node, colour[3] === 255 ? colour : ground(node.parentElement));
    }
    return grounds.get(node);
  };
  const worst = {};
  for (const node of document.querySelectorAll("body *")) {
    const own = Array.from(node.childNodes).some((c) => c.nodeType === 3 && c.data.trim());
    if (!own || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const ink = node instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(rgb(ink)), light(ground(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    const name = node.tagName + "." + (node.getAttribute("class") || "");
    worst[name] = Math.min(worst[name] ?? 99, contrast);
  }
  return worst;
}"""


def too_faint(page):
    """The kinds of text whose contrast to what is behind them is below WCAG's 4.5."""
    contrasts = page.evaluate(_CONTRASTS)
    assert len(contrasts) > 10
    return {name: value for name, value in contrasts.items() if value < 4.5}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_in_light_and_dark(show, page_file, scheme):
    """By role in the scheme that the browser asks for, by a number in the other."""
    page = show(page_file, color_scheme=scheme, reduced_motion="reduce")
    assert too_faint(page) == {}
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.select_option("#colours", "share")
    page.click("#theme")
    assert too_faint(page) == {}
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_hostile_strings_are_inert(show, hostile_file):
    page = show(hostile_file)
    for name in ("L0H2", "L1H8"):
        page.click(f"button.cell[data-head={name}]")
        page.wait_for_timeout(50)
        assert page.locator("#panel svg.heat").count() == 1
    page.hover("#links text[tabindex] >> nth=2")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, [onerror], [onload], [onmouseover]").count() == 0
    assert page.locator("script:not([type='application/json'])").count() == 1
    assert page.inner_text("h1").startswith(HOSTILE[0])  # no path, so it is shown whole
    assert HOSTILE[0] in page.inner_text("body")
    assert "49" not in page.inner_text("h1")


def test_no_script_but_its_own_can_run(browser, page_file, tmp_path):
    text = page_file.read_text(encoding="utf-8")
    added = "<script>window.hacked = 1</script></body>"
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("</body>", added), encoding="utf-8")
    page = browser.new_page()
    page.goto(changed.as_uri())
    assert page.evaluate("window.hacked") is None
    assert page.locator("button.cell").count() == 72
    page.close()


def test_the_lines_of_a_sentence_follow_the_selected_head(show, page_file):
    page = show(page_file, viewport={"width": 1280, "height": 800})
    lines = page.locator("#links line")
    page.click("button.cell[data-head=L0H2]")
    weights = page.evaluate(
        """[...document.querySelectorAll('#links line')]
        .map(line => +line.getAttribute('stroke-opacity'))"""
    )
    assert max(weights) > 0.9  # the head of the previous token
    n_lines = lines.count()
    page.click("#special")
    assert 0 < lines.count() < n_lines
    page.hover("#links text[tabindex] >> nth=3")
    visible = page.evaluate(
        """[...document.querySelectorAll('#links line:not(.out)')]
        .map(line => line.dataset.query)"""
    )
    assert set(visible) == {"3"}
    tokens = page.locator("#links text[tabindex]").all_text_contents()
    assert f"{tokens[3]} attends to {tokens[2]}" in page.inner_text("#reading")
    before = page.locator("#links").text_content()
    page.check("#samples input[value='1']")
    assert page.locator("#links").text_content() != before


def test_a_sentence_runs_across_where_it_fits_and_downwards_where_not(show, page_file):
    for width, runs_down in ((390, True), (1920, False)):
        page = show(page_file, viewport={"width": width, "height": 900})
        assert (page.locator("#links svg.down").count() == 1) == runs_down
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        inside = page.evaluate(
            """[...document.querySelectorAll('#links text')].every(word => {
              const box = word.getBBox(), all = word.ownerSVGElement.viewBox.baseVal;
              return box.x >= 0 && box.x + box.width <= all.width;
            })"""
        )
        assert inside  # no word is cut
        assert page.locator("#links text[tabindex='0']").count() == 1  # one tab stop
        page.focus("#links text[tabindex='0']")
        page.keyboard.press("ArrowDown" if runs_down else "ArrowRight")
        word = "document.activeElement.dataset"
        assert page.evaluate(f"[{word}.side, {word}.word]") == ["0", "1"]
        page.keyboard.press("ArrowRight" if runs_down else "ArrowDown")
        assert page.evaluate(f"[{word}.side, {word}.word]") == ["1", "1"]
        assert " is attended to by " in page.inner_text("#reading")


def test_special_tokens_are_off_where_one_takes_most_until_a_reader_wants_them(show, page_file):
    page = show(page_file, viewport={"width": 1280, "height": 800})
    share = """(name) => {
      const data = JSON.parse(document.getElementById("data").textContent).samples[0];
      const n = data.tokens.length, words = data.special.flatMap((is, i) => is ? [] : [i]);
      const of = (j) => words.reduce((sum, i) => sum + data.patterns[name][i * n + j], 0);
      return Math.max(...data.special.map((is, j) => is ? of(j) / words.length : 0));
    }"""
    names = page.locator("button.cell").evaluate_all(
        "cells => cells.map(cell => cell.dataset.head)"
    )
    shares = {name: page.evaluate(share, name) for name in names}
    sink = max(shares, key=shares.get)
    assert shares[sink] > 50 > shares["L0H2"]
    page.click(f"button.cell[data-head={sink}]")
    assert not page.is_checked("#special")
    assert f"takes {round(shares[sink])}% of the words" in page.inner_text("#reading")
    page.click("button.cell[data-head=L0H2]")
    assert page.is_checked("#special")
    page.click(f"button.cell[data-head={sink}]")
    page.check("#special")
    page.click("button.cell[data-head=L0H2]")
    page.click(f"button.cell[data-head={sink}]")
    assert page.is_checked("#special")


def test_words_stand_where_they_are_asked_for(show, page_file):
    """A chip says what its heads do, a section asks a question, brackets say what they are."""
    page = show(page_file, viewport={"width": 1280, "height": 800})
    titles = page.locator(".chip").evaluate_all("chips => chips.map(chip => chip.title)")
    assert all(titles)
    questions = page.locator(".part h2").all_inner_texts()
    assert all("?" in question for question in questions)
    head = page.inner_text("h2.headline")
    assert re.match(r"\d+ of 72 heads removed by magnitude.*: cosine 0\.\d+", head)
    assert "random heads 0." in head
    assert page.inner_text(".proof") == "\u2713 same numbers as the model"
    for riddle in ("dims90", "UAS", "W_Q W_K", "recovered from z", "+-"):
        assert riddle not in page.inner_text("body")


def test_a_printed_page_keeps_its_colours_explained_and_its_charts_legible(show, page_file):
    page = show(page_file, viewport={"width": 1280, "height": 800})
    page.emulate_media(media="print")
    assert page.locator(".chip:visible").count() == page.locator(".chip").count()
    assert page.locator("#colours:visible, .bar nav:visible, #jump:visible").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.locator(".parts .chart .panels svg").evaluate_all(
        "all => all.map(svg => Number(svg.getAttribute('width')))"
    )
    assert widths
    assert max(widths) <= 330  # a column of paper, so that type keeps its size


def test_the_page_of_one_sentence_stands_alone(show, small, tmp_path):
    from headscope.analyses.explain.view import VIEW

    assert small.explain is not None
    path = tmp_path / "explain.html"
    path.write_bytes(VIEW.files(small.explain)["explain.html"])
    page = show(path, viewport={"width": 390, "height": 800})
    assert page.locator("details.step[open]").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    head_text = page.inner_text(".chosen-head")
    page.select_option("#arrows-head", "L0H0")
    text = page.inner_text(".chosen-head")
    assert text.startswith("L0H0: mean entropy")
    assert text != head_text
    assert "--head L0H0" in text  # the steps of another head are asked for
    assert page.locator("details.step.other").count() == 12
    page.select_option("#arrows-head", small.explain.name)
    assert page.locator("details.step.other").count() == 0
    assert too_faint(page) == {}


def test_two_models_stand_side_by_side(show, small, tmp_path):
    """A head that is chosen in one map is shown in the other; what differs is said first."""
    heads = small.classify.heads
    other = dataclasses.replace(
        small.classify,
        heads=tuple(
            dataclasses.replace(h, primary="none", roles=(), labels=()) if h.layer == 0 else h
            for h in heads
        ),
    )
    reports = []
    for name, classified in (("one", small.classify), (HOSTILE[0], other)):
        raw = {"classify": to_dict(classified)}
        reports.append(Results(name, raw, classify=classified))
    path = tmp_path / "compare.html"
    path.write_text(compare_html(side_by_side(reports)), encoding="utf-8")
    page = show(path, viewport={"width": 1280, "height": 800})
    changed = sum(head.layer == 0 and head.primary != "none" for head in heads)
    assert page.inner_text("h2.headline").startswith(f"{len(heads) - changed} of {len(heads)}")
    assert page.locator("button.cell canvas").count() == 2 * len(heads)
    page.click("button.cell[data-model='0'][data-head=L0H2]")
    texts = page.locator("[data-told]").all_inner_texts()
    assert "look most at the token before" in texts[0]
    assert texts[1].startswith("L0H2: Earned no role")
    assert page.locator("[aria-current=true]").count() == 2
    assert page.locator("button.cell.differs").count() == 2 * changed
    rows = page.locator("table.side tbody tr td").count()
    page.check("#changed-only")
    assert page.locator("button.cell:not(.out)").count() == 2 * changed
    assert 0 < page.locator("table.side tbody tr td:visible").count() < rows
    page.uncheck("#changed-only")
    page.focus("button.cell[data-model='0'][data-head=L0H2]")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "L1H2"
    assert too_faint(page) == {}
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
