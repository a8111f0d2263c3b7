"""The commands that measure nothing: ``compare``, ``diff``, ``export``, ``list``, ``schema``."""

from __future__ import annotations

import importlib.util
import json
import secrets
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import BadParameter

from headscope.cli.flags import FORMAT, CommonFlags, FolderFlags
from headscope.cli.output import (
    command_line,
    print_data,
    print_human,
    print_note,
    shown_progress,
)
from headscope.core.errors import CheckFailedError, InputError
from headscope.core.options import Option, Usual, options_of
from headscope.core.safe_text import visible
from headscope.session.options import LANGUAGES

if TYPE_CHECKING:
    from headscope.reports.result import DiffResult
    from headscope.reports.rules import Rule

OUTPUT = replace(options_of(FolderFlags)["output"].marker, help="Folder for Markdown and JSON.")
VERBOSE, QUIET = (options_of(CommonFlags)[name].marker for name in ("verbose", "quiet"))
FAIL_ON = Usual(
    metavar="RULE",
    flags=("--fail-on",),
    help="Exit with 3 when this rule fires; repeatable: role-changed, role-lost, "
    "metric-drop=2%, validation, insight-changed, insight-lost, score-moved, rank-changed, "
    "spectrum-changed, depth-changed, flow-changed, transfer-changed, linear-changed, "
    "symmetric-changed, missing, model-changed, data-changed, schema-changed, "
    "setting-changed, any. See docs/diff.md.",
)
TOLERANCE = Option(
    help="By what share of it (of 1, where it is smaller) a number without interval may differ."
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Put several models' reports side by side: the key numbers of each, with their intervals.

    What differs between the runs besides the model (data, seeds, settings) is said first. With
    rules, what changed from the first report to each other one is said too.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope compare reports/bert-base reports/bert-large reports/minilm",
        "headscope compare reports/* -o out/",
        "headscope compare old new newer --fail-on role-lost,metric-drop=2%",
        "headscope compare a/report.json b/report.json --format csv",
    )

    reports: Annotated[
        Sequence[Path],
        Option(
            metavar="REPORT",
            help="Two or more folders of reports, or report.json files.",
            argument=True,
        ),
    ]
    fail_on: Annotated[Sequence[str] | None, FAIL_ON] = None
    tolerance: Annotated[float, TOLERANCE] = 0.01
    output: Annotated[
        Path | None,
        Usual(
            help="Folder for Markdown, CSV, HTML and JSON.", flags=("--output", "-o"), folder=True
        ),
    ] = None
    format: Annotated[
        str, Usual(help=FORMAT.help, choices=("human", "json", "csv", "md", "html"))
    ] = "human"
    verbose: Annotated[bool, VERBOSE] = False
    quiet: Annotated[bool, QUIET] = False


def _compare(options: CompareOptions) -> None:
    if len(options.reports) < 2:
        raise BadParameter("give two reports or more", param_hint="'REPORT'")

    from headscope.reports.compare import side_by_side
    from headscope.reports.compare_page import compare_files
    from headscope.reports.compare_view import compare_report
    from headscope.reports.reading import read_results
    from headscope.reports.rules import parse_rules
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(options.fail_on or ())
    with ready_folder(options.output):
        sides = [read_results(path) for path in options.reports]
        result = side_by_side(sides, rules, tolerance=options.tolerance)
        wanted = options.output or options.format != "human"
        files = compare_files(result, rules) if wanted else {}
        if options.output is not None:
            write_files(options.output, files)
    if options.format == "human":
        print_human(*compare_report(result, verbose=options.verbose))
    else:
        print_data(files[f"compare.{options.format}"].decode())
    _end_by_rules(result.changes, rules, options.quiet)


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """Say what differs between two results: roles, scores, curves, verdicts.

    Prints nothing and exits with 0 where they are equal; exits with 3 when a rule fires.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope diff old/classify.json new/classify.json",
        "headscope diff reports/demo out --fail-on role-changed,metric-drop=2%",
        "headscope diff reports/demo out --format md",
    )

    old: Annotated[
        Path,
        Option(
            metavar="OLD",
            help="A result (JSON), a folder of results, or a report's baseline.json.",
            argument=True,
        ),
    ]
    new: Annotated[Path, Option(metavar="NEW", help="What it is compared with.", argument=True)]
    fail_on: Annotated[Sequence[str] | None, FAIL_ON] = None
    tolerance: Annotated[float, TOLERANCE] = 0.01
    output: Annotated[Path | None, OUTPUT] = None
    format: Annotated[str, Usual(help=FORMAT.help, choices=("human", "json", "md"))] = "human"
    quiet: Annotated[bool, QUIET] = False


def _diff(options: DiffOptions) -> None:
    from headscope.core.serialise import to_json
    from headscope.reports.baseline import read_measurements
    from headscope.reports.changes import changes_between
    from headscope.reports.diff_view import diff_files, diff_markdown, diff_report
    from headscope.reports.rules import parse_rules, with_fired
    from headscope.show.folders import ready_folder, write_files

    rules = parse_rules(options.fail_on or ())
    with ready_folder(options.output):
        old = read_measurements(options.old)
        new = read_measurements(options.new)
        result = with_fired(changes_between(old, new, tolerance=options.tolerance), rules)
        if options.output is not None:
            write_files(options.output, diff_files(result, rules))
    if options.format == "human":
        print_human(*diff_report(result))
    elif not result.equal or result.fired:
        in_markdown = options.format == "md"
        print_data(diff_markdown(result, rules) if in_markdown else to_json(result))
    _end_by_rules((result,), rules, options.quiet)


def _end_by_rules(changes: Iterable[DiffResult], rules: Iterable[Rule], quiet: bool) -> None:
    """Name the rules that had nothing to check, and fail where one fired."""
    from headscope.reports.rules import undecided

    changes = tuple(changes)
    reasons: list[str] = []
    for change in changes:
        for rule, why in undecided(change, rules).items():
            print_note(f"{rule} {why}", quiet)
        name = f"{visible(change.new)}: " if len(changes) > 1 else ""
        reasons += [f"{name}{fired}" for fired in change.fired]
    if reasons:
        raise CheckFailedError("; ".join(reasons))


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write a saved model as a file of another runtime, where sentence-transformers looks for it.

    The file is opened again and compared with the model in torch before it gets its name.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope export ./small onnx",
        "headscope export ./small openvino --precision int8 --text sentences.txt",
    )

    folder: Annotated[
        Path, Option(help="A model folder; the file is written into it.", argument=True)
    ]
    kind: Annotated[
        str,
        Option(help="Which runtime is to open it.", choices=("onnx", "openvino"), argument=True),
    ]
    precision: Annotated[
        str,
        Usual(
            help="int8 takes ranges of activations from text; int8-dynamic is for onnx only.",
            choices=("float32", "int8", "int8-dynamic"),
        ),
    ] = "float32"
    text: Annotated[
        Path | None,
        Usual(help="Text without labels to calibrate int8 on. Default: the built-in sample."),
    ] = None
    quiet: Annotated[bool, QUIET] = False


def _export(options: ExportOptions) -> None:
    if options.kind == "openvino" and options.precision == "int8-dynamic":
        raise BadParameter("openvino has float32 and int8", param_hint="'--precision'")
    if not options.folder.is_dir():
        raise BadParameter(f"there is no folder {options.folder}", param_hint="'FOLDER'")

    from headscope.shrinking.saving import write_beside

    runtime = "openvino" if options.kind == "openvino" else "onnxruntime"
    precision = options.precision.replace("-", " ")
    said = write_beside(options.folder, runtime, precision, options.text)
    if not options.quiet:
        print_human(said)


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """List what there is to name: methods, tasks, roles, families of models, limits of CI.

    Each with a line about it, its literature, and the page that defines it.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope list",
        "headscope list methods",
        "headscope list families --format csv",
    )

    what: Annotated[
        str | None,
        Option(
            metavar="[WHAT]",
            help="methods, tasks, roles, families, or limits. Without it: what can be listed.",
            argument=True,
            required=False,
        ),
    ] = None
    format: Annotated[str, FORMAT] = "human"


