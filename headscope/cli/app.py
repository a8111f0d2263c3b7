"""Composes the commands. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headscope import __version__
from headscope.cli import (
    classify,
    config,
    depth,
    diff,
    insights,
    prune,
    rank,
    report,
    spectrum,
    validate,
)
from headscope.cli.collector import rest_collector
from headscope.cli.errors import error_boundary
from headscope.cli.memory import bound_memory
from headscope.cli.threads import calm_threads

__all__ = ["app", "main"]

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
app.command("classify", epilog=classify.EXAMPLES)(classify.classify)
app.command("depth", epilog=depth.EXAMPLES)(depth.depth)
app.command("diff", epilog=diff.EXAMPLES)(diff.diff)
app.command("insights", epilog=insights.EXAMPLES)(insights.insights)
app.command("prune", epilog=prune.EXAMPLES)(prune.prune)
app.command("rank", epilog=rank.EXAMPLES)(rank.rank)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("spectrum", epilog=spectrum.EXAMPLES)(spectrum.spectrum)
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)
app.add_typer(config.config, name="config", epilog=config.EXAMPLES)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback instead of one sentence.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; exits with the documented codes."""
    bound_memory()
    calm_threads()
    with rest_collector(), error_boundary(debug="--debug" in sys.argv):
        app()
