"""Composes the commands. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from headscope import __version__
from headscope.cli import config
from headscope.cli.boundary import error_boundary
from headscope.cli.command import epilog_of, made_command
from headscope.cli.commands import MADE
from headscope.cli.launched import check_shared, launched_together
from headscope.cli.process import bound_memory, calm_threads, rest_collector

#: THE list of commands in the order in which a newcomer meets them, under the headings of the help.
#: Those of :data:`headscope.cli.commands.MADE` are made of their options; each other one is the
#: function of that name in the module of that name beside this one, with its EXAMPLES.
GROUPS = {
    "Look at heads": (
        *("validate", "explain", "classify", "rank", "spectrum", "depth", "flow"),
        *("symmetric", "linear"),
    ),
    "Change the model": ("prune", "transfer"),
    "Publish and compare": ("insights", "report", "compare", "diff", "list"),
}
_named = {name for names in GROUPS.values() for name in names}
GROUPS["Look at heads"] += tuple(name for name in MADE if name not in _named)
COMMANDS = tuple(name for names in GROUPS.values() for name in names)

app = typer.Typer(
    name="headscope",
    help="What each attention head of a BERT-style transformer does, measured through our own "
    "attention and proven equal to the model's.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Example: `headscope classify demo`",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
for heading, names in GROUPS.items():
    for name in names:
        if name in MADE:
            command, epilog = made_command(name, *MADE[name]), epilog_of(MADE[name].options)
        else:
            module = importlib.import_module(f"headscope.cli.{name}")
            command, epilog = getattr(module, name), module.EXAMPLES
        app.command(name, epilog=epilog, rich_help_panel=heading)(command)
app.add_typer(
    config.config, name="config", epilog=config.EXAMPLES, rich_help_panel="Publish and compare"
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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback instead of one sentence.")
    ] = False,
) -> None:
    check_shared(context.invoked_subcommand)


def main() -> None:
    """Run the command line; exits with the documented codes."""
    bound_memory()
    calm_threads()
    with rest_collector(), error_boundary(debug="--debug" in sys.argv), launched_together():
        app()
