"""Shapes of patterns: the rule's borders, planted heads, and transformers' own attentions."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import headscope
from headscope.analyses.classify.options import Thresholds
from headscope.analyses.classify.result import SHAPES
from headscope.analyses.classify.shapes import shape_of
from headscope.analyses.classify.view import shapes_sentence
from headscope.data.examples import open_corpus
from headscope.session.opening import open_model


@pytest.mark.parametrize(
    ("special", "near", "shape"),
    [
        (0.59, 0.0, "heterogeneous"),
        (0.3, 0.29, "heterogeneous"),
        (0.6, 0.0, "vertical"),
        (0.75, 0.25, "vertical"),
        (0.74, 0.26, "vertical+diagonal"),
        (0.26, 0.74, "vertical+diagonal"),
        (0.25, 0.75, "diagonal"),
        (0.0, 1.0, "diagonal"),
        (None, 0.5, None),
        (0.5, None, None),
    ],
)
def test_borders(special: float | None, near: float | None, shape: str | None) -> None:
    assert shape_of(special, near, Thresholds()) == shape
    assert shape is None or shape in SHAPES


def test_thresholds_move_the_borders() -> None:
    assert shape_of(0.2, 0.1, Thresholds(shape=0.3, shape_pure=0.6)) == "vertical"
    assert shape_of(0.8, 0.1, Thresholds(shape=0.95)) == "heterogeneous"


def test_shapes_of_real_heads_by_hand() -> None:
    """Each sentence alone, row by row, from transformers' attentions; and even attention."""
    n, result = 8, headscope.classify("demo", limit=8, control=True, validate=False)
    loaded = open_model("demo")
    loaded.model.set_attn_implementation("eager")
    special, near, even, rows = torch.zeros(6, 12), torch.zeros(6, 12), [0.0, 0.0], 0
    for sentence, _ in zip(open_corpus(None), range(n), strict=False):
        words = list(sentence.words)
        inputs = loaded.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            patterns = torch.stack(loaded.model(**inputs, output_attentions=True).attentions)[:, 0]
        length = patterns.shape[-1]
        for query in range(1, length - 1):
            rows += 1
            special += patterns[:, :, query, 0] + patterns[:, :, query, length - 1]
            near += patterns[:, :, query, query - 1] + patterns[:, :, query, query + 1]
            even[0] += 2 / length
            even[1] += 2 / length
    expected = {}
    for layer in range(6):
        for head in range(12):
            v, d = float(special[layer, head]) / rows, float(near[layer, head]) / rows
            # Near a border float32 could decide otherwise; no head of these sentences is.
            assert min(abs(v + d - 0.6), abs(v / (v + d) - 0.75), abs(v / (v + d) - 0.25)) > 1e-5
            whole = v + d >= 0.6
            name = "vertical" if v >= 0.75 * (v + d) else "vertical+diagonal"
            name = "diagonal" if d >= 0.75 * (v + d) else name
            expected[f"L{layer}H{head}"] = name if whole else "heterogeneous"
    assert {head.name: head.shape for head in result.heads} == expected
    assert len(set(expected.values())) >= 3
    (shapes,) = result.shapes
    assert {k: v for k, v in shapes.heads.items() if v} == Counter(expected.values())
    assert shapes.even == shape_of(even[0] / rows, even[1] / rows, Thresholds())
    assert shapes.random_weights == {**dict.fromkeys(SHAPES, 0), shapes.even: 72}
    assert f"{shapes.heads['vertical']} vertical" in shapes_sentence(result)
    assert result.only("encoder").shapes == result.shapes
    assert result.to_frame()["shape"].tolist() == list(expected.values())


def test_even_attention_of_short_sentences_is_no_evidence() -> None:
    """Of two words and two special tokens even attention gives each place a quarter."""
    sentences = ["cats sleep", "dogs bark"]
    result = headscope.classify("demo", sentences, control=True, validate=False)
    (shapes,) = result.shapes
    assert shapes.even == "vertical+diagonal"  # 0.5 on special tokens, 0.5 on the neighbours
    assert shapes.random_weights is not None
    assert shapes.random_weights["vertical+diagonal"] > 60
