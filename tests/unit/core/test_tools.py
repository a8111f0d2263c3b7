"""Tools that every part uses: harmless texts, steps of a run, widest floats."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.core import widest
from headscope.core.progress import Steps, progress_of_part
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
    for words in ("obj dep->head of L3H5: 0.5 (0.4 to 0.6)", "en_ewt-ud-test.conllu"):
        assert markdown(words) == words


def test_a_line_of_a_log_says_which_step_of_how_many_and_how_much_is_done():
    steps = Steps(["model", "control", "removing heads"])
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


def test_what_a_part_tells_counts_as_that_part_unless_it_has_a_name():
    steps = Steps(["model, choosing", "model, measuring", "prune"])
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
