"""Take a model in any form that a user may have it in: a name, a folder, or an object in memory.

:func:`open_model` is for commands that need the model alone, :func:`open_for_tasks` for those that
measure it on a task.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from headscope.core.errors import InputError
from headscope.core.memory import check_memory
from headscope.models.load.loading import load
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import wrap

#: ``demo``, a folder, a hub id, what :func:`headscope.load` returned, or a transformers model.
Model = str | Path | LoadedModel | nn.Module
#: Estimates the memory of a run. Takes the bytes of the model's weights; returns the bytes that the
#: run needs besides them, and, for each option that may be turned off, the bytes without it:
#: (5e8, {"control": 3e8}).
Needs = Callable[[int], tuple[float, dict[str, float]]]


def open_model(
    model: Model, *, pooling: str | None = None, needs: Needs | None = None, **options: Any
) -> LoadedModel:
    """Open a name or folder, wrap a model in memory, or pass a :class:`LoadedModel` through.

    ``pooling`` and ``options`` are those of :func:`headscope.load`. Raises InputError if the memory
    that the run ``needs`` is not free.
    """
    if isinstance(model, str | Path):
        model = load(str(model), pooling=pooling, **options)
        pooling = None  # done
    if not isinstance(model, LoadedModel):
        model = wrap(model)
    if needs is not None and model.device == "cpu":
        weight_bytes = sum(weight.nbytes for weight in model.network.parameters())
        needed_bytes, bytes_without_option = needs(weight_bytes)
        check_memory(model.name, needed_bytes, bytes_without_option)
    return model if pooling is None else model.pooled_by(pooling)


def open_for_tasks(model: Model, *, task: str | None = None, **options: Any) -> LoadedModel:
    """Open a model as :func:`open_model` does, with the task head that its checkpoint names.

    A *task head* is what stands on the base model, such as a classifier. For the tasks ``mlm`` and
    ``lm``, a head that config.json does not name is opened too, if the weights hold one.
    """
    loaded = open_model(model, **{"task_head": "auto", **options})
    unnamed_head = _unnamed_head(loaded, task)
    if unnamed_head is not None and isinstance(model, str | Path):
        loaded = open_model(model, **{**options, "task_head": unnamed_head})
    reads_last_token = loaded.task_head == "classification" and loaded.stacks == ("decoder",)
    if reads_last_token and getattr(loaded.model.config, "pad_token_id", None) is None:
        raise InputError(
            f"The config of {loaded.name} has no pad_token_id, by which transformers finds the "
            "last token of each text to classify it; add it to config.json."
        )
    return loaded


def _unnamed_head(loaded: LoadedModel, task: str | None) -> str | None:
    """Return the head that a task needs and that config.json did not name; None for no other."""
    if loaded.task_head is not None:
        return None
    weights = loaded.head_weights
    if task == "mlm" and weights is not None and weights.unread:
        return "mlm"
    # Of a decoder the unembedding is often the embedding, and then no weight of its own.
    return "causal" if task in ("lm", "lm-accuracy") and loaded.stacks == ("decoder",) else None


def need_tokenizer(loaded: LoadedModel, command: str) -> None:
    """Refuse a model without the tokenizer that ``command`` reads text with."""
    if loaded.tokenizer is None:
        raise InputError(f"{command} needs the model's tokenizer; load it with headscope.load.")
