"""The command line as a whole: each command is made when it is first asked for.

Nothing heavy is imported until a command runs, and ``headscope classify`` reads no other's options.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from headscope import __version__
from headscope.cli.command import Call, epilog_of, made_command, plain_command
from headscope.cli.flags import HelpCommand, HelpGroup
from headscope.cli.launched import check_shared, launched_together
from headscope.cli.output import print_note
from headscope.cli.process import bound_memory, calm_threads, error_boundary, rest_collector
from headscope.cli.settings import config, section_settings
from headscope.core.errors import did_you_mean
from headscope.reports.registry import SECTIONS, function_of, section_of

#: THE list of commands in the order in which a newcomer meets them, under the headings of the help.
#: One that measures a model is made of the options of its function; each other one
#: is in :data:`headscope.cli.commands.OTHERS`.
GROUPS = {
    "Look at heads": (
        *("validate", "explain", "attribute", "classify", "rank", "spectrum", "depth", "flow"),
        *("symmetric", "linear", "serve"),
    ),
    "Change the model": ("prune", "shrink", "export", "transfer"),
    "Publish and compare": ("insights", "report", "compare", "diff", "list", "schema", "config"),
}
MEASURING = (*SECTIONS, "shrink", "report")
_named = {name for names in GROUPS.values() for name in names}
GROUPS["Look at heads"] += tuple(name for name in MEASURING if name not in _named)
EVERY = tuple(name for names in GROUPS.values() for name in names)
COMMANDS = EVERY[:-1]  # Those that can be configured: all but config.


def _depth(call: Call) -> None:
    call.run(log=call.values["log"])


def _spectrum(call: Call) -> None:
    call.run({**call.arguments(), "folder": call.values["output"]})


def _validate(call: Call) -> None:
    result = call.run()
    if not result.passed:
        print_note(f"validation failed: {'; '.join(result.reasons)}", call.values["quiet"])
        raise typer.Exit(3)


def _insights(call: Call) -> None:
    settings = section_settings(call.context, section_of("insights").uses, call.values)
    call.run({**call.arguments(), "settings": settings})


def _shrink(call: Call) -> None:
    result = call.run()
    if result.checked and not result.reached:
        print_note(f"{result.checked} falls short: {result.stopped}", call.values["quiet"])
        raise typer.Exit(3)


def _report(call: Call) -> None:
    from headscope.cli.report import run_report

    run_report(call)


#: What a command does beyond measuring, writing its folder and printing.
_BODIES: dict[str, Callable[[Call], Any]] = {
    **{"depth": _depth, "spectrum": _spectrum, "validate": _validate},
    **{"insights": _insights, "report": _report, "shrink": _shrink},
}


class Commands(Mapping[str, Any]):
    """Click's commands by their names, in order."""

    def __iter__(self) -> Iterator[str]:
        return iter(EVERY)

    def __len__(self) -> int:
        return len(EVERY)

    def __getitem__(self, name: str) -> Any:
        return _made(name)


@functools.cache
def _made(name: str) -> Any:
    """Make one command; KeyError for a name that there is none of."""
    heading = next((heading for heading, names in GROUPS.items() if name in names), None)
    if heading is None:
        raise KeyError(name)
    if name == "config":
        group: Any = typer.main.get_command(config)
        group.rich_help_panel = heading
        return group
    options: Any
    if name in MEASURING:
        options = function_of(name).options
        command = made_command(name, options, _BODIES.get(name, Call.run))
    else:
        from headscope.cli.commands import OTHERS

        options, body = OTHERS[name]
        command = plain_command(name, options, body)
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    epilog = epilog_of(options.examples)
    app.command(name, cls=_Explaining, epilog=epilog, rich_help_panel=heading)(command)
    return typer.main.get_command(app)


class _Explaining(HelpCommand):
    """A command that says what is wrong with its words, such as a sentence without its quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if isinstance(error, typer.BadParameter):
                error.message = _plain(error.message)
            extra = re.search(r"unexpected extra argument\S* \((.*)\)", str(error))
            if extra is None:
                raise
            why = f"{extra[1]!r} is too much; put a sentence, or a path with spaces, in quotes"
            raise typer.BadParameter(why, ctx) from None


def _plain(message: str) -> str:
    """Say in our words why a value was refused, with the choice that was probably meant."""
    message = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    message = message.replace("Input should be", "it should be", 1)
    if (slip := re.fullmatch(r"(.+) is not one of ('.*')\.?", message)) is None:
        return message
    choices = re.findall(r"'([^']*)'", slip[2])
    hint = did_you_mean(slip[1].strip("'"), choices)
    return f"there is no {slip[1]}; choose from {', '.join(choices)}. {hint.capitalize()}".strip()


class LazyGroup(HelpGroup):
    """The group of all commands, of which only those that are asked for are made."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{**keywords, "commands": None})
        self.commands = Commands()  # type: ignore[assignment]


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
    with rest_collector(), error_boundary(debug="--debug" in sys.argv), launched_together():
        app()
