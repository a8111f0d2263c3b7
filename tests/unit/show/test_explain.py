"""The page and the matrices of ``explain``, whatever its sentence holds."""

import dataclasses
import io
import re

import pytest
from hostile import HOSTILE, hostile_sentence
from rich.console import Console
from tiny_models import tiny_tokenizer
from transformers import BertConfig, BertModel

import headscope
from headscope.results import ExplainResult
from headscope.results.explain import Matrix
from headscope.show.explain import VIEW
from headscope.show.explain.grids import corner, square, weight_text
from headscope.show.explain.words import matrix_title, said


@pytest.fixture(scope="module")
def result() -> ExplainResult:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 180}
    config = BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = headscope.wrap(BertModel(config).eval(), tiny_tokenizer())
    return headscope.explain(model, "the cat sat on the mat and she ran", validate=False)


def text_of(*shown: object) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*shown, sep="\n")
    return console.export_text()


def test_hostile_tokens_are_inert_on_the_page(result):
    made = {**result.provenance, "model": {**result.provenance["model"], "id": HOSTILE[0]}}
    files = VIEW.files(hostile_sentence(result, made))
    page = files["explain.html"].decode()
    assert HOSTILE[0] not in page
    assert not re.search(r"<[^>]*onerror=", page)
    assert page.count("<script") == 2  # the data, and the page's own
    assert not re.search(r"<(img|svg onload)", page)
    assert "\u202e" not in page
    data = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    shown = text_of(*VIEW.human(hostile_sentence(result, made)))
    assert "\u202e" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_square_says_how_much_of_it_is_shown():
    names = [f"t{i}" for i in range(20)]
    rows = tuple(tuple(1.0 if i == j else 0.0 for j in range(20)) for i in range(20))
    matrix = Matrix("pattern", (20, 20), tuple(names), tuple(names), rows)
    text = text_of(square(matrix, names, weight_text, cell=5))
    assert "queries down, keys across, first 14 of 20 tokens" in text
    expected = [[f"t{i}", *"." * i, "1.00", *"." * (13 - i)] for i in range(14)]
    assert [line.split() for line in text.splitlines()[2:]] == expected
    given = (None, 0.0, 0.0049, 0.005, 0.123, 0.994, 0.996, 1.0)
    assert [weight_text(v) for v in given] == [".", ".", ".", ".01", ".12", ".99", "1.00", "1.00"]
    wide = Matrix("x", (3, 20), ("a", "b", "c"), (), tuple(row for row in rows[:3]))
    assert "x (3 x 20), first 8 of 20 columns" in text_of(corner(wide, ("a", "b", "c")))


def test_what_is_said_follows_the_numbers(result):
    def text(key: str, changed: ExplainResult = result, **numbers: float) -> str:
        step = changed.step(key)
        assert step is not None
        step = dataclasses.replace(step, numbers={**step.numbers, **numbers})
        return " ".join(said(changed, step))

    assert "reads all 16 numbers" in text("weights")
    assert "reads only 8 of the 16 numbers" in text("weights", reads=8)
    assert "no biases" in text("weights", biases=0)
    assert "no biases" not in text("weights")
    assert "share 1 heads of keys" in text("heads", key_heads=1)
    assert "1/sqrt(d_head) = 1/sqrt(8)" in text("scores")
    assert "1/sqrt(d_head) would be" in text("scores", scale=1.0)
    assert "hides the future" not in text("mask")
    causal = dataclasses.replace(result, causal=True)
    assert "hides the future" in text("mask", causal)
    mask = result.step("mask")
    assert mask is not None
    other = mask.matrix("other direction")
    assert matrix_title(result, other) == "If the future were hidden"
    assert matrix_title(causal, other) == "If the future were seen"
    assert "padded" not in text("mask", pads=0)
