"""A command that measures: from the words of the command line to its function, and to the screen.

:func:`measuring_command` is the whole way, to be read first. The words become options once, before
torch is loaded; the public function is called with them; what it returns is written to the folder
of ``-o`` and printed. :class:`CommandRun` has these steps, :func:`typer_command` the signature by
which typer knows the flags. A :class:`Command` is the command's row in the table of all commands:
its name, its function, its class of options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from headscope.cli.flags import (
    CommonFlags,
    FolderFlags,
    ModelFlag,
    OptionalModelFlag,
    arguments_of,
    figure_formats,
    flag_of,
    parameters_of,
)
from headscope.cli.output import command_line, print_result, print_written
from headscope.cli.progress import RunProgress
from headscope.cli.settings import ConfigFile, section_settings, table_of
from headscope.commands import Command
from headscope.core.errors import (
    ArtefactError,
    CheckFailedError,
    CorpusError,
    InterruptedRunError,
    UnwrittenError,
    WrongOptionError,
)
from headscope.core.options import OptionError, options_of
from headscope.data.examples import TASK_FILES
from headscope.session.options import ModelOptions
from headscope.show.style import showing

#: Flags that name a file to be read.
_INPUT_FILES = ("treebank", "text", "data", "calibration", "train", "test", "frequencies")


def measuring_command(command: Command) -> Callable[..., None]:
    """Make the typer command that runs a measuring function, with its options as flags."""

    def callback(context: typer.Context, **values: Any) -> None:
        """Run the command; ``values`` are those of its flags, by name."""
        run = CommandRun(command, context, values)
        with run.presented():
            options = run.options()
            failure: BaseException | None = None
            with run.measuring(options):
                try:
                    result = command.function(run.model, options=options)
                except (ArtefactError, InterruptedRunError) as error:
                    if error.result is None:
                        raise
                    # What was measured before the failure is written and shown all the same.
                    result = error.result
                    failure = error
                try:
                    files = run.write(result)
                except UnwrittenError as error:  # what was measured is shown all the same
                    files = []
                    failure = failure or error
            run.show(result, files)
        if failure is not None:
            raise failure
        complaint = getattr(result, "complaint", None)  # such as a limit that a result exceeds
        if complaint is not None:
            raise CheckFailedError(complaint)

    return typer_command(command, callback)


def typer_command(command: Command, callback: Callable[..., None]) -> Callable[..., None]:
    """Give a function the name, the help and the signature that typer reads.

    Its flags are, in this order: the model, what only the command line has, the command's options,
    the folder of results, and what all commands have.
    """
    options_class = command.options
    flag_classes: list[type] = [
        ModelFlag if options_class.default_model is None else OptionalModelFlag
    ]
    if options_class.flags is not None:
        flag_classes.append(options_class.flags)
    flag_classes.append(options_class)
    declared = parameters_of(*flag_classes)
    # Those that measure a model, and a report, have a folder of results.
    if "no_validate" in declared or "output" in declared:
        flag_classes.append(FolderFlags)
    flag_classes.append(CommonFlags)
    parameters = parameters_of(*flag_classes)

    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    config = inspect.Parameter("config", keyword, annotation=ConfigFile, default=None)
    signature = inspect.Signature([context, *parameters.values(), config])
    callback.__name__ = command.name
    callback.__doc__ = (inspect.getdoc(options_class) or "").partition("\nExamples\n--------\n")[0]
    callback.__signature__ = signature  # type: ignore[attr-defined]
    return callback


class CommandRun:
    """One run of a command: its options, its folder, and how its result is shown.

    ``values`` are the values of the flags, by their names.
    """

    def __init__(self, command: Command, context: typer.Context, values: dict[str, Any]) -> None:
        self.command = command
        self.context = context
        self.values = values
        self.quiet: bool = values["quiet"]
        self.format: str = values["format"]
        self.folder: Path | None = values.get("output")
        self.progress = RunProgress(command.name, quiet=self.quiet)
        self.model: str = values["model"] or command.options.default_model(values)

    @contextmanager
    def presented(self) -> Iterator[None]:
        """Apply --figures and --verbose inside the block; name flags in errors about options."""
        try:
            formats = figure_formats(self.values.get("figures", "png,svg"))
            with showing(formats, verbose=self.values["verbose"]):
                yield
        except OptionError as error:
            spell = functools.partial(flag_of, self.command.options)
            raise WrongOptionError(error.spelled(spell)) from None

    def options(self, **more: Any) -> ModelOptions:
        """Build the command's options and check them, and the files and folders they name.

        All this before torch is loaded, so that a mistake costs no waiting. ``more`` are arguments
        that no flag gives.
        """
        options_class = self.command.options
        table = table_of(self.context, self.command.name)
        values = {**self.values, "thresholds": table.get("thresholds")}
        arguments = {**arguments_of(options_class, values), **self._run_arguments(), **more}
        options: ModelOptions = options_class(**arguments)  # checks itself
        if options_class.flags is not None:
            for option in options_of(options_class.flags).values():
                option.check(self.values[option.spelled_as])
        _check_inputs(self.values)
        _check_folders(self.folder, self.values.get("save"))
        return options

    def _run_arguments(self) -> dict[str, Any]:
        """Return the options that follow from this run and have no flag of their own, if declared.

        They are the command line, the progress, the folder, the state and the sections' settings.
        """
        arguments: dict[str, Any] = {"command": command_line(), "progress": self.progress.listener}
        if self.folder is not None:
            arguments["folder"] = self.folder
            arguments["state"] = self.folder / self.command.state_file
        elif self.values.get("resume"):
            raise WrongOptionError(
                "There is nothing to resume from: name the folder of the run (-o DIR)."
            )
        if self.command.name == "insights":
            arguments["settings"] = section_settings(self.context, self.command.uses, self.values)
        declared = options_of(self.command.options)
        return {name: value for name, value in arguments.items() if name in declared}

    @contextmanager
    def measuring(self, options: ModelOptions) -> Iterator[None]:
        """Hold the folder and show the progress while the block measures the model.

        If several processes share the run, only the first has the folder; each has its own state.
        """
        from headscope.core.processes import current, process_file
        from headscope.show.folders import ready_folder

        processes = current()
        folder = self.folder if processes.rank == 0 else None
        state = None
        if self.folder is not None:
            state = process_file(self.folder / self.command.state_file)
        shown = self.progress.shown(options.step_seconds())
        try:
            with ready_folder(folder, self.command.room), shown:
                processes.meet("the start of the run")  # the first process has made the folder
                yield
                processes.meet("the end of the run")
                if processes.rank > 0 and state is not None:
                    state.unlink(missing_ok=True)
        except KeyboardInterrupt as interrupt:
            if state is None or not state.is_file() or isinstance(interrupt, InterruptedRunError):
                raise
            raise KeyboardInterrupt(
                f"interrupted; what was measured is saved in {state}: the same command with "
                "--resume goes on from there; delete that file to start anew"
            ) from None

    def write(self, result: Any) -> list[str]:
        """Write the folder that was asked for; return the names of its files."""
        from headscope.core.processes import current

        if self.folder is None or current().rank > 0:
            return []
        from headscope.reports.files import write_result

        return write_result(self.command.name, result, self.folder)

    def show(self, result: Any, files: list[str]) -> None:
        """Print the result, and which files were written."""
        print_result(self.command, result, self.format)
        if files and self.folder is not None and self.format == "human" and not self.quiet:
            print_written(self.folder, files, self.command.name if self.command.in_report else None)


def _check_inputs(values: Mapping[str, Any]) -> None:
    """Refuse files that are not there, and a task without the file that it needs."""
    for name in _INPUT_FILES:
        path = values.get(name)
        if isinstance(path, Path) and not path.exists():
            raise CorpusError(f"There is no file {path}; check the path.")
    task = values.get("task")
    if task in TASK_FILES and values.get("data") is None:
        raise WrongOptionError(
            f"The task {task} needs a file with {TASK_FILES[task]}: give it with --data."
        )


def _check_folders(output: Path | None, save: Path | None) -> None:
    """Refuse results in, or below, the folder that a model is saved in."""
    if output is None or save is None:
        return
    if save.resolve() in (output.resolve(), *output.resolve().parents):
        raise WrongOptionError(
            f"The folder of results {output} is, or lies in, the one that the model is saved in; "
            "give each its own."
        )
