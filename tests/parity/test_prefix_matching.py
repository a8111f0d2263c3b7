"""Scores on repeated tokens: patterns by hand, a planted induction head, every family."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import COVERED, Family
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer, translator
from transformers import BertConfig, BertModel

import headscope
from headscope.measures.activations import Activations
from headscope.measures.prefix_matching import PLACES, PrefixWeights
from headscope.pipeline.classify.prefix_matching import Repeats

COPY = 5


def test_weights_are_read_where_the_first_copy_stands() -> None:
    """[CLS] 1 2 3 4 5 1 2 3 4 5 [SEP]: each query's places, in a loop."""
    n = 2 * COPY + 2
    pattern = torch.rand(3, 2, n, n, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = PrefixWeights(1, 3, 4, 1, COPY)
    found.begin(1)
    empty = torch.empty(0)
    for rows in (slice(0, 2), slice(2, 3)):
        part = pattern[rows]
        found.observe(
            Activations("encoder", 0, 0, rows, slice(1, 3), 3, empty, empty, empty, part, empty)
        )
    for place, (name, step) in enumerate(PLACES.items()):
        for sequence in range(3):
            for head in range(2):
                total = [
                    float(pattern[sequence, head, query, query - COPY + step])
                    for query in range(1 + COPY + 1, 1 + 2 * COPY - 1)
                ]
                value = found.weights[place, 0, head + 1, sequence + 1]
                assert value == pytest.approx(np.mean(total)), name
    assert np.isnan(found.weights[:, :, 0]).all()


CODE, PLACE = 32, 32


@torch.no_grad()
def induction() -> Any:
    """Two layers: L0H0 writes each token's predecessor beside it, L1H0 looks for its own there.

    L1H1 looks for its own token; L1H2 for the successor's (the mirror image), which L0H1 writes.
    The vector of a token: a code of its identity, its position, the codes of its predecessor and
    of its successor; each block stands twice, with opposite signs, so that the mean is zero.
    """
    n_positions, d = 64, 2 * (3 * CODE + PLACE)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=d,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=8,
        max_position_embeddings=n_positions,
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    for parameter in model.encoder.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    half = d // 2
    blocks = {
        "own": slice(0, CODE),
        "place": slice(CODE, CODE + PLACE),
        "before": slice(CODE + PLACE, 2 * CODE + PLACE),
        "after": slice(2 * CODE + PLACE, half),
    }

    def fill(rows: torch.Tensor, block: str, values: torch.Tensor) -> None:
        rows[:, blocks[block]] = values
        rows[:, half:][:, blocks[block]] = -values

    words, places = model.embeddings.word_embeddings.weight, model.embeddings.position_embeddings
    words.zero_(), places.weight.zero_(), model.embeddings.token_type_embeddings.weight.zero_()
    fill(words, "own", torch.randn(len(words), CODE).sign())
    angle = torch.arange(n_positions)[:, None] * (2 * math.pi / n_positions)
    angle = angle * torch.arange(1, PLACE // 2 + 1)
    fill(places.weight, "place", torch.stack([angle.cos(), angle.sin()], -1).flatten(1))

    def look(layer: int, head: int, query: str, key: str, turn: int = 0) -> None:
        """Let a head look for the key whose block is the query's, turned by so many places."""
        attention = model.encoder.layer[layer].attention.self
        rows = slice(head * half // 2, head * half // 2 + CODE)
        attention.query.weight[rows, blocks[query]] = 6.0 * _turned(turn)
        attention.key.weight[rows, blocks[key]] = 6.0 * torch.eye(CODE)

    def write(head: int, block: str) -> None:
        """Let a head of the first layer copy the identity of what it sees into a block."""
        attention = model.encoder.layer[0].attention
        rows = slice(head * half // 2, head * half // 2 + CODE)
        attention.self.value.weight[rows, blocks["own"]] = torch.eye(CODE)
        out = attention.output.dense.weight
        out[blocks[block], rows] = torch.eye(CODE)
        out[half:][blocks[block], rows] = -torch.eye(CODE)

    def _turned(turn: int) -> torch.Tensor:
        if not turn:
            return torch.eye(CODE)
        found = torch.zeros(CODE, CODE)
        for i in range(PLACE // 2):
            a = torch.tensor(turn * (i + 1) * 2 * math.pi / n_positions)
            found[2 * i, 2 * i] = found[2 * i + 1, 2 * i + 1] = a.cos()
            found[2 * i, 2 * i + 1], found[2 * i + 1, 2 * i] = -a.sin(), a.sin()
        return found

    look(0, 0, "place", "place", -1), write(0, "before")
    look(0, 1, "place", "place", 1), write(1, "after")
    look(1, 0, "own", "before")
    look(1, 1, "own", "own")
    look(1, 2, "own", "after")
    return headscope.wrap(model, tiny_tokenizer(n_positions), name="induction")


def test_a_planted_induction_head_is_found_and_its_mirror_image_too() -> None:
    result = headscope.classify(
        induction(), limit=20, prefix_matching=True, control=True, validate=False
    )
    scores = {head.name: head.prefix for head in result.heads if head.prefix}
    expected = {"L1H0": "after", "L1H1": "same", "L1H2": "before"}
    for name, score in scores.items():
        for place in PLACES:
            match = getattr(score, place)
            if expected.get(name) == place:
                # An encoder's token sees its own copy as well: half of the weight goes there.
                assert match.score == pytest.approx(0.5, abs=0.1), name
                assert match.control < 0.05
                assert match.interval[0] > 0.35
            else:
                assert match.gain < 0.05, (name, place)
            assert match.gain == pytest.approx(match.score - match.control)
    assert result.prefix is not None
    assert max(result.prefix.random_weights.values()) < 0.05


def test_position_alone_gains_nothing() -> None:
    """L0H0 always looks one token back, a great weight that repetition does not change."""
    result = headscope.classify(induction(), limit=20, prefix_matching=True, validate=False)
    assert result.heads[0].prefix is not None
    for place in PLACES:
        match = getattr(result.heads[0].prefix, place)
        assert abs(match.gain) < 0.02


@pytest.mark.parametrize("family", COVERED, ids=lambda family: family.name)
def test_every_family_is_scored_or_says_why_not(family: Family) -> None:
    network = family.model(vocab_size=len(VOCABULARY))
    loaded = headscope.wrap(network, tiny_tokenizer(38), name=family.name)
    stack = "encoder" if loaded.encoder_decoder else loaded.stacks[0]
    repeats = Repeats.draw(loaded, 0)
    assert repeats is not None
    assert len(repeats.repeated[0]) == 2 * repeats.copy + 2 <= 38
    for ours, theirs in zip(repeats.repeated, repeats.control, strict=True):
        first, second = (ours[1 + i * repeats.copy : 1 + (i + 1) * repeats.copy] for i in (0, 1))
        assert first == second == theirs[1 + repeats.copy : -1]
        assert len(set(theirs)) == len(theirs)
    scores = repeats.scores(loaded.only(stack))
    assert len(scores) == sum(site.n_heads for site in loaded.only(stack).sites)
    assert all(np.isfinite(match.gain) for s in scores.values() for match in vars(s).values())


def test_other_stacks_and_short_limits_are_said_not_to_be_testable(tmp_path: Any) -> None:
    loaded = headscope.wrap(translator("t5"), tiny_tokenizer(), name="t5")
    pairs = [("the cat sat on it", "the dog"), ("a big red dog ran", "a cat")] * 3
    result = headscope.classify(
        loaded, pairs, stack="decoder", prefix_matching=True, validate=False
    )
    assert result.prefix is None
    assert "encoder" in result.untestable["prefix matching"]
    short = tiny_bert(tmp_path / "short", max_position_embeddings=8)
    result = headscope.classify(
        str(short), ["the cat sat", "a dog"], prefix_matching=True, validate=False
    )
    assert result.untestable["prefix matching"] == "too few tokens"
    assert all(head.prefix is None for head in result.heads)
