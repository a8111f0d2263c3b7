"""Make a :class:`LoadedModel` of a network in memory: a user's, or a changed copy of a model's.

:func:`wrap` does so; the other functions are for copies that lose heads, layers or neurons.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError, reason
from headscope.models.layouts.families import COVERED, other_input, refuse
from headscope.models.layouts.sites import attention_modules, find_sites
from headscope.models.run.handed import as_handed_over, remarks
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.run.task_heads import task_head_of


def wrap(network: Any, tokenizer: Any | None = None, *, name: str = "in memory") -> LoadedModel:
    """Make a transformers model that is already in memory ready to be measured.

    Raises
    ------
    InputError, UnsupportedModelError
        If it is no transformers model, of a family that cannot be covered, wants more than text, or
        is no model of text.
    """
    if not hasattr(getattr(network, "config", None), "model_type"):
        raise InputError(
            f"{type(network).__name__} is not a transformers model; headscope.load opens a folder, "
            "a hub id or 'demo'."
        )
    family = network.config.model_type
    refuse(family, name)
    network.eval()
    base = getattr(network, "base_model", network)
    inner = getattr(network, "model", None)
    if base is network and hasattr(inner, "base_model"):  # Llama 4, under another name
        base = inner
    table = None
    with suppress(NotImplementedError):  # by models that also see or hear
        table = base.get_input_embeddings()
    if getattr(table, "num_embeddings", None) is None:
        why = other_input(base) or "it has no embedding of tokens"
        raise UnsupportedModelError(f"{name} ({family}) is not a model of text: {why}.")

    # Describe it, and find its attention sites by running three tokens.
    task_head = task_head_of(type(network).__name__)
    if task_head == "seq2seq" and not getattr(network.config, "is_encoder_decoder", False):
        task_head = "causal"  # as Gemma 3 and others are called that read images too
    parameter = next(base.parameters())
    if parameter.dtype == torch.float64 and getattr(base.config, "_experts_implementation", None):
        network.set_experts_implementation("eager")  # grouped products of experts know no float64
    for attention in attention_modules(base):
        attention.layout.mend(attention.module, parameter.dtype)
    loaded = LoadedModel(
        name=name,
        model=base,
        network=network if task_head else base,
        tokenizer=tokenizer,
        sites=(),
        task_head=task_head,
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
    )
    encoder = base.get_encoder() if loaded.encoder_decoder else None
    try:
        loaded.sites = find_sites(base, loaded.run_tiny, encoder)
        if family not in COVERED:
            loaded.sites = as_handed_over(loaded, loaded.sites, encoder)
            loaded.remarks = tuple(remarks(loaded))
    except HeadscopeError:
        raise
    except Exception as error:  # whatever a family raises that wants more than token ids
        why = other_input(base) or f"transformers says: {reason(error)}"
        in_float64 = " in float64" if loaded.dtype == "float64" else ""  # which XGLM cannot
        raise UnsupportedModelError(
            f"{name} ({family}) does not run{in_float64} on token ids alone, and headscope feeds "
            f"nothing else; {why.rstrip('.')}."
        ) from error
    return loaded


def copied_network(loaded: LoadedModel, *, share: bool) -> Any:
    """Copy a model's network; with ``share`` the copy uses the model's own weights."""
    # deepcopy notes by their id which objects it has copied: those in here it does not copy.
    memo: dict[int, Any] = {}
    if share:
        for tensor in (*loaded.network.parameters(), *loaded.network.buffers()):
            memo[id(tensor)] = tensor
    return copy.deepcopy(loaded.network, memo)


def as_before(changed: LoadedModel, loaded: LoadedModel) -> LoadedModel:
    """Give a changed copy of ``loaded`` its origin, folder and pooling, and its view of a stack."""
    copied = replace(
        changed,
        revision=loaded.revision,
        folder=loaded.folder,
        pooling=loaded.pooling,
        origin=origin_of(loaded),
    )
    return copied if loaded.view_of is None else copied.only(loaded.stacks[0])
