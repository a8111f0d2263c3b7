"""Take a model in any form that a user may have it in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.models.loading import LoadedModel, load, wrap

__all__ = ["open_model"]


def open_model(model: str | Path | LoadedModel | Any, **options: Any) -> LoadedModel:
    """Open a name or folder; pass a :class:`LoadedModel` through; wrap a model in memory.

    Raises
    ------
    InputError
        If ``model`` is none of these.
    """
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, str | Path):
        return load(str(model), **options)
    if hasattr(model, "config") and hasattr(model, "parameters"):
        return wrap(model)
    raise InputError(
        f"{type(model).__name__} is not a model: give a folder, a hub id, 'demo', what "
        "headscope.load returned, or a transformers model."
    )
