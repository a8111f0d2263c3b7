"""The way in from Python: a public function made of an options class and the module that runs."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from headscope.core.errors import UnusedOptionError, nearest
from headscope.session.options import ModelOptions, ordered

if TYPE_CHECKING:
    from torch import nn

    from headscope.models.run.loaded import LoadedModel

    Model = str | Path | LoadedModel | nn.Module

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
#: Options of the command line by their name in Python, where that is another one.
_IN_PYTHON = {"treebank": "corpus", "text": "corpus", "no_validate": "validate"}

_REST = """
Returns
-------
{result}
    Frozen raw values{frame}.

Raises
------
InputError
    For a model, file or option that cannot be used.
UnsupportedModelError
    If the model has nothing that can be measured.
ValidationFailedError
    If our attention does not equal the model's."""


def entry(
    options: Callable[P, Options], result: type[Result], run: str
) -> Callable[Concatenate[Model, P], Result]:
    """Make the public function that builds the options and calls ``run(model, options)``.

    ``run`` names the module that has the function ``run``; it is loaded when first called.
    """
    kind = cast("type[ModelOptions]", options)
    name = kind.__name__.removesuffix("Options").lower()
    hints = typing.get_type_hints(kind)
    fields = inspect.signature(kind).parameters
    declared = ordered(kind)
    parameters = [fields[option].replace(annotation=hints[option]) for option in declared]
    parameters.sort(key=lambda parameter: parameter.kind)  # stable; positional ones come first
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([model, *parameters], return_annotation=result)

    def function(*args: Any, **keywords: Any) -> Any:
        values = signature.bind(*args, **keywords).arguments
        opened = values.pop("model")
        chosen = kind(**{"command": f"headscope.{name}", **values})
        module = importlib.import_module(run)
        if "progress" not in fields or values.get("progress") or "ipykernel" not in sys.modules:
            return module.run(opened, chosen)
        from headscope.show.notebook import progress_bar

        with progress_bar(name, chosen.step_names()) as tell:
            return module.run(opened, kind(**{**vars(chosen), "progress": tell}))

    function.__name__ = function.__qualname__ = name
    function.__module__ = "headscope"
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(kind, result)
    names = ["model", *(option for option in declared if not declared[option].marker.loading)]
    checked = _checked(function, names)
    checked.options = kind  # type: ignore[attr-defined]
    return cast("Callable[Concatenate[Model, P], Result]", checked)


def public(function: Callable[P, Result]) -> Callable[P, Result]:
    """Check the names of options, as :func:`entry` does, of a function written by hand.

    Its ``**options`` are those of loading.
    """
    names = [name for name in inspect.signature(function).parameters if name != "options"]
    return _checked(function, names)


def _checked(function: Callable[P, Result], names: Sequence[str]) -> Callable[P, Result]:
    """Refuse options that are neither in ``names`` nor of loading, and compute in float32.

    Options of loading are refused too where the model is in memory already.
    """
    loading = [name for name, o in ordered(ModelOptions).items() if o.marker.loading]

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> Result:
        in_memory = not isinstance(args[0] if args else keywords.get("model"), str | Path | None)
        for name in keywords:
            if name in names or (name == "pooling" and in_memory):
                continue
            if name not in loading:
                called = _IN_PYTHON.get(name, name)
                hint = nearest(called, [*names, *sorted(loading)], "it takes")
                raise UnusedOptionError(
                    f"{function.__name__}() got an unexpected option {name!r}; {hint}"
                )
            if in_memory:
                raise UnusedOptionError(
                    f"{function.__name__}() got {name!r}, which is for loading, but its model is "
                    "in memory already; give it to headscope.load."
                )
        from headscope.models.run.products import full_precision
        from headscope.models.run.routing import quiet_transformers

        with full_precision(), quiet_transformers():
            return function(*args, **keywords)

    return checked


def _type_words(kind: Any) -> str:
    """Write a type as numpydoc does: ``str, Path or list of str``."""
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return re.sub(r"(.*), ", r"\1 or ", ", ".join(map(_type_words, parts)))
    if typing.get_origin(kind) is Sequence:
        return f"list of {_type_words(parts[0])}"
    return re.sub(r"(\w+\.)+(?=\w)", "", getattr(kind, "__name__", None) or "value")


def _docstring(kind: type[ModelOptions], result: type) -> str:
    """Write the page that ``help()`` shows: the class's own words, and a line for each option."""
    text, _, examples = (inspect.getdoc(kind) or "").partition("\nExamples\n--------\n")
    lines = [
        text.strip(),
        "",
        "Parameters",
        "----------",
        "model : str, path, LoadedModel",
        "    What :func:`headscope.load` returned, or a name.",
    ]
    for option in ordered(kind).values():
        type_name = _type_words(option.kind)
        default = "optional" if option.default in (None, "") else f"default {option.default!r}"
        lines += [f"{option.name} : {type_name}, {default}"]
        help_text = option.marker.python_help or option.marker.help
        lines += textwrap.wrap(help_text, 90, initial_indent="    ", subsequent_indent="    ")
    frame = "; ``.to_frame()`` gives pandas" if hasattr(result, "to_frame") else ""
    lines += _REST.format(result=result.__name__, frame=frame).splitlines()
    return "\n".join([*lines, *(["", "Examples", "--------", examples] if examples else [])])
