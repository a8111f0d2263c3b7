"""Tools that every part uses: harmless texts, steps of a run, widest floats."""

import io
import re
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.cli.output import print_human
from headscope.core import widest
from headscope.core.progress import ByTheClock, Steps, progress_of_part
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
    plain = re.sub(r"\[[-1.,%e ]+\](?![(\[:])", "", plain)  # an interval is no link
    assert not re.search(r"[<|`*\[\]~$&\\\n\x1b]", plain)
    page = markdown(text).replace("&#8203;", "\u200b")
    assert not re.search(r"@\w|://\w|www\.\w|(?<!&)#\w|\bGH-\d", page)
    for words in ("obj dep->head of L3H5: 0.5 [0.4, 0.6]", "en_ewt-ud-test.conllu"):
        assert markdown(words) == words
    for words in ("[1](x)", "[1][x]", "[1]: x", "[x]"):
        assert "[" not in markdown(words)


def test_a_line_of_a_log_says_which_step_of_how_many_and_how_much_is_done():
    steps = Steps({"model": 1.0, "control": 1.0, "removing heads": 1.0})
    sentence = steps.sentence
    assert (sentence(), steps.share) == ("loading PyTorch and transformers", None)
    steps.say("loading all-MiniLM-L6-v2")
    assert sentence() == "loading all-MiniLM-L6-v2"
    steps.tell("model", 1, 4)
    assert sentence() == "step 1 of 3: measuring the model, 25%"
    steps.say("checking attention against the model")  # beside the first step, on another thread
    assert sentence() == "step 1 of 3: measuring the model, 25%"
    steps.tell("removing heads", 0, 4)  # the control was not needed
    assert sentence() == "step 3 of 3: removing heads, 0%"
    steps.tell("unforeseen, task", 1, 1)
    assert sentence() == "step 4 of 4: unforeseen: task, 100%"


def test_the_time_left_is_that_of_the_whole_run():
    """By hand: choosing took 10 s where 2 are usual, so all is five times as slow as usual."""
    now = 100.0
    steps = Steps({"choosing": 2.0, "removing": 6.0, "saving": 4.0}, clock=lambda: now)
    assert (steps.times(), steps.seconds_left()) == ("0:00 so far", None)
    now = 105.0  # the model was loaded
    steps.tell("choosing", 0, 10)
    assert (steps.times(), steps.seconds_left()) == ("0:05 so far", None)  # no speed yet
    now = 110.0
    steps.tell("choosing", 5, 10)  # another 5 s of it, then 5 x (6 + 4)
    assert steps.seconds_left() == pytest.approx(5 + 50)
    assert steps.times() == "0:10 so far, about 1 min left"
    now = 115.0
    steps.tell("removing", 0, 10)  # 5 x (6 + 4)
    assert steps.seconds_left() == pytest.approx(50)
    now = 125.0
    steps.tell("removing", 5, 10)  # it takes 20 s, so all is 30 / 8 as slow as usual
    assert steps.seconds_left() == pytest.approx(10 + 30 / 8 * 4)
    assert steps.times() == "0:25 so far, about 25 s left"
    now = 135.0
    steps.tell("saving", 0, 1)
    assert steps.seconds_left() == pytest.approx(30 / 8 * 4)
    now = 3600 + 105.0  # far longer than usual: nothing is promised
    assert steps.times() == "1:00:05 so far"


def test_a_slow_machine_makes_no_step_longer_that_ends_by_the_clock():
    """By hand: the forms take 60 s each on a machine that is nine times as slow as usual."""
    now = 0.0
    usual = {"forms": 40.0, "training": ByTheClock(300.0), "smaller": 10.0}
    steps = Steps(usual, clock=lambda: now)
    steps.tell("forms", 0, 6)
    now = 60.0
    steps.tell("forms", 1, 6)
    assert steps.seconds_left() == pytest.approx(5 * 60 + 300 + 9 * 10)
    now = 360.0
    steps.tell("training", 0, 1000)
    assert steps.seconds_left() == pytest.approx(300 + 9 * 10)
    now = 510.0
    steps.tell("training", 500, 1000)
    assert steps.seconds_left() == pytest.approx(150 + 9 * 10)
    assert Steps({"training": ByTheClock(300.0)}, clock=lambda: now).seconds_left() is None


