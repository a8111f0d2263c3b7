"""Claims on models that were made to pass or to fail: for every part one of each, measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_tokenizer
from transformers import BertConfig, BertModel

import headscope
from headscope.data.plain import as_plain
from headscope.models.loaded import LoadedModel
from headscope.verdicts.insights import asymmetry
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.thresholds import InsightThresholds

T = InsightThresholds()


def parts(found: Finding) -> dict[str, str]:
    return {part.name: part.verdict for part in found.parts}


def bert(**sizes: Any) -> Any:
    torch.manual_seed(0)
    settings = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    return BertModel(BertConfig(**{**settings, **sizes})).eval()


def opened(network: Any) -> LoadedModel:
    return headscope.wrap(network, tiny_tokenizer(62))


def layers(network: Any) -> Iterable[Any]:
    return (layer.attention for layer in network.encoder.layer)


# --- claim 0 ------------------------------------------------------------------------------------

WEIGHTS, PATTERNS = "W_Q W_K^T of every head is asymmetric", "every head's pattern is asymmetric"
OUTPUT = "symmetric scores move the output more than random changes"
#: Letters by class: a query of one class looks for keys of the next, c for a.
CLASSES = ("aeiou", "bdfgh", "lmnrs")
_KINDS = (0,) * 10 + (1,) * 2 + (2,) * 10
LINES = [
    " ".join(CLASSES[kind][(i + j) % 5] for j, kind in enumerate(_KINDS[i % 3 :]))
    for i in range(24)
]


@torch.no_grad()
def directed(seeks: tuple[int, ...] = (1, 2, 0), sharpness: float = 2.0) -> Any:
    """One layer whose tokens have a class each, and seek the class that ``seeks`` says."""
    network = bert(num_hidden_layers=1, num_attention_heads=1)
    for name, parameter in network.named_parameters():
        if "LayerNorm" not in name:
            parameter.zero_()
    words = network.embeddings.word_embeddings.weight
    for kind, letters in enumerate(CLASSES):
        for letter in letters:
            words[VOCABULARY.index(letter), 2 * kind : 2 * kind + 2] = torch.tensor([1.0, -1.0])
    attention = network.encoder.layer[0].attention
    for kind, sought in enumerate(seeks):
        attention.self.query.weight[sought, 2 * kind] = sharpness
        attention.self.key.weight[kind, 2 * kind] = sharpness**0.5
        attention.self.value.weight[kind, 2 * kind] = 1.0
        attention.output.dense.weight[10 + kind, kind] = 5.0
    return network


@torch.no_grad()
def untrained(sharpness: float) -> Any:
    network = bert(initializer_range=0.05)
    for layer in layers(network):
        layer.self.query.weight *= sharpness
    return network


@torch.no_grad()
def unread() -> Any:
    network = directed()
    network.encoder.layer[0].attention.output.dense.weight.zero_()
    return network


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (lambda: directed(), ("holds", "holds", "holds")),
        (lambda: directed((1, 0, 2)), ("does not hold", "holds", "does not hold")),
        (lambda: directed(sharpness=1e-3), ("holds", "does not hold", "does not hold")),
        (unread, ("holds", "holds", "does not hold")),
        (lambda: untrained(200.0), ("holds", "holds", "open")),
    ],
    ids=["directed", "tied", "even", "without use", "untrained and sharp"],
)
def test_every_part_of_claim_0_holds_for_one_model_and_not_for_another(
    network: Any, expected: tuple[str, ...]
) -> None:
    loaded = opened(network())
    ranked = headscope.rank(loaded, text=as_plain(LINES), validate=False)
    moved = headscope.symmetric(loaded, LINES, alone=False, validate=False)
    found = asymmetry.judge(Evidence(rank=ranked, symmetric=moved), T)
    assert tuple(parts(found)[name] for name in (WEIGHTS, PATTERNS, OUTPUT)) == expected, (
        found.parts
    )
