"""Norms of queries and keys: what is folded into the maps, and what a removed head leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny
from torch import Tensor

import headscope
from headscope.models.layouts.normed import HeadNorm
from headscope.models.run.loaded import LoadedModel

NORMED = ("qwen3", "gemma3_text", "olmo2", "phi")


def opened(name: str) -> LoadedModel:
    return headscope.wrap(tiny(name, "float64"))


def directions(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("name", NORMED)
def test_the_folded_maps_make_the_models_queries_and_keys_up_to_their_lengths(name, removed):
    loaded = opened(name)
    for site in loaded.sites:
        for norm in ("q_layernorm", "k_layernorm"):  # a shift is no gain
            if name == "phi":
                torch.nn.init.zeros_(getattr(site.module, norm).bias)
                torch.nn.init.zeros_(site.module.k_proj.bias)  # which no rank reads
    if removed:
        loaded = headscope.remove_heads(loaded, [(1, 1), (1, 2)])
    site = loaded.sites[1]
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = site.module.q_proj(x)
    k = site.module.k_proj(x)
    if name == "olmo2":
        q = site.by_head(site.module.q_norm(q))
        k = site.by_head(site.module.k_norm(k))
    else:
        norms = ("q_layernorm", "k_layernorm") if name == "phi" else ("q_norm", "k_norm")
        q = getattr(site.module, norms[0])(site.by_head(q))
        k = getattr(site.module, norms[1])(site.by_head(k))
    folded = site.folded(site.weights())
    ours_q = x[:, None] @ folded.W_Q + folded.b_Q[:, None]
    ours_k = x[:, None] @ folded.W_K + folded.b_K[:, None]
    if k.shape[1] < q.shape[1]:
        k = k.repeat_interleave(2, dim=1)
    for ours, theirs in ((ours_q, q), (ours_k, k)):
        if name == "olmo2":  # one length for all heads
            ours = ours.transpose(1, 2).flatten(2)
            theirs = theirs.transpose(1, 2).flatten(2)
        torch.testing.assert_close(directions(ours), directions(theirs), rtol=0, atol=1e-6)


def test_a_norm_of_all_heads_reads_those_that_are_removed():
    """Their W_V and W_O go, and their W_Q and W_K stay: without them the others' lengths change."""
    loaded = opened("olmo2")
    cut = headscope.remove_heads(loaded, [(0, 0), (0, 3)])
    before, after = loaded.sites[0], cut.sites[0]
    sizes = {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        sizes[name] = tuple(getattr(after.module, name).weight.shape)
    assert sizes == {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 16)}
    weights = before.weights()
    torch.testing.assert_close(after.weights().W_Q, weights.W_Q[[1, 2]])
    torch.testing.assert_close(after.weights().W_K, weights.W_K[[1, 2]])


def test_models_without_norms_have_nothing_to_fold():
    site = opened("llama").sites[0]
    weights = site.weights()
    assert site.folded(weights) is weights
    step: Any = HeadNorm()
    assert step.fold(site, weights) is weights
