"""Take a model in any form that a user may have it in."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torch import nn

from headscope.core.errors import InputError, UnusedOptionError, nearest
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load, wrap
from headscope.models.products import full_precision
from headscope.models.routing import quiet_transformers

#: ``demo``, a folder, a hub id, what :func:`headscope.load` returned, or a transformers model.
Model = str | Path | LoadedModel | nn.Module
#: What loading takes and a function may pass on; what it needs of a tokenizer it knows itself.
_LOADING = set(inspect.signature(load).parameters) - {"model", "need_tokenizer"}
#: What options of the command line are called in Python, where no spelling shows it.
_IN_PYTHON = {"treebank": "corpus", "text": "corpus", "no_validate": "validate"}
Given = ParamSpec("Given")
Made = TypeVar("Made")


def public_function(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Make a function that takes a model, and ``**options`` for loading it, one of the API's.

    Options that neither the function nor loading has are refused by name, and so are those of
    loading where the model is in memory already: they would do nothing. What is computed is
    computed in :func:`headscope.models.products.full_precision`.
    """
    own = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Given.args, **keywords: Given.kwargs) -> Made:
        model = args[0] if args else keywords.get("model")
        in_memory = not isinstance(model, str | Path | None)
        _check_options(function.__name__, own, keywords, in_memory)
        with full_precision(), quiet_transformers():
            return function(*args, **keywords)

    return checked


def _check_options(
    function: str, own: Iterable[str], given: Iterable[str], in_memory: bool
) -> None:
    """Refuse names that the function has not, and that loading has not or that come too late."""
    own = [name for name in own if name != "options"]
    for name in given:
        if name in own or (name == "pooling" and in_memory):
            continue
        if name not in _LOADING:
            called = _IN_PYTHON.get(name, name)
            hint = nearest(called, [*own, *sorted(_LOADING - set(own))], "it takes")
            raise UnusedOptionError(f"{function}() got an unexpected option {name!r}; {hint}")
        if in_memory:
            raise UnusedOptionError(
                f"{function}() got {name!r}, which is for loading, but its model is in memory "
                "already; give it to headscope.load."
            )


def open_model(model: Model, *, pooling: str | None = None, **options: Any) -> LoadedModel:
    """Open a name or folder; pass a :class:`LoadedModel` through; wrap a model in memory."""
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
