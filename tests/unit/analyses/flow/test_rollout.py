"""Attention rollout: transformers' own attentions multiplied by hand, and planted patterns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headscope
from headscope.analyses.flow.graph import WordNodes
from headscope.analyses.flow.rollout import Rollout, RolloutSums
from headscope.analyses.flow.view import VIEW
from headscope.core.activations import Activations
from headscope.data.examples import open_corpus
from headscope.session.opening import open_model


def nodes(causal: bool = False) -> WordNodes:
    """[CLS] a b [SEP], every token a node; and [CLS] a [SEP] with padding."""
    node = torch.tensor([[0, 1, 2, 3], [0, 1, 2, -1]])
    content = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0]]).bool()
    names = (("[CLS]", "a", "b", "[SEP]"), ("[CLS]", "a", "[SEP]"))
    return WordNodes(node, content, torch.zeros_like(node), names, causal)


def through(rollout: Rollout, layers: list[torch.Tensor]) -> torch.Tensor:
    """Show layers (batch, heads, pos, pos), each in chunks of one row and one head."""
    empty = torch.empty(0)
    for number, pattern in enumerate(layers):
        for row, head in np.ndindex(*pattern.shape[:2]):
            part = pattern[row : row + 1, head : head + 1]
            place = ("encoder", number, number, slice(row, row + 1), slice(head, head + 1))
            n_heads = pattern.shape[1]
            rollout.observe(Activations(*place, n_heads, empty, empty, empty, part, empty))
        rollout.finish()
    return rollout.graph()


def test_chunks_of_layers_multiply_and_padding_stays_outside() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [torch.rand(2, 3, 4, 4, generator=generator) for _ in range(3)]
    for pattern in layers:
        pattern[1, :, :, 3] = 0  # nobody looks at padding; what padding looks at is anything
        pattern /= pattern.sum(-1, keepdim=True)
    graph = through(Rollout(nodes()), layers)
    for row, n in ((0, 4), (1, 3)):
        expected = np.eye(n)
        for pattern in layers:
            mean = np.mean([pattern[row, h, :n, :n].double().numpy() for h in range(3)], axis=0)
            expected = (0.5 * mean + 0.5 * np.eye(n)) @ expected
        np.testing.assert_allclose(graph[row, 0, :n, :n], expected, atol=1e-6)
        # Even attention, in closed form: what is left of the identity, and the rest spread evenly.
        closed = np.eye(n) / 8 + 7 / 8 * np.full((n, n), 1 / n)
        np.testing.assert_allclose(graph[row, 1, :n, :n], closed, atol=1e-6)
    assert not graph[1, :, 3].any()


def test_even_attention_of_a_decoder_looks_back() -> None:
    even = through(Rollout(nodes(causal=True)), [torch.eye(4).expand(2, 1, 4, 4)] * 2)[0, 1]
    step = (torch.tril(torch.ones(4, 4)) / torch.arange(1, 5)[:, None] + torch.eye(4)) / 2
    torch.testing.assert_close(even, step @ step)


def test_heads_that_look_at_themselves_move_nothing_and_sinks_take_all() -> None:
    sums, own = RolloutSums(), torch.eye(4).expand(2, 2, 4, 4)
    sums.update(through(Rollout(nodes()), [own] * 4), nodes())
    assert np.array(sums.rows)[:, 0, 0].tolist() == [1.0, 1.0]
    assert np.array(sums.rows)[:, 0, 1].tolist() == [0.0, 0.0]
    sink, sums = torch.zeros(2, 2, 4, 4), RolloutSums()
    sink[..., 0] = 1
    sums.update(through(Rollout(nodes()), [sink] * 4), nodes())
    rows = np.array(sums.rows)[:, 0]
    np.testing.assert_allclose(rows, [[1 / 16, 15 / 16, 1.0]] * 2)  # own, special, top share
    # A layer that has lost all of its heads leaves everything where it is.
    rollout = Rollout(nodes())
    rollout.finish()
    torch.testing.assert_close(rollout.graph()[0, 0], torch.eye(4))


def test_of_real_heads_by_hand() -> None:
    """The second half of some sentences of one-piece words, one by one."""
    words = "the cat saw a big dog in the old house and a man ran to the red car"
    sentences = [words.split()[i : i + 5] for i in range(12)]
    result = headscope.flow("demo", [" ".join(s) for s in sentences], control=False, validate=False)
    loaded = open_model("demo")
    loaded.model.set_attn_implementation("eager")
    own, special, even = [], [], []
    for sentence in sentences[1::2]:
        inputs = loaded.tokenizer(" ".join(sentence), return_tensors="pt")
        with torch.no_grad():
            attentions = loaded.model(**inputs, output_attentions=True).attentions
        total = np.eye(7)
        for layer in attentions:
            total = (layer[0].double().numpy().mean(0) + np.eye(7)) / 2 @ total
        own.append(np.mean([total[i, i] for i in range(1, 6)]))
        special.append(np.mean([total[i, 0] + total[i, 6] for i in range(1, 6)]))
        even.append(1 / 64 + 63 / 64 / 7)
    rollout = result.rollout
    assert rollout is not None
    assert result.sentences.measured_on == 6
    assert rollout.own.value == pytest.approx(np.mean(own), abs=1e-5)
    assert rollout.special.value == pytest.approx(np.mean(special), abs=1e-5)
    assert rollout.even_own == pytest.approx(np.mean(even), abs=1e-6)
    assert rollout.even_special == pytest.approx(2 * 63 / 64 / 7, abs=1e-6)
    assert rollout.uas is None
    assert rollout.special.value > rollout.even_special  # special tokens are where it ends
    assert "Attention rollout" in str(list(VIEW.blocks(result)))


def test_its_trees_are_measured_where_there_are_gold_ones() -> None:
    sentences = [s for s, _ in zip(open_corpus(None), range(40), strict=False)]
    result = headscope.flow("demo", sentences, validate=False)
    rollout, control = result.rollout, result.control
    assert rollout is not None
    assert rollout.uas is not None
    assert rollout.even_uas is not None
    assert rollout.direction in ("dep->head", "head->dep")
    assert 0 < rollout.uas.value < 1
    assert rollout.uas_no_punct is not None
    # Random weights hardly look anywhere: their rollout is nearly that of even attention.
    assert control is not None
    assert control.rollout is not None
    assert control.rollout.own.value == pytest.approx(control.rollout.even_own, abs=0.03)
    assert control.rollout.even_own == pytest.approx(rollout.even_own)
