"""Take a model in any form that a user may have it in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from headscope.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load, wrap

#: ``demo``, a folder, a hub id, what :func:`headscope.load` returned, or a transformers model.
Model = str | Path | LoadedModel | nn.Module


def open_model(model: Model, *, pooling: str | None = None, **options: Any) -> LoadedModel:
    """Open a name or folder; pass a :class:`LoadedModel` through; wrap a model in memory.

    Parameters
    ----------
    model : str, path, LoadedModel or nn.Module
        The model.
    pooling : str, optional
        How it embeds a text, in place of its own way: ``mean``, ``cls``, ``max`` or ``weighted``.
    **options
        What :func:`headscope.load` takes besides, for a name or folder.

    Raises
    ------
    InputError
        If ``model`` is none of these, or there is no such pooling.
    """
    if isinstance(model, str | Path):
        return load(str(model), pooling=pooling, **options)
    if isinstance(model, LoadedModel):
        return model if pooling is None else model.pooled_by(pooling)
    if hasattr(model, "config") and hasattr(model, "parameters"):
        return wrap(model) if pooling is None else wrap(model).pooled_by(pooling)
    raise InputError(
        f"{type(model).__name__} is not a model: give a folder, a hub id, 'demo', what "
        "headscope.load returned, or a transformers model."
    )


def open_for_tasks(model: Model, **options: Any) -> LoadedModel:
    """Open a model as :func:`open_model` does, with the task head that its checkpoint has."""
    return open_model(model, **{"task_head": "auto", **options})


def need_tokenizer(loaded: LoadedModel, command: str) -> None:
    """Refuse a model without the tokenizer that ``command`` reads text with."""
    if loaded.tokenizer is None:
        raise InputError(f"{command} needs the model's tokenizer; load it with headscope.load.")
