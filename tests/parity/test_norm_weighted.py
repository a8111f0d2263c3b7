"""Norm-weighted attention against slow loops, and labels that it takes from a planted sink."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import COVERED, Family, each_family, padded_batch, tiny
from planted_models import Planted, build_planted
from torch import Tensor, nn
from transformers import BertModel

import headscope
from headscope.measures.activations import Activations
from headscope.models.routing import Router, routed
from headscope.pipeline.classify.norm_weighted import NormWeighted, compare
from headscope.results import ClassifyResult


class Keep:
    """Keeps every chunk, as copies."""

    def __init__(self) -> None:
        self.chunks: list[Activations] = []

    def observe(self, site: Activations) -> None:
        self.chunks.append(site)

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


@torch.no_grad()
def by_loop(pattern: Tensor, v: Tensor, W_O: Tensor) -> Tensor:
    """(query_pos, key_pos): every contribution made as a vector of d_model numbers."""
    out = torch.zeros(pattern.shape, dtype=torch.float64)
    for i, row in enumerate(pattern.double()):
        sizes = [
            float((weight * (v[j].double() @ W_O.double())).norm()) for j, weight in enumerate(row)
        ]
        total = sum(sizes)
        for j, size in enumerate(sizes):
            out[i, j] = size / total if total else 0.0
    return out


def shown(loaded: Any, forward: Any, *, chunk_entries: int = 300) -> tuple[Keep, Keep]:
    """Run a model in small chunks; return what it shows plainly and by norms."""
    plain, weighted = Keep(), Keep()
    observers = [plain, NormWeighted(weighted, loaded.sites)]
    router = Router(loaded.sites, observers, others=loaded.others, chunk_entries=chunk_entries)
    with routed(loaded.model, router) as inside:
        inside.checked(forward)
    return plain, weighted


@pytest.mark.parametrize("family", COVERED, ids=lambda family: family.name)
def test_chunks_are_those_of_a_slow_loop(family: Family) -> None:
    loaded = headscope.wrap(family.model(), name=family.name)
    ids, mask = padded_batch()
    target = (ids[:, :5],) if loaded.encoder_decoder else ()
    plain, weighted = shown(loaded, lambda: loaded.forward(ids, mask, *target))
    sites = {(site.stack, site.layer): site for site in loaded.sites}
    assert len(plain.chunks) == len(weighted.chunks) > len(sites)
    for before, after in zip(plain.chunks, weighted.chunks, strict=True):
        weights = sites[before.stack, before.layer].weights()
        head = range(*before.heads.indices(before.n_heads))[-1]
        wanted = by_loop(before.pattern[-1, -1], before.v[-1, -1], weights.W_O[head])
        torch.testing.assert_close(after.pattern[-1, -1].double(), wanted, rtol=1e-4, atol=1e-6)
        gap = (after.pattern - before.pattern).abs().max()
        assert float(gap) > 1e-4 or before.pattern.shape[-1] == 1


@each_family
def test_values_and_maps_are_those_of_transformers_own_modules(family: str) -> None:
    """v and W_O as hooks on the family's own linear maps see them, b_V included."""
    model = tiny(family)
    loaded = headscope.wrap(model, name=family)
    ids, mask = padded_batch()
    _, weighted = shown(loaded, lambda: loaded.forward(ids, mask), chunk_entries=1 << 19)
    values: list[Tensor] = []
    modules = dict(model.named_modules())
    v_name = next(name for name in modules if name.endswith((".value", ".v_lin")))
    ends = ("attention.output.dense", ".out_lin", "attention.dense")
    maps = [modules[next(name for name in modules if name.endswith(ends))]]
    modules[v_name].register_forward_hook(lambda *given: values.append(given[-1]))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions[0]
    d_head = maps[0].weight.shape[1] // own.shape[1]
    for head in range(own.shape[1]):
        part = slice(head * d_head, (head + 1) * d_head)
        wanted = by_loop(own[0, head], values[0][0, :, part], maps[0].weight[:, part].t())
        found = weighted.chunks[0].pattern[0, head].double()
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


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
def test_a_sink_without_values_loses_its_label_and_any_other_head_keeps_it(
    planted: Planted, sink: bool
) -> None:
    result = headscope.classify(
        with_output(planted, sink=sink),
        planted.treebank,
        frequencies=planted.frequencies,
        limit=120,
        norm_weighted=True,
        validate=False,
    )
    assert result.norms is not None
    by_role = {role.role: role for role in result.norms.roles}
    special = by_role["special"]
    assert special.heads == 1
    assert special.mass is not None
    assert special.norm_mass is not None
    assert special.mass > 0.9
    assert special.kept == (() if sink else ("L1H0",))
    assert special.norm_mass < 0.1 if sink else special.norm_mass > 0.9
    # Heads that look at one word by its place keep their labels in either model.
    assert by_role["positional"].heads == len(by_role["positional"].kept) == 4
    assert ("special" in result.heads[4].roles) is not sink
    assert special.interval[0] <= len(special.kept) <= special.interval[1]


def test_roles_are_compared_by_name(planted: Planted) -> None:
    plain: ClassifyResult = headscope.classify(
        str(planted.folder), planted.treebank, limit=60, validate=False
    )
    other = tuple(plain.heads[:4])
    found = compare(plain.heads, other)
    for role in found.roles:
        mine = [h.name for h in plain.heads if role.role in h.roles]
        assert role.heads == len(mine)
        assert role.kept == tuple(name for name in mine if name.startswith("L0"))
        assert role.gained == ()
        assert role.control_heads is None
    again = compare(other, plain.heads, (plain.heads, other))
    for role in again.roles:
        assert all(not name.startswith("L0") for name in role.gained)
        mine = [h.name for h in plain.heads if role.role in h.roles]
        assert role.control_heads == len(mine)
        assert role.control_kept == sum(name.startswith("L0") for name in mine)
        assert (role.interval == ()) is (role.heads == 0)
        low, high = role.interval or (0.0, 1.0)
        share = len(role.kept) / role.heads if role.heads else np.nan
        assert low <= share <= high or not role.heads