def test_a_step_that_is_done_again_takes_as_long_as_before():
    """By hand: what the first of two sizes took tells nothing of how much is left of the second.

    Both are timed in 20 s where 10 are usual, and trained in 100 s.
    """
    now = 0.0
    steps = Steps({"timing": 10.0, "training": ByTheClock(100.0)}, clock=lambda: now)
    steps.tell("timing", 0, 2)
    now = 10.0
    steps.tell("timing", 1, 2)
    assert steps.seconds_left() == pytest.approx(10 + 100)
    now = 20.0
    steps.tell("training", 0, 1000)
    now = 120.0
    steps.tell("training", 1000, 1000)
    assert steps.seconds_left() == pytest.approx(0)

    steps.tell("timing", 0, 2)  # the second size
    assert steps.seconds_left() == pytest.approx(20 + 100)
    now = 130.0
    steps.tell("timing", 1, 2)
    assert steps.seconds_left() == pytest.approx(10 + 100)
    now = 140.0
    steps.tell("training", 0, 1000)
    now = 150.0
    steps.tell("training", 100, 1000)
    assert steps.seconds_left() == pytest.approx(90)


def test_another_part_of_a_step_is_no_slow_beginning_of_it():
    """By hand: all forms took 40 s, as usual; one of two is timed again in 5 s."""
    now = 0.0
    steps = Steps({"forms": 40.0, "smaller": 10.0}, clock=lambda: now)
    steps.tell("forms", 0, 4)
    now = 30.0
    steps.tell("forms", 3, 4)
    now = 40.0
    steps.tell("forms, timed again", 0, 2)
    assert steps.seconds_left() == pytest.approx(10)
    now = 45.0
    steps.tell("forms, timed again", 1, 2)
    assert steps.seconds_left() == pytest.approx(5 + 50 / 40 * 10)


def test_a_step_by_the_clock_takes_no_longer_on_a_slow_machine():
    """By hand: choosing is ten times as slow as usual, so is saving; training is not."""
    now = 0.0
    steps = Steps({"choosing": 2.0, "training": ByTheClock(240), "saving": 3.0}, clock=lambda: now)
    steps.tell("choosing", 0, 10)
    now = 10.0
    steps.tell("choosing", 5, 10)
    assert steps.seconds_left() == pytest.approx(10 + 240 + 30)
    now = 20.0
    steps.tell("training", 0, 100)
    assert steps.seconds_left() == pytest.approx(240 + 30)
    now = 60.0
    steps.tell("training", 5, 100)  # by its speed 800 s, which it is not given
    assert steps.seconds_left() == pytest.approx(200 + 30)
    now = 80.0
    steps.tell("saving", 0, 1)  # that training was short says nothing of saving
    assert steps.seconds_left() == pytest.approx(30)


def test_a_part_of_a_step_goes_by_its_own_speed():
    """By hand: the model took 60 s, the tenth of its first tokens 3 s."""
    now = 0.0
    steps = Steps({"model": 1.0}, clock=lambda: now)
    steps.tell("model", 0, 10)
    now = 60.0
    steps.tell("model", 10, 10)
    steps.tell("model, first tokens", 0, 10)
    now = 63.0
    steps.tell("model, first tokens", 1, 10)
    assert steps.seconds_left() == pytest.approx(27)


def test_a_section_begins_with_its_first_step():
    steps = Steps({"validate": 1.0, "classify, model": 3.0, "classify, control": 3.0})
    steps.tell("classify", 0, 1)
    assert steps.sentence() == "step 2 of 3: classify, 0%"
    steps.tell("classify, control", 1, 2)
    assert steps.sentence() == "step 3 of 3: classify: measuring random weights, 50%"


def test_what_a_part_tells_counts_as_that_part_unless_it_has_a_name():
    steps = Steps({"model, choosing": 1.0, "model, measuring": 1.0, "prune": 1.0})
    steps.tell("model, measuring", 1, 2)
    assert steps.sentence() == "step 2 of 3: measuring the model: measuring, 50%"
    progress_of_part("prune", steps.tell)("the measured model, task", 3, 4)
    assert steps.sentence() == "step 3 of 3: prune: the measured model, task, 75%"


def test_float64_where_there_is_one(monkeypatch):
    x = torch.tensor([1, 2], dtype=torch.bfloat16)
    assert widest.widest(x).dtype == widest.exact(x).dtype == torch.float64
    assert widest.widest(x > 1).tolist() == [0.0, 1.0]
    types = [widest.widest_type(device) for device in ("cpu", "cuda:1", "mps")]
    assert types == [torch.float64, torch.float64, torch.float32]
    monkeypatch.setattr(widest, "WITHOUT_FLOAT64", {"cpu"})
    assert widest.widest(x).dtype == torch.float32
    assert (widest.exact(x).dtype, widest.exact(x).device.type) == (torch.float64, "cpu")


def test_a_stream_without_unicode_gets_every_line(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_human("90% of W_QW_K\u1d40", "the rest")
    sys.stdout.flush()
    assert written.getvalue().decode().split("\n")[:2] == ["90% of W_QW_K?", "the rest"]
