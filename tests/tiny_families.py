"""Tiny random models of every supported family, in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {"hidden_dim": 48}),
    "electra": ("electra", {"embedding_size": 16}),
    "albert": ("albert", {"embedding_size": 16}),
    "albert, two groups": ("albert", {"embedding_size": 16, "num_hidden_groups": 2}),
    "xlm-roberta": ("xlm-roberta", {}),
    "camembert": ("camembert", {}),
    "bert, two wide heads": ("bert", {"num_attention_heads": 2, "num_hidden_layers": 2}),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def tiny(family: str, dtype: str = "float32", auto: Any = AutoModel, **changes: Any) -> Any:
    """Build a random model whose biases are not zero, so that a lost bias shows."""
    model_type, extra = FAMILIES[family]
    torch.manual_seed(7)
    model = auto.from_config(AutoConfig.for_model(model_type, **{**SIZES, **extra, **changes}))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.3)
    return model.to(getattr(torch, dtype)).eval()


def padded_batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 61, (3, 9), generator=torch.Generator().manual_seed(1))
    valid = torch.ones_like(ids)
    valid[1, 4:] = 0
    valid[2, 7:] = 0
    return ids, valid
