"""Sizes that a config.json states, held against the weights beside it.

A few bytes of a config can ask for terabytes: transformers builds the network that the config
describes, and fills the weights that the checkpoint lacks at random. So a config is refused first
by the numbers in it (:func:`check_stated`), then by the size of its network, built without memory
for its weights (:func:`check_built`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscope.core.errors import CheckpointError
from headscope.models.load.checkpoint import Checkpoint

#: Settings that say how often a part is built, such as ``num_hidden_layers``; what has a size for
#: each layer (``vocab_size_per_layer_input``) is none.
_REPEATS = re.compile(
    r"^(?!.*size)(?:.*layer|.*heads?$|.*head_num|.*blocks?$|.*groups?$|.*depth|.*num_experts"
    r"|.*n_memory)"
)
#: Settings that say how large a part is, such as ``hidden_size``.
_EXTENTS = re.compile(
    r"size|dim|positions?|position_embeddings|d_model|d_ff|d_kv|ffn|n_embd|n_inner|n_ctx|width"
    r"|buckets|kernel|stride|length|window|labels|num_|^n_"
)
#: Settings with such a name that are no sizes, such as ``pad_token_id`` or ``rope_theta``.
_NO_SIZES = re.compile(r"theta|param|step|sample|seed|_id$")
#: Sizes that any config may state, whatever the weights.
_REPEATS_AT_LEAST = 1000
_EXTENT_AT_LEAST = 1 << 20
#: A network may be at most this many times as large as what is stored (tied, shared, computed or
#: pruned weights are stored once or never), and this many numbers larger.
_TIMES = 16
_MORE = 1 << 24


def check_stated(checkpoint: Checkpoint) -> None:
    """Refuse a config.json that states a size no weights of this folder can have."""
    shapes = [shape for _, shape in checkpoint.stored.values()]
    longest_axis = max(itertools.chain(*shapes), default=0)
    limits = {
        _REPEATS: max(_REPEATS_AT_LEAST, len(shapes)),
        _EXTENTS: max(_EXTENT_AT_LEAST, 4 * longest_axis),
    }
    path = checkpoint.folder / "config.json"
    for key, value in _numbers(checkpoint.stated):
        if _NO_SIZES.search(key):
            continue
        kind = next((kind for kind in limits if kind.search(key)), None)
        if kind is not None and abs(value) > limits[kind]:
            raise _too_large(path, f"{key} is {str(value)[:20]}")


def check_built(checkpoint: Checkpoint, build: Callable[[], nn.Module]) -> None:
    """Refuse a config.json whose network is far larger than the weights of the folder."""
    shapes = [shape for _, shape in checkpoint.stored.values()]
    try:
        with torch.device("meta"):  # shapes alone, no memory
            network = build()
    except (
        Exception
    ):  # the same error is raised, and reported, where the network is built to be used
        return
    tensors = itertools.chain(network.parameters(), network.buffers())
    needed = sum(tensor.numel() for tensor in tensors)
    stored = sum(map(math.prod, shapes))
    if needed > _TIMES * stored + _MORE:
        path = checkpoint.folder / "config.json"
        raise _too_large(path, f"its network has {needed:.3g} numbers, the weights {stored:.3g}")


def _too_large(path: Path, why: str) -> CheckpointError:
    """Return the error for a config that describes a larger model than its weights are of."""
    return CheckpointError(
        f"{path} does not belong to the weights beside it ({why}); download the model again."
    )


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    """Yield every number of a config with its key, those of nested objects and lists too."""
    pending: list[tuple[str, Any]] = [("", values)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            pending += [(str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(key, item) for item in value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value
