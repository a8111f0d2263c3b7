"""``headscope serve``: the command in a process of its own, asked by a real browser."""

import os
import re
import signal
from contextlib import contextmanager

import pytest
from processes import Run
from tiny_models import tiny_bert, write_tiny, write_translator

import headscope
from headscope.core.serialise import to_json

pytest.importorskip("headscope.live.server", reason="needs the extra serve")
api = pytest.importorskip("playwright.sync_api")
api.expect.set_options(timeout=60_000)
expect = api.expect
HOSTILE = "<img src=x onerror=alert(1)> & \u202e \U0001f600"


@contextmanager
def serving(*arguments):
    """Start the command; yields its address, and stops it by Ctrl-C."""
    reading, writing = os.pipe()
    process = Run("serve", *arguments, "--no-browser", "--quiet", stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as said:
        address = said.readline().strip()
        serving.pids.append(process.pid)
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", address)
        yield address
        os.kill(process.pid, signal.SIGINT)
        ended = process.end()
    assert (ended.code, ended.stderr) == (130, "headscope: interrupted\n")


serving.pids = []


@pytest.fixture(scope="module")
def served(browser, demo, tmp_path_factory):
    """The demo model, with roles from a file."""
    roles = tmp_path_factory.mktemp("roles") / "classify.json"
    roles.write_text(to_json(headscope.classify(demo, limit=40)), encoding="utf-8")
    with serving("demo", "--roles", roles) as address:
        yield address


@pytest.fixture
def show(browser, served):
    """Open the page; the test fails at any console message, error, dialog or foreign request."""
    seen = []
    contexts = []

    def call(more="", address=served, **options):
        start = address.partition("?")[0]
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on(
            "console", lambda m: None if " 503 " in m.text else seen.append(f"console: {m.text}")
        )
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        page.on(
            "request", lambda r: None if r.url.startswith((start, "data:")) else seen.append(r.url)
        )
        page.goto(address + more)
        answered(page)
        return page

    yield call
    for context in contexts:
        context.close()
    assert seen == []


def answered(page):
    """Wait until what is shown belongs to what is typed."""
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")


def column(page, header):
    """Wait for the column with this header; returns its first number."""
    page.locator("#answers th", has_text=re.compile(f"^{header}$")).wait_for(state="attached")
    answered(page)
    names = page.locator("#answers th").all_text_contents()
    cells = page.locator("#answers tbody tr").first.locator("td").all_text_contents()
    return float(cells[names.index(header)].replace("\u2212", "-"))


def test_two_typed_sentences_their_similarity_their_pictures_and_their_words(show):
    page = show()
    page.fill("#text-a", "A cat sat on the mat.")
    page.fill("#text-b", "On the mat there was a cat.")
    expect(page.locator("#links")).to_contain_text("mat")
    expect(page.locator("#samples input")).to_have_count(2)
    expect(page.locator("#answers")).to_contain_text("similarity of the two sentences")
    expect(page.locator("#answers td.n").first).to_have_text(re.compile(r"^0\.[89]\d+$"))
    assert column(page, "whole model") > 0.8
    page.fill("#text-b", "Interest rates rose again in March.")
    expect(page.locator("#answers td.n").first).to_have_text(re.compile(r"^.?0\.[0-3]\d+$"))
    page.select_option("#thumbs", "sentence")
    n = page.locator("#links svg text").count() // 2
    assert page.evaluate("document.querySelector('button.cell canvas').width") == n
    page.locator("#links svg text").nth(2).hover()
    assert " attends to " in page.inner_text("#reading")
    page.locator("#links svg text").nth(n + 2).focus()
    assert " is attended to by " in page.inner_text("#reading")
    assert page.locator("#panel .alike button").count() == 3


def test_heads_are_switched_off_by_panel_key_layer_and_role_and_the_state_is_in_the_address(show):
    page = show()
    page.click("button.cell[data-head=L3H2]")
    page.click("#panel >> text=Switch off")
    assert column(page, "1 head off") <= 1
    page.focus("button.cell[data-head=L3H2]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    column(page, "2 heads off")
    page.click("button.layer[data-heads=L4H]")
    off = column(page, "14 heads off")
    address = page.evaluate("location.hash")
    assert page.locator("button.cell.off").count() == 14
    again = show(address)
    assert column(again, "14 heads off") == off
    assert again.inner_text("#panel h3") == "L3H3"
    page.click("#all-on")
    expect(page.locator("#said")).to_contain_text("Click a layer")
    assert page.locator("button.cell.off").count() == 0
    page.click(".chip[data-role=positional]")
    page.click("#shown-off")
    assert page.locator("button.cell.off").count() == page.locator("button.cell.positional").count()


def test_a_pinned_state_stands_beside_the_current_one_and_fits_a_narrow_screen(show):
    page = show(viewport={"width": 390, "height": 900})
    before = column(page, "whole model")
    page.click("#pin")
    page.click("button.layer[data-heads=L0H]")
    column(page, "12 heads off")
    assert column(page, "pinned: all heads on") == before
    assert page.locator("#panel svg.heat").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#numbers summary")
    pinned = page.locator("#numbers td[data-label^=pinned]").first
    assert pinned.bounding_box()["x"] + pinned.bounding_box()["width"] <= 390
    label = page.evaluate(
        "(td) => getComputedStyle(td, '::before').content", pinned.element_handle()
    )
    assert "pinned: all heads on" in label
    page.click("#pin")
    assert "pinned" not in page.inner_text("#answers")


def test_what_is_wrong_is_said_and_hostile_text_stays_text(show):
    page = show()
    page.fill("#text-b", "")
    page.fill("#text-a", "")
    expect(page.locator("#progress")).to_contain_text("Type a text")
    expect(page.locator("#trouble")).to_be_hidden()
    page.fill("#text-a", "word " * 2000)
    expect(page.locator("#trouble")).to_contain_text("The text has 2,002 tokens; 64 fit")
    page.fill("#text-a", "word " * 20_000)
    expect(page.locator("#trouble")).to_contain_text("64 tokens fit")
    page.fill("#text-a", HOSTILE)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("#links")).to_contain_text("alert")
    assert page.locator("img").count() == 0


def test_what_is_shown_is_marked_until_it_belongs_to_what_is_typed(show):
    page = show()
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
    held = []
    page.route("**/answer", lambda route: held.append(route))
    page.fill("#text-a", "Rain fell.")
    while not held:
        page.wait_for_timeout(20)
    page.fill("#text-a", "Snow fell.")  # the first question is still open
    held.pop().continue_()
    expect(page.locator("#links")).to_contain_text("rain")  # an answer, but to the older text
    for selector in ("#answers", ".desk"):
        expect(page.locator(selector)).to_have_attribute("aria-busy", "true")
        expect(page.locator(selector)).to_have_class(re.compile("stale"))
    while not held:
        page.wait_for_timeout(20)
    held.pop().continue_()
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#links")).to_contain_text("snow")
    assert page.locator(".stale").count() == 0
    page.unroute("**/answer")
    page.fill("#text-a", "word " * 100)
    expect(page.locator("#trouble")).to_contain_text("102 tokens; 64 fit")
    expect(page.locator("#answers")).to_have_class(re.compile("stale"))
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")


def test_a_full_server_is_asked_again(show):
    page = show()
    refused = []

    def refuse_once(route):
        if refused:
            return route.continue_()
        refused.append(route)
        return route.fulfill(status=503, json={"error": "Too many requests wait already."})

    page.route("**/answer", refuse_once)
    page.fill("#text-a", "Hail fell.")
    expect(page.locator("#links")).to_contain_text("hail")
    expect(page.locator("#trouble")).to_be_hidden()
    assert len(refused) == 1


@pytest.fixture(scope="module")
def translator(browser, tmp_path_factory):
    """A tiny Marian, whose encoder the command classifies itself."""
    with serving(write_translator(tmp_path_factory.mktemp("translator") / "model")) as address:
        yield address


def test_heads_of_decoder_and_cross_attention_are_on_the_page_and_can_be_switched_off(
    show, translator
):
    page = show(address=translator)
    page.fill("#text-b", "")
    page.fill("#text-a", "the cat sat on the mat")
    expect(page.locator("#links")).to_contain_text("mat")
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
    expect(page.locator("table.map caption")).to_have_text(
        ["Encoder", "Decoder", "Cross-attention"]
    )
    assert page.locator("button.cell").count() == 24
    page.click("button.cell[data-head='cross:L1H2']")
    assert "Not classified" in page.inner_text("#panel")
    asks, looked_at = page.evaluate(
        "[0, 1].map((i) => Array.from(document.querySelectorAll('#links text'))"
        ".filter((t) => t.dataset.side === String(i)).length)"
    )
    canvas = page.locator("button.cell[data-head='cross:L1H2'] canvas")
    assert (canvas.get_attribute("height"), canvas.get_attribute("width")) == (
        str(asks),
        str(looked_at),
    )
    assert asks != looked_at
    page.click("button.layer[data-heads='cross:L']")
    expect(page.locator("#answers")).to_contain_text("8 heads off")
    expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
    written = page.locator("#answers tbody tr").first.locator("td").all_inner_texts()
    assert written[0] == "written"
    assert written[1] != written[2]
    assert page.inner_text("#said").startswith("Without these 8 heads: it writes ")
    assert "tokens\u2019 mean probability" in page.inner_text("#said")
    assert page.inner_text("#control").startswith("There are no random sets to compare with")
    page.fill("#jump", "decoder:L1H3")
    page.keyboard.press("Enter")
    assert page.inner_text("#panel h3") == "decoder:L1H3"
    assert page.locator("button.cell.off").count() == 8


# --- the answer is a sentence -----------------------------------------------------------------


def test_the_answer_is_a_sentence_with_its_control(show):
    page = show()
    page.fill("#text-a", "A cat sat on the mat.")
    page.fill("#text-b", "On the mat there was a cat.")
    expect(page.locator("#said")).to_have_text(
        re.compile("^Similarity 0\\.[89]\\d\\. Click a layer\u2019s name to switch it off\\.$")
    )
    assert page.locator("#control").is_hidden()
    page.click("button.layer[data-heads=L1H]")
    page.click("button.layer[data-heads=L2H]")
    expect(page.locator("#said")).to_have_text(
        re.compile(r"^Without these 24 heads: similarity \w+ (from|at) 0\.\d+")
    )
    expect(page.locator("#control")).to_have_text(
        re.compile(r"^19 random sets of 24 heads from all layers: .+ to .+, so these heads ")
    )
    assert page.inner_text("#panel .answer") == page.inner_text("#said")


@pytest.fixture(scope="module")
def decoder(browser, tmp_path_factory):
    """A tiny GPT-2."""
    with serving(write_tiny(tmp_path_factory.mktemp("decoder") / "model", "gpt2")) as address:
        yield address


def test_a_decoder_says_what_comes_next_as_bars(show, decoder):
    page = show("#a=the+cat+sat+on", address=decoder)
    expect(page.locator("#said")).to_have_text(
        re.compile("^Likeliest next: \u201c.+\u201d 0\\.\\d\\d\\. Click a layer")
    )
    assert page.locator("#said bdi").count() == 1  # what is quoted may run from right to left
    assert page.locator("#text-b").input_value() == ""
    assert page.locator("#answers td.share").count() == 5
    widths = page.locator("#answers td.share").evaluate_all(
        "cells => cells.map(cell => parseFloat(cell.style.getPropertyValue('--to')))"
    )
    assert widths == sorted(widths, reverse=True)
    page.click("button.layer[data-heads='decoder:L1H']")
    expect(page.locator("#said")).to_contain_text("Without these")
    page.fill("#jump", "L1H0")  # a decoder alone has no other L1H0
    page.keyboard.press("Enter")
    assert page.inner_text("#panel h3") == "decoder:L1H0"


@pytest.fixture(scope="module")
def classifier(browser, tmp_path_factory):
    """A tiny classifier with labels in words."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    names = {0: "negative", 1: "positive"}
    ids = {name: number for number, name in names.items()}
    tiny_bert(folder, task_head="classification", id2label=names, label2id=ids)
    with serving(folder) as address:
        yield address


def test_a_classifier_begins_with_one_text_and_says_its_label(show, classifier):
    page = show(address=classifier)
    assert page.locator("#text-a").input_value() != ""
    assert page.locator("#text-b").input_value() == ""
    assert "as one pair" in page.locator("#ask label").nth(1).inner_text()
    page.fill("#text-a", "the cat sat")
    expect(page.locator("#said")).to_have_text(
        re.compile(r"^The model says: (negative|positive) 0\.\d\d\. Click")
    )
    page.fill("#text-b", "a dog ran")
    expect(page.locator("#samples")).to_contain_text("the cat sat / a dog ran")


# --- a phone ----------------------------------------------------------------------------------


def test_the_first_screen_of_a_phone_shows_heads_and_the_sheet_is_never_transparent(show):
    page = show(viewport={"width": 390, "height": 844})
    page.click("button.layer[data-heads=L0H]")
    expect(page.locator("#said")).to_contain_text("Without these 12 heads")
    answered(page)
    page.evaluate("scrollTo(0, 0)")
    sheet = page.locator("#panel").bounding_box()
    rows = page.locator("button.cell[data-head$=H0]").evaluate_all(
        "cells => cells.map(cell => cell.getBoundingClientRect().bottom)"
    )
    assert sum(bottom < sheet["y"] for bottom in rows) >= 3
    held = []
    page.route("**/answer", lambda route: held.append(route))
    page.fill("#text-a", "Rain fell.")
    while not held:
        page.wait_for_timeout(20)
    page.wait_for_timeout(500)  # what fades has faded
    opacity, ground = page.evaluate(
        """() => {
          let opacity = 1;
          for (let node = document.querySelector("#panel"); node; node = node.parentElement)
            opacity *= Number(getComputedStyle(node).opacity);
          return [opacity, getComputedStyle(document.querySelector("#panel")).backgroundColor];
        }"""
    )
    assert opacity == 1
    assert ground.startswith("rgb(")
    faint = "Number(getComputedStyle(document.querySelector('#panel .plainly')).opacity)"
    assert page.evaluate(faint) < 1
    held.pop().continue_()
    answered(page)


def test_heads_stand_on_the_first_screen_at_200_percent(show):
    page = show(viewport={"width": 640, "height": 400}, device_scale_factor=2)
    page.click("button.layer[data-heads=L0H]")
    expect(page.locator("#said")).to_contain_text("Without these 12 heads")
    answered(page)
    page.evaluate("scrollTo(0, 0)")
    sheet = page.locator("#panel").bounding_box()
    row = page.locator("button.cell[data-head=L0H11]").bounding_box()
    assert row["y"] + row["height"] < sheet["y"]
    assert row["x"] + row["width"] <= 640
    page.click("#numbers summary")
    assert page.locator("#numbers").bounding_box()["width"] > 600


def test_a_warning_is_one_line_on_a_phone_and_opens(show, translator):
    page = show(address=translator, viewport={"width": 390, "height": 844})
    page.evaluate(
        """() => {
          const box = document.createElement("details"), line = document.createElement("summary");
          box.className = "warn";
          line.textContent = "Warning: " + "a long one ".repeat(20);
          box.append(line);
          document.querySelector("#ask").before(box);
        }"""
    )
    box = page.locator("details.warn").first
    assert box.bounding_box()["height"] < 50
    box.locator("summary").click()
    assert box.bounding_box()["height"] > 100


_FRAMES = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const rgb = Array.from(context.getImageData(0, 0, 1, 1).data).slice(0, 3).map((v) => v / 255);
    const linear = rgb.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return linear.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const cells = Array.from(document.querySelectorAll("button.cell:not(.none)"));
  return cells.map((cell) => {
    const frame = light(getComputedStyle(cell).borderTopColor);
    return (Math.max(frame, page) + 0.05) / (Math.min(frame, page) + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_frames_of_roles_stand_out(show, scheme):
    page = show(color_scheme=scheme)
    contrasts = page.evaluate(_FRAMES)
    assert len(contrasts) > 10
    assert min(contrasts) >= 3


#: Marks whose letters are wider than their cells.
_CUT_MARKS = """() => {
  const widthOf = (mark) => {
    const letters = document.createRange();
    letters.selectNodeContents(mark);
    return letters.getBoundingClientRect().width;
  };
  const marks = Array.from(document.querySelectorAll("button.cell .mark"));
  return marks.filter((m) => widthOf(m) > m.closest(".cell").clientWidth).map((m) => m.textContent);
}"""


@pytest.mark.parametrize(("width", "fits"), [(390, False), (768, True), (1280, True)])
def test_marks_stand_wherever_they_fit_and_the_legend_is_whole(show, width, fits):
    page = show(viewport={"width": width, "height": 844})
    assert page.locator("button.cell .mark:visible").count() == 72
    # On this sample no mark is longer than three letters.
    long = page.locator("button.cell .mark").first
    long.evaluate("mark => { mark.dataset.full = 'broad'; }")
    page.set_viewport_size({"width": width - 1, "height": 844})
    expect(long).to_have_text("broad" if fits else "b")
    explained = page.locator(".legend", has_text="Where a mark does not fit: b = broad.")
    assert explained.count() == (0 if fits else 1)
    page.set_viewport_size({"width": 390 if fits else 1280, "height": 844})
    expect(long).to_have_text("b" if fits else "broad")
    page.set_viewport_size({"width": width, "height": 844})
    expect(long).to_have_text("broad" if fits else "b")
    assert page.evaluate(_CUT_MARKS) == []
    legend = page.locator(".legend")
    assert "CLS, SEP = first, last special token" in legend.inner_text()
    assert "crossed out: switched off" in legend.inner_text()
    assert "removed from the model" not in legend.inner_text()  # this model has all its heads
    page.click("button.layer[data-heads=L0H]")
    crossed = page.evaluate(
        "getComputedStyle(document.querySelector('.cell.off'), '::after').backgroundImage"
    )
    assert "linear-gradient" in crossed


_SMALL = """() => {
  const kinds = "button, summary, select, textarea, input, label:has(input), a[href]";
  const all = document.querySelectorAll(kinds);
  const small = [];
  for (const node of all) {
    if (!node.checkVisibility({ checkVisibilityCSS: true })) continue;
    const target = node.matches("label input") ? node.closest("label") : node;
    const { width, height } = target.getBoundingClientRect();
    if (node.closest(".skip") || (width >= 24 && height >= 24)) continue;
    const text = node.textContent.slice(0, 20);
    small.push(`${node.tagName}.${node.className}#${node.id} ${text}: ${width} x ${height}`);
  }
  return small;
}"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_every_target_is_24_pixels_wide_and_high(show, translator, width):
    page = show(viewport={"width": width, "height": 844}, has_touch=width < 900)
    assert page.evaluate(_SMALL) == []
    page.click("#panel .sheet") if width < 900 else None
    assert page.evaluate(_SMALL) == []
    page = show("#a=the+cat+sat", address=translator, viewport={"width": width, "height": 844})
    assert page.evaluate(_SMALL) == []


def test_what_scrolls_sideways_fades_out_where_there_is_more(show):
    page = show(viewport={"width": 390, "height": 844})
    strip = page.locator(".strip").first
    expect(strip).to_have_class(re.compile("more-right"))
    strip.evaluate("box => box.scrollTo(9999, 0)")
    expect(strip).to_have_class(re.compile("more-left"))
    assert "more-right" not in strip.get_attribute("class")
    page.click("#panel .sheet")
    page.click("#panel .more summary")
    hint = page.locator("#panel .sideways:visible").first
    expect(hint).to_have_text("more to the right →")
    page.locator("#panel .scroll.more-right").first.evaluate("box => box.scrollTo(9999, 0)")
    expect(hint).to_have_text(re.compile("^← more to the left"))


def test_the_picture_of_a_sentence_names_every_token_on_a_phone_too(show):
    page = show(viewport={"width": 390, "height": 844})
    page.click("#panel .sheet")
    names = page.locator("#panel .heat text").count()
    assert names == 2 * page.evaluate("document.querySelector('button.cell canvas').width")


# --- nothing is rebuilt under the reader ------------------------------------------------------


def test_focus_and_what_is_open_stay_while_answers_arrive(show):
    page = show(viewport={"width": 1280, "height": 600})
    page.click("#panel .more summary")
    page.focus("#panel button[aria-label='Next head']")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Next head"
    assert page.locator("#panel .more[open]").count() == 1
    page.focus("#panel .turn")
    page.locator("#panel").evaluate("panel => panel.scrollTo(0, 120)")
    below = page.locator("#panel .more summary")
    place = below.bounding_box()["y"]
    page.keyboard.press("Enter")
    column(page, "1 head off")
    assert page.evaluate("document.activeElement.textContent") == "Switch on"
    assert abs(below.bounding_box()["y"] - place) < 2  # though a line more stands above it
    assert page.locator("#panel").evaluate("panel => panel.scrollTop") > 0
    page.click("#numbers summary")
    page.fill("#text-a", "Snow fell in the night.")
    expect(page.locator("#links")).to_contain_text("snow")
    assert page.locator("#numbers[open]").count() == 0
    assert page.evaluate("document.activeElement.id") == "text-a"
    page.check("#samples input[value='1']")
    page.focus("#samples input[value='1']")
    page.evaluate("document.querySelector('button.layer[data-heads=L3H]').click()")
    column(page, "13 heads off")
    assert page.evaluate("document.activeElement.value") == "1"
    assert page.locator("#samples input[value='1']").is_checked()


def test_the_keyboard_alone_goes_everywhere_and_each_sentence_is_one_stop(show):
    page = show("#a=Rain+fell+on+the+roof.&b=", viewport={"width": 1280, "height": 800})
    stops = page.locator("#links [tabindex='0'], #plane-chart [tabindex='0']")
    assert stops.count() == 2
    assert page.locator("button.cell[tabindex='0']").count() == 1
    page.focus("#text-a")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('button.cell')"):
            break
    start = page.evaluate("document.activeElement.dataset.head")
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.dataset.head")
    assert below != start
    page.keyboard.press("x")
    column(page, "1 head off")
    assert page.evaluate("document.activeElement.dataset.head") == below
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#links text')"):
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "fell" in page.evaluate("document.activeElement.textContent")
    assert "fell attends to" in page.inner_text("#reading")
    page.evaluate("document.querySelector('button.layer').click()")
    expect(page.locator("#said")).to_contain_text("heads")
    answered(page)
    assert "fell" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.matches('#links text')")


# --- the address ------------------------------------------------------------------------------


def test_the_address_keeps_the_state_and_back_and_forward_work(show):
    page = show("#a=Rain+fell.&b=", viewport={"width": 1280, "height": 800})
    page.click("button.layer[data-heads=L0H]")
    column(page, "12 heads off")
    page.click("nav a[href='#sentence']")
    assert "off=L0H0." in page.evaluate("location.hash")
    assert page.evaluate("document.activeElement.id") == "sentence"
    assert page.locator("button.cell.off").count() == 12
    page.fill("#text-a", "Snow fell.")
    expect(page.locator("#links")).to_contain_text("snow")
    page.go_back()
    expect(page.locator("#links")).to_contain_text("rain")
    assert page.locator("#text-a").input_value() == "Rain fell."
    column(page, "12 heads off")
    page.go_back()
    expect(page.locator("button.cell.off")).to_have_count(0)
    page.go_forward()
    column(page, "12 heads off")
    page.go_forward()
    expect(page.locator("#links")).to_contain_text("snow")
    # A pasted address takes effect, a pasted section leaves the state as it is.
    page.evaluate("location.hash = '#head=L3H4&off=L2H1&a=Hail+fell.&b='")
    expect(page.locator("#links")).to_contain_text("hail")
    column(page, "1 head off")
    assert page.inner_text("#panel h3") == "L3H4"
    page.evaluate("location.hash = '#sentence'")
    page.wait_for_function("location.hash.includes('off=L2H1')")
    assert page.locator("#text-a").input_value() == "Hail fell."


# --- fields and right to left -----------------------------------------------------------------


def test_fields_grow_and_follow_the_direction_of_the_text(show):
    page = show("#a=Rain+fell.&b=")
    low = page.locator("#text-a").bounding_box()["height"]
    page.fill("#text-a", "The old ferry left the harbour before dawn and " * 4)
    high = page.locator("#text-a").bounding_box()["height"]
    assert high > low + 20
    assert page.locator("#text-a").evaluate("area => area.scrollHeight <= area.clientHeight")
    direction = "getComputedStyle(document.querySelector('#text-a')).direction"
    assert page.evaluate(direction) == "ltr"
    page.fill("#text-a", "\u0645\u062d\u0645\u062f \u0645\u062d\u0645\u062f")
    assert page.evaluate(direction) == "rtl"
    expect(page.locator("#links")).to_contain_text("\u0645")
    answered(page)
    words = page.locator("#links text[data-side='0']")
    places = words.evaluate_all("words => words.map(word => Number(word.getAttribute('x')))")
    assert places == sorted(places, reverse=True)


def test_no_token_of_the_first_sentence_is_cut(show):
    page = show()
    tokens = page.locator("#links text[data-side='0']").all_text_contents()
    named = page.locator("#panel svg.heat text").all_text_contents()
    assert set(named) <= set(tokens)
    assert len(named) >= len(tokens)


# --- servers that hang, end, or are started anew ----------------------------------------------


def test_a_question_that_is_lost_on_the_way_is_asked_again(show):
    page = show()
    lost = []

    def lose_once(route):
        if lost:
            return route.continue_()
        return lost.append(route)

    page.route("**/answer", lose_once)
    page.fill("#text-a", "Hail fell.")
    expect(page.locator("#links")).to_contain_text("hail")
    expect(page.locator("#trouble")).to_be_hidden()
    assert len(lost) == 1


@contextmanager
def page_of(browser, address):
    """A page whose console may complain: its server ends."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address + "#a=the+cat+sat&b=")
    answered(page)
    yield page
    context.close()


def test_a_server_that_hangs_is_said_to_and_a_killed_one_too(browser, tmp_path):
    folder = tmp_path / "model"
    tiny_bert(folder)
    with serving(folder) as address:
        pid = serving.pids[-1]
        with page_of(browser, address) as page:
            os.kill(pid, signal.SIGSTOP)
            page.fill("#text-a", "a dog ran")
            expect(page.locator("#trouble")).to_contain_text("The server does not react")
            expect(page.locator("#trouble")).to_contain_text("Asking again in 2 seconds.")
            os.kill(pid, signal.SIGCONT)
            expect(page.locator("#links")).to_contain_text("dog")
            expect(page.locator("#trouble")).to_be_hidden()
            assert page.locator("#text-a").input_value() == "a dog ran"
            os.kill(pid, signal.SIGINT)
            ended = page.locator("#trouble")
            page.wait_for_timeout(1000)
            page.fill("#text-a", "the dog sat")
            expect(ended).to_contain_text("cannot be reached: it has ended, or was started anew")


def test_a_server_that_was_started_anew_is_named(browser, tmp_path):
    folder = tmp_path / "model"
    tiny_bert(folder)
    with serving(folder) as address:
        port = re.search(r":(\d+)/", address)[1]
        context = browser.new_context()
        page = context.new_page()
        page.goto(address + "#a=the+cat+sat&b=")
        answered(page)
    with serving(folder, "--port", port):
        page.fill("#text-a", "a dog ran")
        expect(page.locator("#trouble")).to_contain_text("headscope serve was started anew")
        expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
        assert "a=a+dog+ran" in page.evaluate("location.hash")
    context.close()
