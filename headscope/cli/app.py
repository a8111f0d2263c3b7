"""The command line as a whole. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headscope import __version__
from headscope.cli.boundary import error_boundary
from headscope.cli.commands import LazyGroup
from headscope.cli.launched import check_shared, launched_together
from headscope.cli.process import bound_memory, calm_threads, rest_collector

app = typer.Typer(
    cls=LazyGroup,
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
