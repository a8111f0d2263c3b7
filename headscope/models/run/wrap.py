"""Make a network in memory ready to be measured: a new one, or a changed copy of a model."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from headscope.core.errors import HeadscopeError, UnsupportedModelError
from headscope.models.layouts.families import refuse
from headscope.models.layouts.sites import find_sites
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import task_head_of


def wrap(network: Any, tokenizer: Any | None = None, *, name: str = "in memory") -> LoadedModel:
    """Make a transformers model that is already in memory ready to be measured.

    Raises
    ------
    UnsupportedModelError
        If it is of a family that cannot be covered, wants more than text, or is no model of text.
    """
    config = network.config
    refuse(config.model_type, name)
    whole, network = network.eval(), getattr(network, "base_model", network)
    task_head = task_head_of(type(whole).__name__)
    if getattr(network.get_input_embeddings(), "num_embeddings", None) is None:
        raise UnsupportedModelError(f"{name} ({config.model_type}) is not a model of text.")
    parameter = next(network.parameters())
    dtype, device = str(parameter.dtype).removeprefix("torch."), str(parameter.device)
    outer = whole if task_head else network
    loaded = LoadedModel(name, network, outer, tokenizer, (), task_head, dtype, device)
    encoder = network.get_encoder() if loaded.encoder_decoder else None
    try:
        loaded.sites = find_sites(network, loaded.run_tiny, encoder)
    except HeadscopeError:
        raise
    except Exception as error:  # whatever a family raises that wants more than token ids
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnsupportedModelError(
            f"{name} ({config.model_type}) does not run on token ids alone, and headscope feeds "
            f"nothing else; transformers says: {said}"
        ) from error
    return loaded


def copied_network(loaded: LoadedModel, *, share: bool) -> Any:
    """Copy a model's network; with ``share`` the copy uses the model's own weights."""
    weights = (*loaded.network.parameters(), *loaded.network.buffers()) if share else ()
    return copy.deepcopy(loaded.network, {id(tensor): tensor for tensor in weights})


def as_before(changed: LoadedModel, loaded: LoadedModel) -> LoadedModel:
    """Give a changed copy of a model the model's history, and its view of one stack."""
    copied = dataclasses.replace(
        changed,
        revision=loaded.revision,
        folder=loaded.folder,
        pooling=loaded.pooling,
        origin=origin_of(loaded),
    )
    return copied if loaded.whole is None else copied.only(loaded.stacks[0])


def origin_of(loaded: LoadedModel) -> dict[str, Any]:
    """Return id, revision and weights of the model that this one is, or was made from."""
    return loaded.origin or {
        "id": loaded.name,
        "revision": loaded.revision,
        "weights_sha256": loaded.weights_sha256,
    }
