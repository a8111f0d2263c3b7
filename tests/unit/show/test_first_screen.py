"""What an option asked for is on the first screen, whatever table came before it."""

import io

import pytest
from rich.console import Console
from tiny_models import tiny_bert

import headscope
from headscope.commands import COMMANDS
from headscope.show import blocks as b
from headscope.show.terminal import terminal


def first_screen(result):
    """All that a command prints without --verbose, on one line."""
    out = io.StringIO()
    console = Console(file=out, width=80)
    for block in COMMANDS[result.command_name].view.human(result):
        console.print(block)
    return " ".join(out.getvalue().split())


def test_of_several_tables_the_first_is_shown_and_those_that_were_asked_for():
    names = ("first", "second", "asked")
    tables = [b.text_table(("", name), [[name, "1"]], f"title {name}") for name in names]
    tables[2] = b.text_table(("", "asked"), [["asked", "1"]], "title asked", b.ASKED | b.PAGE)
    out = io.StringIO()
    for block in terminal(tables):
        Console(file=out, width=80).print(block)
    assert "title first" in out.getvalue()
    assert "title second" not in out.getvalue()
    assert "title asked" in out.getvalue()
    assert "1 more table: --verbose" in out.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("screen") / "bert")))


LINES = ["the cat sat on the mat", "a big dog ran to the house", "she saw it", "he was red"] * 8


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("classify", {"ablate": True, "ablate_limit": 12}, "Removing one head costs"),
        ("classify", {"prefix_matching": True}, "Induction, on random tokens that come twice"),
        ("classify", {"patch": True}, "No head was patched: none has a positional"),
        ("rank", {"text": LINES[:4], "control_seeds": 2}, "pattern asymmetry"),
        ("rank", {"share_projections": [16], "control_seeds": 2}, "sharing projections of a width"),
        ("rank", {"copying": True, "control_seeds": 2}, "write the tokens that they look at"),
        (
            "spectrum",
            {"efficient": True, "length": 16, "sequences": 8},
            "stays nearest to the model",
        ),
        (
            "prune",
            {"fractions": [0.5], "methods": ["magnitude"], "limit": 8},
            "by share of heads removed",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_answer_to_an_option(command, options, words, model):
    function = getattr(headscope, command)
    if command == "classify":
        options = {"limit": 40, **options}
    arguments = (LINES,) if command == "spectrum" else ()
    assert words in first_screen(function(model, *arguments, validate=False, **options))


def test_tokens_and_the_control_stand_where_they_are_looked_for(model):
    result = headscope.attribute(
        model, "A man plays.", "Music is made.", tokens=True, validate=False, calibration=LINES[:16]
    )
    screen = first_screen(result)
    assert "Tokens that contribute most" in screen
    assert screen.index("Control: on") < screen.index("Heads that change")
