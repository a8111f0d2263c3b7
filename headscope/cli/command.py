"""What commands do: take options, refuse what is wrong before torch is loaded, measure, print."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from headscope.cli.flags import (
    CommonFlags,
    Flag,
    FolderFlags,
    ModelFlag,
    arguments_of,
    flags_of,
    plain_arguments,
    style_of,
)
from headscope.cli.output import (
    command_line,
    print_human,
    print_result,
    print_written,
    shown_progress,
)
from headscope.cli.settings import lay_under_flags, table_of
from headscope.core.errors import (
    ArtefactError,
    CorpusError,
    HeadscopeError,
    InputError,
    InterruptedRunError,
    WrongOptionError,
)
from headscope.core.options import OptionError, options_of
from headscope.core.progress import Progress
from headscope.core.safe_text import visible
from headscope.data.examples import TASK_FILES
from headscope.reports.registry import SECTIONS, function_of
from headscope.session.options import ModelOptions
from headscope.show.style import styled

#: Options that name a file to be read.
_INPUTS = ("treebank", "text", "data", "calibration", "train", "test", "frequencies")
#: The common flags of commands that measure nothing.
_PLAIN = ("config", "debug")


@dataclass(frozen=True)
class Call:
    """One call of a command; ``values`` are all flags by their parameters' names."""

    command: str
    options: type[ModelOptions]
    context: typer.Context
    values: dict[str, Any]
    arguments: dict[str, Any]  # What the flags mean in Python

    def run(self, more: Mapping[str, Any] | None = None, **presentation: Any) -> Any:
        """Measure, write the folder of ``--output``, print; return the result.

        ``more`` are arguments of the command's function that no flag gives, ``presentation`` is
        what the command's view understands, such as ``log`` for depth.
        """
        from headscope.core.processes import current, own_file
        from headscope.show.folders import ready_folder

        keywords = {**self.arguments, **(more or {})}
        folder = self.values.get("output")
        quiet = self.values["quiet"]
        names = self.steps_of(keywords)
        processes = current()
        written: list[str] = []
        failure: BaseException | None = None
        # Of several processes that share the run the first writes; each has a separate state.
        with (
            ready_folder(folder if processes.rank == 0 else None),
            shown_progress(self.command, quiet, names) as progress,
        ):
            processes.meet("the start of the run")  # the folder is there, if they share it
            try:
                result = self.result(keywords, progress)
            except ArtefactError as error:  # only the folder failed: the result is still shown
                if error.result is None:
                    raise
                result = error.result
                failure = error
            except InterruptedRunError as stopped:
                result = stopped.result
                failure = stopped
            if folder is not None:
                from headscope.reports.files import state_name, write_result

                if processes.rank == 0:
                    written = write_result(self.command, result, folder, **presentation)
                processes.meet("the end of the run")
                if processes.rank > 0:
                    own_file(folder / state_name(self.command)).unlink(missing_ok=True)
        print_result(self.command, result, self.values["format"])
        if folder is not None and written and self.values["format"] == "human" and not quiet:
            print_written(folder, written, self.command if self.command in SECTIONS else None)
        if failure is not None:
            raise failure
        return result

    def steps_of(self, keywords: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Name the steps whose progress the run reports; None where it reports none.

        With ``--dry-run`` say what would be done, and end.
        """
        options = self.options(**keywords)
        names = options.step_names() if "progress" in options_of(self.options) else None
        if not self.values["dry_run"]:
            return names
        lines = [f"{self.command} would measure {self.values['model']}."]
        lines += [f"Its steps: {'; '.join(names)}."] if names else []
        for name in ("output", "save"):
            if (folder := self.values.get(name)) is not None:
                lines.append(f"It writes {folder}{' (which is there)' if folder.exists() else ''}.")
        print_human(*map(visible, lines))
        raise typer.Exit

    def result(self, keywords: Mapping[str, Any], progress: Progress | None) -> Any:
        """Measure the model and return the result, which records the command line."""
        extra = {} if progress is None else {"progress": progress}
        try:
            function = function_of(self.command)
            return function(self.values["model"], command=command_line(), **keywords, **extra)
        except OptionError as error:
            raise usage_error(self.options, error) from None


def made_command(
    name: str, options: type[ModelOptions], body: Callable[[Call], Any]
) -> Callable[..., None]:
    """Make a command of a class of options: what ``headscope.NAME`` takes, as flags."""
    flags = flags_of(ModelFlag)
    if options.default_model is not None:
        marker = dataclasses.replace(flags["model"].marker, required=False)
        flags["model"] = dataclasses.replace(flags["model"], marker=marker, default="")
    kinds = [*([options.flags] if options.flags else []), options]
    if "validate" in options_of(options) or "output" in flags_of(*kinds):
        kinds.append(FolderFlags)
    flags |= flags_of(*kinds, CommonFlags)

    def command(context: typer.Context, **values: Any) -> None:
        with styled(style_of(values), verbose=values["verbose"]):
            if options.default_model is not None and not values["model"]:
                values["model"] = options.default_model(values)
            arguments = read_options(name, options, context, values)
            body(Call(name, options, context, values, arguments))

    return _typed(command, name, options, flags)


def plain_command(name: str, options: type, body: Callable[[Any], None]) -> Callable[..., None]:
    """Make a command that measures nothing; ``body`` takes an object of the class of options."""
    common = [flag for flag in flags_of(CommonFlags).values() if flag.name in _PLAIN]

    def command(context: typer.Context, **values: Any) -> None:
        body(options(**plain_arguments(options, values)))

    flags = flags_of(options) | {flag.name: flag for flag in common}
    return _typed(command, name, options, flags)


def _typed(
    command: Callable[..., None], name: str, options: type, flags: dict[str, Flag]
) -> Callable[..., None]:
    """Give a function the name, the help and the signature that typer reads."""
    more = {"config": {"callback": lay_under_flags, "is_eager": True}}
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [flag.parameter(**more.get(flag.name, {})) for flag in flags.values()]
    command.__name__ = name
    command.__doc__ = (inspect.getdoc(options) or "").partition("\nExamples\n--------\n")[0]
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.flags = {  # type: ignore[attr-defined]  # what a config file may set
        flag.name: flag for flag in flags.values() if flag.name != "config"
    }
    return command


def epilog_of(examples: Sequence[str]) -> str:
    """Return the examples at the end of a command's help."""
    if len(examples) == 1:
        return f"Example: `{examples[0]}`"
    return "Examples:\n\n" + "  \n".join(f"`{line}`" for line in examples)


def read_options(
    name: str, options: type[ModelOptions], context: typer.Context, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the flags mean in Python; raise at once what the run would after loading."""
    thresholds = table_of(context, name).get("thresholds")
    try:
        arguments = arguments_of(options, {**values, "thresholds": thresholds})
        options(**arguments)
        for option in options_of(options.flags).values() if options.flags else ():
            option.check(values[option.spelled_as])
    except HeadscopeError as error:
        raise usage_error(options, error) from None
    for name in _INPUTS:
        path = values.get(name)
        if isinstance(path, Path) and not path.exists():
            raise CorpusError(f"There is no file {path}; check the path.")
    if values.get("task") is not None and values.get("data") is None:
        task = str(getattr(values["task"], "value", values["task"]))
        if task in TASK_FILES:
            raise WrongOptionError(
                f"The task {task} needs a file with {TASK_FILES[task]}: give it with --data."
            )
    output = values.get("output")
    save = values.get("save")
    if output and save and Path(save).resolve() in (output.resolve(), *output.resolve().parents):
        raise WrongOptionError(
            f"The folder of results {values['output']} is, or lies in, the one that the model is "
            "saved in; give each its own."
        )
    return arguments


def usage_error(options: type[ModelOptions], error: HeadscopeError) -> HeadscopeError:
    """Turn what an options class refuses into a usage error that names flags."""
    declared = options_of(options)
    if isinstance(error, OptionError):
        option = declared.get(error.option)
        name = error.option if option is None else option.spelled_as
        return error.spelled(f"--{name.replace('_', '-')}")
    if isinstance(error, CorpusError) or not isinstance(error, InputError):
        return error
    text = str(error)
    for name, option in declared.items():  # a name of one word may be a word of the sentence
        pattern = rf"\b{name}\b" if "_" in name else rf"^{name}\b(?= )"
        text = re.sub(pattern, f"--{option.spelled_as.replace('_', '-')}", text)
    return WrongOptionError(text)
