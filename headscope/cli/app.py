"""The program ``headscope``: its group of commands, its own options, and ``main``.

A command is made from its row in :mod:`headscope.commands` when it is first asked for. So nothing
heavy is imported until a command runs, and ``headscope classify`` does not read other commands'
options.
"""

from __future__ import annotations

import functools
import sys
from typing import Annotated, Any

import typer

from headscope import __version__
from headscope.cli.flags import epilog_of
from headscope.cli.help import HelpCommand, HelpGroup
from headscope.cli.process import (
    bound_memory,
    calm_threads,
    check_shared,
    end_as_by_ctrl_c,
    error_boundary,
    launched_together,
    rare_garbage_collection,
)
from headscope.commands import COMMANDS
from headscope.core.errors import did_you_mean


class LazyGroup(HelpGroup):
    """The group of all commands, which makes only those that are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return one command; refuse an unknown name."""
        if name not in COMMANDS:
            ctx.fail(f"No such command {name!r}. {did_you_mean(name, COMMANDS).capitalize()}")
        return click_command(name)


@functools.cache
def click_command(name: str) -> Any:
    """Make one command from its row in the table."""
    command = COMMANDS[name]
    if name == "config":  # a group of commands
        group: Any = typer.main.get_command(command.function)
        group.rich_help_panel = command.heading
        return group

    # The function that typer calls.
    if name == "report":
        from headscope.cli.report import report_command

        callback = report_command(command)
    elif command.measures:
        from headscope.cli.command import measuring_command

        callback = measuring_command(command)
    else:
        callback = command.function

    # A command of click: an application of typer that has this command alone.
    examples = command.options.examples if command.measures else command.examples
    single = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    register = single.command(
        name, cls=HelpCommand, epilog=epilog_of(examples), rich_help_panel=command.heading
    )
    register(callback)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    name="headscope",
    help="See what each attention head of a transformer does, and make the model smaller; every "
    "run is checked against your model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Example: `headscope classify demo`",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
            metavar="",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show a traceback instead of one sentence.", metavar=""),
    ] = False,
) -> None:
    check_shared(context.invoked_subcommand)


def main() -> None:
    """Run the command line; exits with the documented codes."""
    bound_memory()
    calm_threads()
    end_as_by_ctrl_c()
    debug = "--debug" in sys.argv
    with rare_garbage_collection(), error_boundary(debug), launched_together():
        app()
