"""What all commands on a model do: take the shared options, measure, write the folder, print.

A command is a function of the name that it has in ``headscope``. Its parameters are its own
options, its docstring is its help, and its body says what is special about it: often nothing but
``call.run()``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

import headscope
from headscope.cli.arguments import OptionError, arguments
from headscope.cli.made import made_arguments, parameters_of
from headscope.cli.output import command_line, print_result, progress_bar, result_folder
from headscope.cli.settings import given
from headscope.cli.shared_options import OUTPUT, of_every_model_command
from headscope.core.options import OptionError as OptionValueError
from headscope.core.options import options_of
from headscope.errors import ArtefactError
from headscope.session.options import ModelOptions


@dataclass(frozen=True)
class Call:
    """One call of a command, which has the name of its function in ``headscope`` and of its view.

    ``unit`` is what the progress bar counts; None for a function that reports no progress.
    ``values`` are all options by their parameters' names, those that commands share included.
    """

    command: str
    unit: str | None
    context: typer.Context
    values: dict[str, Any]
    options: type | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of the command's function; errors are usage errors."""
        thresholds = given(self.context, self.command).get("thresholds")
        try:
            if self.options is not None:
                return made_arguments(self.options, {**self.values, "thresholds": thresholds})
            return arguments(self.command, {**self.values, "thresholds": thresholds})
        except OptionError as slip:
            raise slip.on_command_line() from None

    def run(
        self,
        keywords: Mapping[str, Any] | None = None,
        *,
        function: Callable[..., Any] | None = None,
        **presentation: Any,
    ) -> Any:
        """Measure, write the folder of ``--output``, print; return the result.

        By default the command's function measures, with the arguments that the options give.
        ``presentation`` is what the command's view understands, such as ``log`` for depth.
        """
        keywords = self.arguments() if keywords is None else keywords
        # This loads torch. It comes before the progress bar, from which on Python looks for garbage
        # as usual.
        function = function or getattr(headscope, self.command)
        output = self.values.get("output")
        with (
            result_folder(self.command, output, presentation) as write,
            progress_bar(self.values["quiet"], self.unit) as progress,
        ):
            told = {"progress": progress} if self.unit else {}
            failure = None
            try:
                result = self.result(function, {**keywords, **told})
            except OptionValueError as error:
                raise error.spelled(f"--{error.option.replace('_', '-')}") from None
            except ArtefactError as error:  # what was found out is not lost with a folder
                if error.result is None:
                    raise
                result, failure = error.result, error
            write(result)
        print_result(self.command, result, self.values["format"])
        if failure is not None:
            raise failure
        return result

    def result(self, function: Callable[..., Any], keywords: Mapping[str, Any]) -> Any:
        """Measure the model and return the result, which records the command line."""
        return function(self.values["model"], command=command_line(), **keywords)


def model_command(unit: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is the :class:`Call`.

    Its other parameters are options. Those of :func:`of_every_model_command` join them; one that
    has the name of such an option replaces it, in its place. ``unit`` is that of the call.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *options = inspect.signature(function, eval_str=True).parameters.values()
        own = {option.name: option for option in options}
        shared = dict(inspect.signature(of_every_model_command, eval_str=True).parameters)
        first = {name: shared.pop(name) for name in ("context", "model")}
        alone = {name: option for name, option in own.items() if name not in shared}

        @functools.wraps(function)
        def command(context: typer.Context, **values: Any) -> None:
            call = Call(function.__name__, unit, context, values)
            function(call, **{name: values[name] for name in own})

        parameters = {**first, **alone, **shared, **own}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [option.replace(kind=option.KEYWORD_ONLY) for option in parameters.values()]
        )
        return command

    return decorate


def made_command(
    name: str,
    options: type[ModelOptions],
    body: Callable[[Call], Any] | None = None,
    flags: type | None = None,
) -> Callable[..., None]:
    """Make a command of a class of options: what ``headscope.NAME`` takes, as flags.

    ``body`` says what is special about it, and ``flags`` what the command line has beside.
    """
    context, model, *rest = inspect.signature(
        of_every_model_command, eval_str=True
    ).parameters.values()
    parameters = {option.name: option for option in parameters_of(options)}
    shared = {option.name: option for option in rest}
    if "validate" in options_of(options):
        shared = {"output": OUTPUT, **shared}
    if flags is not None:
        parameters = {**{option.name: option for option in parameters_of(flags)}, **parameters}
    parameters = {**parameters, **{n: o for n, o in shared.items() if n not in parameters}}

    def command(context: typer.Context, **values: Any) -> None:
        call = Call(name, options.unit, context, values, options)
        call.run() if body is None else body(call)

    command.__name__ = name
    command.__doc__ = (inspect.getdoc(options) or "").partition("\nExamples\n--------\n")[0]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            option.replace(kind=option.KEYWORD_ONLY)
            for option in (context, model, *parameters.values())
        ]
    )
    return command


def epilog_of(options: type[ModelOptions]) -> str:
    """Return the examples at the end of a command's help."""
    title = "Example" if len(options.examples) == 1 else "Examples"
    return "\n\n".join([f"{title}:", *(f"`{line}`" for line in options.examples)])
