"""Take a model in any form that a user may have it in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from headscope.core.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load, wrap
from headscope.session.memory import Needs, check_memory

#: ``demo``, a folder, a hub id, what :func:`headscope.load` returned, or a transformers model.
Model = str | Path | LoadedModel | nn.Module


def open_model(
    model: Model, *, pooling: str | None = None, needs: Needs | None = None, **options: Any
) -> LoadedModel:
    """Open a name or folder; pass a :class:`LoadedModel` through; wrap a model in memory.

    Raises InputError where the memory that the run ``needs`` beside it is not free.
    """
    opened = _opened(model, pooling, **options)
    if needs is not None:
        check_memory(opened, needs)
    return opened


def _opened(model: Model, pooling: str | None, **options: Any) -> LoadedModel:
    if isinstance(model, str | Path):
        return load(str(model), pooling=pooling, **options)
    if not isinstance(model, LoadedModel):
        if not (hasattr(model, "config") and hasattr(model, "parameters")):
            raise InputError(
                f"{type(model).__name__} is not a model: give a folder, a hub id, 'demo', what "
                "headscope.load returned, or a transformers model."
            )
        model = wrap(model)
    return model if pooling is None else model.pooled_by(pooling)


def open_for_tasks(model: Model, **options: Any) -> LoadedModel:
    """Open a model as :func:`open_model` does, with the task head that its checkpoint has."""
    return open_model(model, **{"task_head": "auto", **options})


def need_tokenizer(loaded: LoadedModel, command: str) -> None:
    """Refuse a model without the tokenizer that ``command`` reads text with."""
    if loaded.tokenizer is None:
        raise InputError(f"{command} needs the model's tokenizer; load it with headscope.load.")
