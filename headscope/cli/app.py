"""The whole command line: each command is made when it is first asked for.

Nothing heavy is imported until a command runs, and ``headscope classify`` reads no other's options.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope import __version__
from headscope.cli.command import Call, epilog_of, made_command, plain_command
from headscope.cli.flags import HelpCommand, HelpGroup
from headscope.cli.output import (
    print_data,
    print_human,
    print_note,
    print_warnings,
    print_written,
    shown_progress,
)
from headscope.cli.process import (
    bound_memory,
    calm_threads,
    check_shared,
    error_boundary,
    launched_together,
    rest_collector,
)
from headscope.cli.settings import config, section_settings, table_arguments, table_of
from headscope.cli.settings import limits as limits_of
from headscope.core.errors import CheckFailedError, ValidationFailedError, did_you_mean
from headscope.reports.registry import SECTIONS, function_of, section_of

#: THE list of commands in the order in which a newcomer meets them, under the headings of the help.
#: One that measures a model is made of the options of its function; each other one
#: is in :data:`headscope.cli.commands.OTHERS`.
GROUPS = {
    "Look at heads": (
        "validate",
        "explain",
        "attribute",
        "classify",
        "rank",
        "spectrum",
        "depth",
        "flow",
        "symmetric",
        "linear",
        "serve",
    ),
    "Change the model": ("prune", "shrink", "export", "transfer"),
    "Publish and compare": ("insights", "report", "compare", "diff", "list", "schema", "config"),
}
MEASURING = (*SECTIONS, "shrink", "report")
_named = {name for names in GROUPS.values() for name in names}
GROUPS["Look at heads"] += tuple(name for name in MEASURING if name not in _named)
EVERY = tuple(name for names in GROUPS.values() for name in names)
COMMANDS = EVERY[:-1]  # Those that can be configured: all but config.


def _validate(call: Call) -> None:
    result = call.run()
    if not result.passed:
        raise CheckFailedError(f"validation failed: {'; '.join(result.reasons)}")


def _insights(call: Call) -> None:
    settings = section_settings(call.context, section_of("insights").uses, call.values)
    call.run({"settings": settings})


def _shrink(call: Call) -> None:
    result = call.run()
    if result.checked and not result.reached:
        raise CheckFailedError(f"{result.checked} falls short: {result.stopped}")


def _report(call: Call) -> None:
    """Measure, write the page, print the scoreboard, and check the limits."""
    from rich.text import Text

    from headscope.core.progress import silent
    from headscope.core.serialise import to_dict
    from headscope.reports.baseline import BASELINE, measurements_of, read_measurements
    from headscope.reports.claims.view import scoreboard
    from headscope.reports.files import report_json, write_report
    from headscope.reports.limits import judged, require
    from headscope.reports.markdown import certificate
    from headscope.reports.reading import results_of
    from headscope.reports.registry import REPORT, SECTIONS
    from headscope.reports.rules import check_rules
    from headscope.show.cells import to_csv
    from headscope.show.folders import ready_folder

    limits = limits_of(call.context)
    baseline = read_measurements(Path(limits.baseline)) if limits.baseline else None
    if baseline is not None:
        check_rules(limits.fail_on, baseline.metric)  # before anything is measured
    model, quiet, format = (call.values[name] for name in ("model", "quiet", "format"))
    name = re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip(".-") or "model"
    folder = call.values["output"] = call.values["output"] or Path("reports") / name
    # Insights judges what the other sections measured: only its thresholds and its limit apply.
    insights = table_of(call.context, "insights")
    table = {key: value for key, value in insights.items() if "threshold" in key}
    others = [name for name in SECTIONS if name != "insights"]
    settings = section_settings(call.context, others, call.values)
    limit = call.values["limit"] or insights.get("limit")
    settings |= {} if limit is None else {"insights": {"limit": limit}}
    keywords = {
        **call.arguments,
        "settings": settings,
        "thresholds": table_arguments("insights", table).get("thresholds"),
    }
    names = call.steps_of(keywords)
    with ready_folder(folder), shown_progress(call.command, quiet, names) as progress:
        result = call.result(keywords, progress)
        measured = results_of(to_dict(result), REPORT, result.sections)
        outcomes, changes = judged(measurements_of(measured), limits, baseline)
        document = write_report(result, folder, outcomes, changes, progress or silent)
    _add_step_summary(folder / "report.md")
    if format == "json":
        print_data(report_json(document))
    elif format == "csv":
        print_data(to_csv(result.insights) if result.insights is not None else "")
        print_warnings(result, format)
    else:
        print_human(Text(certificate(result)))
        if result.insights is not None:
            print_human(*scoreboard(result.insights))
        for name, why in result.left_out.items():
            print_human(Text(f"\nLeft out: {name}: {why}"))
        print_warnings(result, format)
        drawn = [name for files in document["files"].values() for name in files]
        pages = ["report.html", "report.md", REPORT, BASELINE]
        with_heads = ("classify", *(name for name in result.sections if name != "validate"))
        section = next((name for name in with_heads if name in result.sections), None)
        if not quiet:
            print_written(folder, [*pages, *drawn], section)
    if result.validate is not None and not result.validate.passed:
        raise ValidationFailedError(f"{model} fails validation: {result.validate.reasons[0]}.")
    for name in result.failed:
        raise CheckFailedError(f"{name}: {result.left_out[name]}")
    require(outcomes)


def _add_step_summary(page: Path) -> None:
    """Add report.md to the summary of a GitHub Actions step."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(page.read_text(encoding="utf-8"))
    except OSError as error:
        print_note(f"no step summary was written ({error.strerror})", quiet=False)


#: What a command does beyond measuring, writing its folder and printing.
_BODIES: dict[str, Callable[[Call], Any]] = {
    "depth": lambda call: call.run(log=call.values["log"]),
    "spectrum": lambda call: call.run({"folder": call.values["output"]}),
    **{"validate": _validate, "insights": _insights, "report": _report, "shrink": _shrink},
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
    """Make one command; KeyError for an unknown name."""
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
    """A command that explains wrong arguments, such as a sentence without quotes."""

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
    help="See what each attention head of a BERT-style transformer does, and make the model "
    "smaller; every run is checked against your model.",
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
