"""Composes the commands. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from headscope import __version__
from headscope.cli import config
from headscope.cli.boundary import error_boundary
from headscope.cli.collector import rest_collector
from headscope.cli.command import epilog_of, made_command
from headscope.cli.commands import MADE
from headscope.cli.launched import check_shared, launched_together
from headscope.cli.memory import bound_memory
from headscope.cli.threads import calm_threads

__all__ = ["COMMANDS", "app", "main"]

#: THE list of commands. Each is the function of that name in the module of that name beside this
#: one, which also holds EXAMPLES for the end of its help.
COMMANDS = (
    "classify",
    "compare",
    "depth",
    "diff",
    "explain",
    "flow",
    "insights",
    "linear",
    "list",
    "prune",
    "rank",
    "report",
    "spectrum",
    "symmetric",
    "transfer",
    "validate",
)

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
for name in COMMANDS:
    if name in MADE:
        app.command(name, epilog=epilog_of(MADE[name].options))(made_command(name, *MADE[name]))
        continue
    module = importlib.import_module(f"headscope.cli.{name}")
    app.command(name, epilog=module.EXAMPLES)(getattr(module, name))
app.add_typer(config.config, name="config", epilog=config.EXAMPLES)


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
