"""Models made for claims: planted ones for which a part holds, altered ones for which it does not.

Their words belong to topics, and every sentence keeps to one: a few directions of the states say
the topic, the others the word. What a head reads, how sharply it looks and how its keys lie can be
set apart from each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tiny_models import SPECIAL, VOCABULARY, tiny_tokenizer
from torch import Tensor
from transformers import BertConfig, BertModel

import headscope
from headscope.models.loaded import LoadedModel

D_MODEL, N_HEADS, D_HEAD = 32, 4, 8
#: Words of a topic, and of a sentence.
TOPIC, LENGTH = 5, 9
PIECES = [i for i, piece in enumerate(VOCABULARY) if i >= len(SPECIAL) and "##" not in piece]


def written(folder: Path, n: int) -> Path:
    """Write sentences of one topic each to a file."""
    rng = np.random.default_rng(0)
    topics = np.array(PIECES[: len(PIECES) // TOPIC * TOPIC]).reshape(-1, TOPIC)
    path = folder / f"topics_{n}.txt"
    for _ in range(n):
        words = rng.choice(topics[rng.integers(len(topics))], LENGTH)
        with path.open("a") as file:
            file.write(" ".join(VOCABULARY[i] for i in words) + "\n")
    return path


def mixed_lines(n: int) -> list[str]:
    """Sentences of different words of any topic."""
    rng = np.random.default_rng(0)
    return [" ".join(VOCABULARY[i] for i in rng.permutation(PIECES)[:LENGTH]) for _ in range(n)]


def untrained(n_layers: int = 2, width: int = D_MODEL, n_heads: int = N_HEADS) -> BertModel:
    """Give a BERT with transformers' random weights."""
    sizes = {"num_hidden_layers": n_layers, "num_attention_heads": n_heads, "hidden_size": width}
    small = {"intermediate_size": 16, "max_position_embeddings": 64}
    config = BertConfig(vocab_size=len(VOCABULARY), **sizes, **small)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertModel(config).eval()


@torch.no_grad()
def keep_states(model: BertModel, states: Tensor) -> None:
    """Let each piece have a state (pieces, d_model) that stays as it is through all layers."""
    model.embeddings.word_embeddings.weight.copy_(states)
    model.embeddings.position_embeddings.weight.zero_()
    model.embeddings.token_type_embeddings.weight.zero_()
    for layer in model.encoder.layer:
        for dense in (layer.attention.output.dense, layer.output.dense):
            dense.weight.zero_()


@torch.no_grad()
def of_topics(n_layers: int = 2) -> BertModel:
    """Give a model whose states say topic and word, and stay as they are through all layers.

    The first D_HEAD dimensions are the topic's, and the larger part. Attention is even.
    """
    model = untrained(n_layers)
    generator = torch.Generator().manual_seed(0)
    of_topic = torch.randn(len(VOCABULARY), D_HEAD, generator=generator)
    for start in range(0, len(PIECES) - TOPIC + 1, TOPIC):
        of_topic[PIECES[start : start + TOPIC]] = of_topic[PIECES[start]].clone()
    of_word = torch.randn(len(VOCABULARY), D_MODEL - D_HEAD, generator=generator)
    keep_states(model, torch.cat([2 * of_topic, 0.7 * of_word], 1))
    for layer in model.encoder.layer:
        layer.attention.self.query.weight.zero_()
    # Heads read the topic, all of its directions alike.
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(D_HEAD, D_HEAD, generator=generator))[0]
    return read(model, torch.cat([turn, torch.zeros(D_MODEL - D_HEAD, D_HEAD)]))


@torch.no_grad()
def read(model: BertModel, W_V: Tensor | None) -> BertModel:
    """Give every head this W_V (d_model, d_head), or a Gaussian one of its own."""
    generator = torch.Generator().manual_seed(1000)
    for layer in model.encoder.layer:
        weight = layer.attention.self.value.weight
        if W_V is None:
            weight.copy_(torch.randn(weight.shape, generator=generator) / D_MODEL**0.5)
        else:
            weight.copy_(W_V.T.repeat(N_HEADS, 1))
    return model


@torch.no_grad()
def of_keys(n_layers: int = 4, *, signs: bool = True) -> BertModel:
    """Give a model whose queries are its keys, and whose keys have a sign in common or not.

    The sign counts for more from head to head of a layer: the cosine of two keys is about plus or
    minus 0.15 in the first and 0.55 in the last. Every token looks sharply at itself, as only a
    softmax can. Without ``signs`` all cosines are positive.
    """
    n_heads, d_head = 8, 24
    width = n_heads * d_head
    model = untrained(n_layers, width, n_heads)
    states = torch.randn(len(VOCABULARY), width, generator=torch.Generator().manual_seed(0))
    states[:, 0] = 1.0
    states[::2, 0] = -1.0 if signs else 1.0
    keep_states(model, states)
    for layer in model.encoder.layer:
        key = torch.zeros(n_heads, d_head, width)
        for head in range(n_heads):
            cosine = 0.15 + 0.4 * head / (n_heads - 1)
            key[head, 0, 0] = (cosine * (d_head - 1) / (1 - cosine)) ** 0.5
            key[head, 1:, 1 + head * (d_head - 1) :][:, : d_head - 1] = torch.eye(d_head - 1)
        layer.attention.self.key.weight.copy_(key.flatten(0, 1))
        layer.attention.self.query.weight.copy_(2 * key.flatten(0, 1))
    return model


@torch.no_grad()
def sharpen(model: BertModel, factor: float) -> BertModel:
    """Multiply every W_Q."""
    for layer in model.encoder.layer:
        layer.attention.self.query.weight.mul_(factor)
        layer.attention.self.query.bias.mul_(factor)
    return model


def loaded(model: BertModel) -> LoadedModel:
    """Wrap a model with its tokenizer."""
    return headscope.wrap(model, tiny_tokenizer(64))
