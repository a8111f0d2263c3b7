"""Tiny random encoder-decoder models, a batch that is padded on both sides, zeroed by name."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from covered_families import COVERED
from torch import Tensor

import headscope
from headscope.models.loaded import LoadedModel

KINDS = ("bart", "marian", "pegasus", "mbart", "t5")
each_kind = pytest.mark.parametrize("kind", KINDS)
#: Stacks, layers and how many of each: two layers in the encoder, three in the decoder.
SITES = [("encoder", 0), ("encoder", 1), *((s, n) for s in ("decoder", "cross") for n in range(3))]
D_HEAD = 8

#: A head named in full: (stack, layer, head).
Named = tuple[str, int, int]


def network(kind: str, dtype: str = "float32", **changes: Any) -> Any:
    model = next(family for family in COVERED if family.kind == kind).model(dtype, **changes)
    if kind == "t5":  # biases by position that matter
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                torch.nn.init.normal_(parameter, std=1.5)
    return model


def opened(kind: str, dtype: str = "float32", **changes: Any) -> LoadedModel:
    return headscope.wrap(network(kind, dtype, **changes), name=f"tiny {kind}")


def ids_and_mask(lengths: tuple[int, ...], seed: int, start: int | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 61, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    if start is not None:
        ids[:, 0] = start
    return [ids.masked_fill(mask == 0, 0), mask]


def batch(loaded: LoadedModel) -> dict[str, Tensor]:
    """Three pairs; source and target are of different lengths, and padded in different rows."""
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    target = ids_and_mask((4, 6, 7), 2, loaded.start_id)
    return dict(zip(names, [*ids_and_mask((9, 5, 7), 1), *target], strict=True))


def real(given: dict[str, Tensor]) -> Tensor:
    return given["decoder_attention_mask"].bool()


def run(loaded: LoadedModel, given: dict[str, Tensor]) -> Tensor:
    """Return the decoder's last states of real tokens, by the model's own forward."""
    with torch.no_grad():
        out = loaded.network(**given, output_hidden_states=True)
    last: Tensor = out.decoder_hidden_states[-1]
    return last[real(given)]


def out_name(kind: str, stack: str, layer: int) -> str:
    """Say how transformers calls W_O of a layer, without anything of headscope."""
    side = "encoder" if stack == "encoder" else "decoder"
    if kind == "t5":
        part = "1.EncDecAttention" if stack == "cross" else "0.SelfAttention"
        return f"{side}.block.{layer}.layer.{part}.o.weight"
    part = "encoder_attn" if stack == "cross" else "self_attn"
    return f"model.{side}.layers.{layer}.{part}.out_proj.weight"


def zeroed(kind: str, whole: Any, heads: Iterable[Named]) -> Any:
    """Copy a network with the columns of W_O that belong to some heads set to zero."""
    changed = copy.deepcopy(whole)
    with torch.no_grad():
        for stack, layer, head in heads:
            out = changed.get_parameter(out_name(kind, stack, layer))
            out[:, head * D_HEAD : (head + 1) * D_HEAD] = 0.0
    return changed
