"""What all commands on a model do: take options, measure, write the folder, print."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

import headscope
from headscope.cli.made import UsageError, arguments_of, parameters_of
from headscope.cli.output import (
    command_line,
    print_human,
    print_result,
    result_folder,
    shown_progress,
)
from headscope.cli.preflight import preflight, usage_error
from headscope.cli.settings import table_of
from headscope.cli.shared_options import of_every_folder, of_every_model_command, style_of
from headscope.core.errors import ArtefactError, InputError, InterruptedRunError
from headscope.core.options import OptionError, options_of
from headscope.core.progress import Progress
from headscope.core.safe_text import visible
from headscope.session.options import ModelOptions
from headscope.show.style import styled


@dataclass(frozen=True)
class Call:
    """One call of a command; ``values`` are all flags by their parameters' names."""

    command: str
    options: type[ModelOptions]
    context: typer.Context
    values: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of the command's function; errors are usage errors."""
        thresholds = table_of(self.context, self.command).get("thresholds")
        try:
            return arguments_of(self.options, {**self.values, "thresholds": thresholds})
        except UsageError as slip:
            raise slip.on_command_line() from None
        except InputError as error:
            raise usage_error(self.options, error) from None

    def run(self, keywords: Mapping[str, Any] | None = None, **presentation: Any) -> Any:
        """Measure, write the folder of ``--output``, print; return the result.

        By default the command's function measures with the arguments that the options give.
        ``presentation`` is what the command's view understands, such as ``log`` for depth.
        """
        keywords = self.arguments() if keywords is None else keywords
        # This loads torch before the bar starts; then Python collects garbage as usual again.
        function = getattr(headscope, self.command)
        folder, names = self.values.get("output"), self.step_names(keywords)
        if self.values["dry_run"]:
            self.announce(names)
            raise typer.Exit
        with (
            result_folder(self.command, folder, presentation) as write,
            shown_progress(self.command, self.values["quiet"], names) as progress,
        ):
            failure: BaseException | None = None
            try:
                result = self.result(function, keywords, progress)
            except ArtefactError as error:  # only the folder failed: the result is still shown
                if error.result is None:
                    raise
                result, failure = error.result, error
            except InterruptedRunError as stopped:
                result, failure = stopped.result, stopped
            write(result)
        print_result(self.command, result, self.values["format"])
        if failure is not None:
            raise failure
        return result

    def step_names(self, keywords: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Name the steps that the run will tell of; None of a command that tells nothing."""
        options = self.options(**keywords)
        return options.step_names() if "progress" in options_of(self.options) else None

    def announce(self, names: Sequence[str] | None) -> None:
        """Say what would be done."""
        lines = [f"{self.command} would measure {self.values['model']}."]
        lines += [f"Its steps: {'; '.join(names)}."] if names else []
        for name in ("output", "save", "prune_to"):
            if (folder := self.values.get(name)) is not None:
                lines.append(f"It writes {folder}{' (which is there)' if folder.exists() else ''}.")
        print_human(*map(visible, lines))

    def result(
        self,
        function: Callable[..., Any],
        keywords: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> Any:
        """Measure the model and return the result, which records the command line."""
        told = {} if progress is None else {"progress": progress}
        try:
            return function(self.values["model"], command=command_line(), **keywords, **told)
        except OptionError as error:
            raise usage_error(self.options, error) from None


def made_command(
    name: str,
    options: type[ModelOptions],
    body: Callable[[Call], Any] | None = None,
) -> Callable[..., None]:
    """Make a command of a class of options: what ``headscope.NAME`` takes, as flags."""
    shared = dict(inspect.signature(of_every_model_command, eval_str=True).parameters)
    first = [shared.pop("context"), shared.pop("model")]
    if options.default_model is not None:
        first[1] = first[1].replace(default="")
    if "validate" in options_of(options) or "output" in options_of(options.flags or options):
        shared = {**inspect.signature(of_every_folder, eval_str=True).parameters, **shared}
    own = [*(parameters_of(options.flags) if options.flags else ()), *parameters_of(options)]
    parameters = {option.name: option for option in own}
    parameters |= {key: option for key, option in shared.items() if key not in parameters}

    def command(context: typer.Context, **values: Any) -> None:
        with styled(style_of(values), verbose=values["verbose"]):
            if options.default_model is not None and not values["model"]:
                values["model"] = options.default_model(values)
            call = Call(name, options, context, values)
            preflight(options, values, call.arguments())
            (body or Call.run)(call)

    command.__name__ = name
    command.__doc__ = (inspect.getdoc(options) or "").partition("\nExamples\n--------\n")[0]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option.replace(kind=option.KEYWORD_ONLY) for option in (*first, *parameters.values())]
    )
    return command


def epilog_of(options: type[ModelOptions]) -> str:
    """Return the examples at the end of a command's help."""
    if len(options.examples) == 1:
        return f"Example: `{options.examples[0]}`"
    return "\n\n".join(["Examples:", *(f"`{line}`" for line in options.examples)])
