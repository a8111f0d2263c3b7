"""How a command becomes a function of Python: ``headscope.classify(model, limit=20)``.

A command is written as a class of options (``ClassifyOptions``), a class of results, and a module
with ``run(model, options)``. :func:`entry` makes the public function of these three. The rest of
the file is that function's signature, its errors and its docstring.

``ordered(options_type)`` gives the declared options by name, in the order in which help shows them.
Each has its ``kind`` (the type), its ``default``, and a ``marker``: what the class says of it in
``Annotated[..., Option(help=...)]``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from headscope.core.errors import UnusedOptionError, nearest
from headscope.session.options import ModelOptions, RunOptions, ordered

if TYPE_CHECKING:
    from torch import nn

    from headscope.models.run.loaded import LoadedModel

    Model = str | Path | LoadedModel | nn.Module

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
#: Flags of the command line by whose names users call options in Python, and the options' names.
_PYTHON_NAMES = {"treebank": "corpus", "text": "corpus", "no_validate": "validate"}

_DOCSTRING_END = """
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
    options_class: Callable[P, Options], result_class: type[Result], run_module: str
) -> Callable[Concatenate[Model, P], Result]:
    """Make the public function that builds the options and calls ``run(model, options)``.

    ``run_module`` is the name of the module that has the function ``run``; it is loaded when first
    called. The command line, which has built the options already, passes them as ``options=``.
    """
    # It is declared as what it is called with and returns, so that type checkers know the options
    # of the public function.
    options_type = cast("type[ModelOptions]", options_class)
    name = _command_name(options_type)
    signature = _signature(options_type, result_class)

    def function(*arguments: Any, options: ModelOptions | None = None, **keywords: Any) -> Any:
        _refuse_unused(options_type, arguments, keywords)
        values = signature.bind(*arguments, **keywords).arguments
        model = values.pop("model")
        if options is None:
            # Results say which command made them.
            options = options_type(**{"command": f"headscope.{name}", **values})
        elif values or not isinstance(options, options_type):
            raise UnusedOptionError(
                f"{name}() takes options, a {options_type.__name__}, in place of single ones; "
                "give one of the two."
            )

        from headscope.models.run.implementation import quiet_transformers
        from headscope.models.run.products import full_precision

        module = importlib.import_module(run_module)
        with full_precision(), quiet_transformers(), _shown_in_notebook(options) as options:
            return module.run(model, options)

    function.__name__ = name
    function.__qualname__ = name
    function.__module__ = "headscope"
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(options_type, result_class)
    function.options = options_type  # type: ignore[attr-defined]
    return cast("Callable[Concatenate[Model, P], Result]", function)


def _command_name(options_type: type[ModelOptions]) -> str:
    """Return ``classify`` for ``ClassifyOptions``."""
    return options_type.__name__.removesuffix("Options").lower()


def _signature(options_type: type[ModelOptions], result_class: type) -> inspect.Signature:
    """Return the signature of the public function: the model, and every option of the class."""
    hints = typing.get_type_hints(options_type)  # types themselves in place of their names
    fields = inspect.signature(options_type).parameters
    parameters = [fields[name].replace(annotation=hints[name]) for name in ordered(options_type)]
    # Positional parameters before those that are keywords only; else the order stays.
    parameters.sort(key=lambda parameter: parameter.kind)
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([model, *parameters], return_annotation=result_class)


def _refuse_unused(
    options_type: type[ModelOptions], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Refuse unknown options, and options of loading for a model that is in memory already.

    ``arguments`` and ``keywords`` are those of the call; the model is the first argument or
    ``keywords["model"]``.
    """
    name = _command_name(options_type)
    declared = ordered(options_type)
    model = arguments[0] if arguments else keywords.get("model")
    in_memory = model is not None and not isinstance(model, str | Path)
    for option in keywords:
        if option == "model":
            continue
        if option not in declared:
            python_name = _PYTHON_NAMES.get(option, option)
            meant = nearest(python_name, ["model", *declared], "it takes")
            raise UnusedOptionError(f"{name}() got an unexpected option {option!r}; {meant}")
        # Pooling can be changed in memory too.
        for_loading = declared[option].marker.loading and option != "pooling"
        if in_memory and for_loading:
            raise UnusedOptionError(
                f"{name}() got {option!r}, which is for loading, but its model is in memory "
                "already; give it to headscope.load."
            )


@contextmanager
def _shown_in_notebook(options: ModelOptions) -> Iterator[ModelOptions]:
    """In a notebook, yield options whose progress is shown below the cell.

    Elsewhere, and where the caller has set ``progress`` or the command has none, yield them as they
    are.
    """
    in_notebook = "ipykernel" in sys.modules
    if not (in_notebook and isinstance(options, RunOptions) and options.progress is None):
        yield options
        return
    from headscope.show.notebook import progress_bar

    with progress_bar(_command_name(type(options)), options.step_seconds()) as progress:
        yield dataclasses.replace(options, progress=progress)


def _docstring(options_type: type[ModelOptions], result: type) -> str:
    """Write the page that ``help()`` shows: the class's own words, and a line for each option."""
    summary, _, examples = (inspect.getdoc(options_type) or "").partition("\nExamples\n--------\n")
    lines = [
        summary.strip(),
        "",
        "Parameters",
        "----------",
        "model : str, path, LoadedModel",
        "    What :func:`headscope.load` returned, or a name.",
    ]
    for option in ordered(options_type).values():
        type_name = _type_words(option.kind)
        default = "optional" if option.default in (None, "") else f"default {option.default!r}"
        lines += [f"{option.name} : {type_name}, {default}"]
        help_text = option.marker.python_help or option.marker.help
        lines += textwrap.wrap(help_text, 90, initial_indent="    ", subsequent_indent="    ")
    frame = "; ``.to_frame()`` gives pandas" if hasattr(result, "to_frame") else ""
    lines += _DOCSTRING_END.format(result=result.__name__, frame=frame).splitlines()
    if examples:
        lines += ["", "Examples", "--------", examples]
    return "\n".join(lines)


def _type_words(kind: Any) -> str:
    """Write a type as numpydoc does: ``str, Path or list of str``."""
    arguments = typing.get_args(kind)
    alternatives = [_type_words(argument) for argument in arguments if argument is not type(None)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        *all_but_last, last = alternatives
        return f"{', '.join(all_but_last)} or {last}" if all_but_last else last
    if typing.get_origin(kind) is Sequence:
        return f"list of {alternatives[0]}"
    name = getattr(kind, "__name__", None) or "value"
    return re.sub(r"(\w+\.)+(?=\w)", "", name)  # without modules: torch.Tensor -> Tensor
