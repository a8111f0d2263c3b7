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
from headscope.cli.output import command_line, print_result, progress_bar
from headscope.cli.settings import given
from headscope.cli.shared_options import of_every_model_command

Command = Callable[..., None]
Measure = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One call of a command.

    Attributes
    ----------
    command : str
        Name of the command, of its function in ``headscope`` and of its view.
    unit : str or None
        What the progress bar counts; None for a function that reports no progress.
    context : typer.Context
        Holds what ``--config`` set.
    values : dict of str to object
        Every option by its parameter's name, those that all commands share included.
    """

    command: str
    unit: str | None
    context: typer.Context
    values: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of the command's function.

        Raises
        ------
        typer.BadParameter
            For options that do not fit together, or text that cannot be read.
        """
        thresholds = given(self.context, self.command).get("thresholds")
        try:
            return arguments(self.command, {**self.values, "thresholds": thresholds})
        except OptionError as slip:
            raise slip.on_command_line() from None

    def run(
        self,
        keywords: Mapping[str, Any] | None = None,
        *,
        function: Measure | None = None,
        **presentation: Any,
    ) -> Any:
        """Measure, write the folder of ``--output``, print; return the result.

        Parameters
        ----------
        keywords : mapping, optional
            Arguments of the function; by default those that the options give.
        function : callable, optional
            What measures; by default the function of ``headscope`` that has the command's name.
        **presentation
            What the command's view understands, such as ``log`` for depth.
        """
        from headscope.show.files import write_result
        from headscope.show.folders import ready_folder

        keywords = self.arguments() if keywords is None else keywords
        function = function or function_of(self.command)
        output = self.values.get("output")
        with ready_folder(output), progress_bar(self.values["quiet"], self.unit) as progress:
            told = {"progress": progress} if self.unit else {}
            result = self.result(function, {**keywords, **told})
            if output is not None:
                write_result(self.command, result, output, **presentation)
        print_result(self.command, result, self.values["format"])
        return result

    def result(self, function: Measure, keywords: Mapping[str, Any]) -> Any:
        """Measure the model and return the result, which records the command line."""
        return function(self.values["model"], command=command_line(), **keywords)


def function_of(command: str) -> Measure:
    """Return the function of ``headscope`` that has a command's name.

    This is what loads torch; it is to be called before :func:`progress_bar`, from which on Python
    looks for garbage as usual.
    """
    function: Measure = getattr(headscope, command)
    return function


def model_command(unit: str | None = None) -> Callable[[Command], Command]:
    """Make a command of a function whose first parameter is the :class:`Call`.

    Its other parameters are options. Those of :func:`of_every_model_command` join them; one that
    has the name of such an option replaces it, in its place.

    Parameters
    ----------
    unit : str, optional
        What the progress bar counts, such as ``sentences``.
    """

    def decorate(function: Command) -> Command:
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
