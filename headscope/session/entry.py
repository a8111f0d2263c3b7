"""The way in from Python: a public function made of an options class and the module that runs."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from headscope.core.errors import UnusedOptionError, nearest
from headscope.core.options import Declared
from headscope.session.options import ordered

if TYPE_CHECKING:
    from torch import nn

    from headscope.models.loaded import LoadedModel

    Model = str | Path | LoadedModel | nn.Module

P = ParamSpec("P")
Chosen = TypeVar("Chosen")
Result = TypeVar("Result")
#: What other commands, and the command line, call an option that has another name here.
_ELSEWHERE = {"treebank": "corpus", "text": "corpus", "no_validate": "validate"}

_REST = """
Returns
-------
{result}
    Frozen raw values; ``.to_frame()`` gives pandas.

Raises
------
InputError
    For a model, file or option that cannot be used.
UnsupportedModelError
    If the model has nothing that can be measured.
ValidationFailedError
    If our attention does not equal the model's."""


def entry(
    options: Callable[P, Chosen], result: type[Result], run: str
) -> Callable[Concatenate[Model, P], Result]:
    """Make the public function that opens the options' class and calls ``run(model, options)``.

    ``run`` names the module, and perhaps its function, loaded when first called. Names that are no
    options are refused, and so are options of loading where the model is in memory already.
    Computed is in full precision.
    """
    kind = cast(type, options)
    name = kind.__name__.removesuffix("Options").lower()
    declared = ordered(kind)
    module, _, inner = run.partition(":")
    signature = _signature(kind, declared, result)

    def function(*args: Any, **keywords: Any) -> Any:
        place = args[0] if args else keywords.get("model")
        in_memory = not isinstance(place, str | Path | None)
        _check_names(name, declared, keywords, in_memory)
        values = signature.bind(*args, **keywords).arguments
        opened = values.pop("model")
        values.setdefault("command", f"headscope.{name}")
        chosen = kind(**values)
        from headscope.models.products import full_precision
        from headscope.models.routing import quiet_transformers

        with full_precision(), quiet_transformers():
            return getattr(importlib.import_module(module), inner or "run")(opened, chosen)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "headscope"
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(kind, declared, result)
    function.options = kind  # type: ignore[attr-defined]
    return cast("Callable[Concatenate[Model, P], Result]", function)


def _signature(kind: type, declared: dict[str, Declared], result: type) -> inspect.Signature:
    """Return the class's signature behind a model, with types as they are read."""
    hints = typing.get_type_hints(kind)
    own = inspect.signature(kind).parameters
    parameters = [own[name].replace(annotation=hints[name]) for name in declared]
    parameters.sort(key=lambda parameter: parameter.kind)  # stable: what has a place comes first
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([model, *parameters], return_annotation=result)


def _check_names(
    function: str, declared: dict[str, Declared], names: Iterable[str], in_memory: bool
) -> None:
    """Refuse names that the function has not, and options of loading that come too late."""
    for name in names:
        if name == "model":
            continue
        if name not in declared:
            known = sorted(declared, key=lambda other: declared[other].marker.loading)
            hint = nearest(_ELSEWHERE.get(name, name), ["model", *known], "it takes")
            raise UnusedOptionError(f"{function}() got an unexpected option {name!r}; {hint}")
        if in_memory and declared[name].marker.loading and name != "pooling":
            raise UnusedOptionError(
                f"{function}() got {name!r}, which is for loading, but its model is in memory "
                "already; give it to headscope.load."
            )


def _docstring(kind: type, declared: dict[str, Declared], result: type) -> str:
    """Write the page that ``help()`` shows: the class's own words, and a line for each option."""
    text, _, examples = (inspect.getdoc(kind) or "").partition("\nExamples\n--------\n")
    lines = [
        *(text.strip(), "", "Parameters", "----------"),
        *("model : str, path, LoadedModel", "    What :func:`headscope.load` returned, or a name."),
    ]
    for option in declared.values():
        type_name = re.sub(r"(\w+\.)+(?=\w)", "", getattr(option.kind, "__name__", None) or "value")
        default = "optional" if option.default in (None, "") else f"default {option.default!r}"
        lines += [f"{option.name} : {type_name}, {default}"]
        said = option.marker.python_help or option.marker.help
        lines += textwrap.wrap(said, 90, initial_indent="    ", subsequent_indent="    ")
    lines += _REST.format(result=result.__name__).splitlines()
    return "\n".join([*lines, *(["", "Examples", "--------", examples] if examples else [])])
