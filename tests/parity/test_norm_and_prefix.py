"""Attention by norms and on repeated tokens: planted heads, and patterns by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from planted_models import Planted, build_planted
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer, translator
from torch import nn
from transformers import BertModel

import headscope
from headscope.analyses.classify.prefix_matching import PLACES, PrefixWeights
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.value_norms import compare
from headscope.core.activations import Activations


@torch.no_grad()
def with_output(planted: Planted, *, sink: bool) -> Any:
    """Let every head write a little; if it is a sink, L1H0 has no values at special tokens.

    L1H0 looks at [SEP]. What is written is too small to change what later layers see.
    """
    model = BertModel.from_pretrained(planted.folder).eval()
    torch.manual_seed(0)
    for layer in model.encoder.layer:
        nn.init.normal_(layer.attention.output.dense.weight, std=1e-7)
    loaded = headscope.load(str(planted.folder))
    words = model.embeddings.word_embeddings.weight.double()
    blind = torch.cat([words[2:4], model.embeddings.position_embeddings.weight.double()])
    mean = words[5:].mean(dim=0)
    # What all words have in common, less what special tokens and positions have of it.
    reads = (
        mean - torch.linalg.lstsq(blind.t(), mean[:, None], driver="gelsd").solution[:, 0] @ blind
    )
    value = model.encoder.layer[1].attention.self.value
    if sink:
        value.weight[:64] = torch.outer(torch.ones(64).double(), reads / reads.norm()).float()
        value.bias[:64] = 0.0
    return headscope.wrap(model, loaded.tokenizer, name="planted")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return build_planted(tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("sink", [True, False])
def test_a_sink_without_values_loses_its_label_and_any_other_head_keeps_it(planted, sink):
    result = headscope.classify(
        with_output(planted, sink=sink),
        planted.treebank,
        frequencies=planted.frequencies,
        limit=120,
        norm_weighted=True,
        validate=False,
    )
    by_role = {role.role: role for role in result.norms.roles}
    special = by_role["special"]
    assert special.heads == 1
    assert special.mass > 0.9
    assert special.kept == (() if sink else ("L1H0",))
    assert special.norm_mass < 0.1 if sink else special.norm_mass > 0.9
    # Heads that look at one word by its place keep their labels in either model.
    assert by_role["positional"].heads == len(by_role["positional"].kept) == 4
    assert ("special" in result.heads[4].roles) is not sink
    assert special.share.low <= special.share.value == len(special.kept) <= special.share.high


def test_roles_are_compared_by_name(planted):
    plain: ClassifyResult = headscope.classify(
        str(planted.folder), planted.treebank, limit=60, validate=False
    )
    other = tuple(plain.heads[:4])
    for role in compare(plain.heads, other, (plain.heads, other)).roles:
        mine = [h.name for h in plain.heads if role.role in h.roles]
        first = tuple(name for name in mine if name.startswith("L0"))
        assert (role.heads, role.kept, role.gained) == (len(mine), first, ())
        assert (role.control_heads, role.control_kept) == (len(mine), len(first))
        assert role.share.low <= role.share.value == len(first) / len(mine) <= role.share.high
    gained = [name for role in compare(other, plain.heads).roles for name in role.gained]
    assert gained
    assert not any(name.startswith("L0") for name in gained)


COPY = 5


def test_weights_are_read_where_the_first_copy_stands():
    """[CLS] 1 2 3 4 5 1 2 3 4 5 [SEP]: each query's places, in a loop."""
    n = 2 * COPY + 2
    pattern = torch.rand(3, 2, n, n, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = PrefixWeights(1, 3, 3, 1, COPY)
    none = torch.empty(0)
    for rows in (slice(0, 2), slice(2, 3)):
        seen = (rows, slice(1, 3), 3, none, none, none, pattern[rows], none)
        found.observe(Activations("encoder", 0, 0, *seen))
    for place, (name, step) in enumerate(PLACES.items()):
        for sequence in range(3):
            for head in range(2):
                rows = pattern[sequence, head]
                total = [float(rows[i, i - COPY + step]) for i in range(COPY + 2, 2 * COPY)]
                value = found.weights[place, 0, head + 1, sequence]
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
    sizes = {"hidden_size": d, "num_hidden_layers": 2, "max_position_embeddings": n_positions}
    model = tiny("bert", vocab_size=len(VOCABULARY), initializer_range=0.02, **sizes)
    for parameter in model.encoder.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    for module in model.modules():  # no biases
        if isinstance(module, nn.Linear):
            module.bias.zero_()
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


def test_a_planted_induction_head_is_found_and_its_mirror_image_too():
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
                assert match.gain.low > 0.35
            else:
                assert match.gain.value < 0.05, (name, place)
            assert match.gain.value == pytest.approx(match.score - match.control)
    # L0H0 always looks one token back, a great weight that repetition does not change.
    assert all(abs(getattr(scores["L0H0"], place).gain.value) < 0.02 for place in PLACES)
    assert max(result.prefix.random_weights.values()) < 0.05


def test_other_stacks_and_short_limits_are_said_not_to_be_testable(tmp_path):
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
