"""``headscope serve``: the command in a process of its own, asked by a real browser."""

import os
import re
import signal
from contextlib import contextmanager

import pytest
from processes import Run
from tiny_models import write_translator

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
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", address)
        yield address
        os.kill(process.pid, signal.SIGINT)
        ended = process.end()
    assert (ended.code, ended.stderr) == (130, "headscope: interrupted\n")


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
        page.wait_for_selector("#answers td")
        return page

    yield call
    for context in contexts:
        context.close()
    assert seen == []


def column(page, header):
    """Wait for the column with this header; returns its first number."""
    page.locator("#answers th", has_text=re.compile(f"^{header}$")).wait_for()
    names = page.locator("#answers th").all_inner_texts()
    return float(
        page.locator("#answers tbody tr").first.locator("td").all_inner_texts()[names.index(header)]
    )


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
    column(page, "all heads on")
    page.click(".chip[data-role=positional]")
    page.click("#shown-off")
    assert page.locator("button.cell.off").count() == page.locator("button.cell.positional").count()


def test_a_pinned_state_stands_beside_the_current_one_and_fits_a_narrow_screen(show):
    page = show(viewport={"width": 390, "height": 900})
    before = column(page, "all heads on")
    page.click("#pin")
    page.click("button.layer[data-heads=L0H]")
    column(page, "12 heads off")
    assert column(page, "pinned: all heads on") == before
    assert page.locator("#panel svg.heat").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#pin")
    assert "pinned" not in page.inner_text("#answers")


def test_what_is_wrong_is_said_and_hostile_text_stays_text(show):
    page = show()
    page.fill("#text-b", "")
    page.fill("#text-a", "")
    expect(page.locator("#trouble")).to_contain_text("Type")
    page.evaluate("document.querySelector('#text-a').removeAttribute('maxlength')")
    page.fill("#text-a", "word " * 2000)
    expect(page.locator("#trouble")).to_contain_text("64 tokens")
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
    expect(page.locator("#trouble")).to_contain_text("64 tokens")
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
        ".filter((t) => Number(t.getAttribute('y')) > 100 === !!i).length)"
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
    page.fill("#jump", "decoder:L1H3")
    page.keyboard.press("Enter")
    assert page.inner_text("#panel h3") == "decoder:L1H3"
    assert page.locator("button.cell.off").count() == 8