def _list(options: ListOptions) -> None:
    from headscope.core.serialise import to_json
    from headscope.reports.list import entries_of, list_report
    from headscope.show.cells import to_csv

    result = entries_of(options.what)
    if options.format == "human":
        print_human(*list_report(result))
    else:
        print_data(to_json(result) if options.format == "json" else to_csv(result))


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Print the JSON Schema of what a command writes: every field, its type, mostly its meaning."""

    examples: ClassVar[tuple[str, ...]] = (
        "headscope schema classify",
        "headscope schema report",
    )

    command: Annotated[
        str, Option(help="A command that writes JSON, such as classify or report.", argument=True)
    ]


def _schema(options: SchemaOptions) -> None:
    from headscope.reports.schemas import schema_of

    print_data(json.dumps(schema_of(options.command), indent=1, ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Type a sentence, see all heads, switch some off, and see what the model then answers.

    The page is served on this machine alone and nothing that is typed is written anywhere. Every
    answer stands beside that of the whole model and of random sets of as many heads in the same
    layers. Ctrl-C ends.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope serve demo",
        "headscope serve ./my-bert --roles out/classify.json --no-browser",
    )

    model: Annotated[
        str,
        Option(
            metavar="MODEL",
            help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
            argument=True,
        ),
    ]
    roles: Annotated[
        Path | None,
        Usual(
            help="classify.json of this model, or its folder. Default: heads are classified on the "
            "built-in sample at the start."
        ),
    ] = None
    port: Annotated[
        int,
        Usual(help="Port on this machine; 0 takes any that is free.", at_least=0, at_most=65535),
    ] = 0
    no_browser: Annotated[
        bool, Usual(help="Print the address only; open no browser.", flags=("--no-browser",))
    ] = False
    source_language: Annotated[str | None, LANGUAGES["source"]] = None
    target_language: Annotated[str | None, LANGUAGES["target"]] = None
    seed: Annotated[int, Option(help="Seed of the random sets of heads.")] = 0
    quiet: Annotated[bool, QUIET] = False


def _serve(options: ServeOptions) -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"headscope serve needs {' and '.join(missing)}; install the extra with "
            "pip install 'headscope[serve]'."
        )
    from headscope.live import server
    from headscope.live.answers import prepared

    token = secrets.token_urlsafe(16)
    with server.bound(options.port) as listening:
        with shown_progress("serve", options.quiet, ("validate", "classify")) as tell:
            page, answers = prepared(
                options.model,
                options.roles,
                seed=options.seed,
                command=command_line(),
                progress=tell,
                source_language=options.source_language,
                target_language=options.target_language,
            )
        address = f"http://{server.HOST}:{listening.getsockname()[1]}/?token={token}"
        print(address, flush=True)
        print_note("the page is open to this machine only; Ctrl-C ends.", options.quiet)
        if not options.no_browser:
            webbrowser.open(address)
        server.run(page, answers, listening, token)


#: The options of each command, and what it does with them.
OTHERS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "compare": (CompareOptions, _compare),
    "diff": (DiffOptions, _diff),
    "export": (ExportOptions, _export),
    "list": (ListOptions, _list),
    "schema": (SchemaOptions, _schema),
    "serve": (ServeOptions, _serve),
}
