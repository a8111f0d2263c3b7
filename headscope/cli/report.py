"""``headscope report MODEL``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli import settings
from headscope.cli import shared_options as options
from headscope.cli.insights import Data, Draws, TaskOption, Text, Treebank
from headscope.cli.output import command_line, print_data, print_human, progress_bar
from headscope.cli.prune import TaskName

if TYPE_CHECKING:
    from headscope.results import ReportResult

__all__ = ["report"]

EXAMPLES = """Examples:

`headscope report demo -o reports/demo`

`headscope report ./my-bert --config configs/report.toml -o reports/my-bert`

`headscope report demo --only classify,insights --fresh -o reports/demo`
"""

Only = Annotated[str | None, typer.Option(metavar="NAME,NAME,...", help="Only these sections.")]
Skip = Annotated[str | None, typer.Option(metavar="NAME,NAME,...", help="All sections but these.")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Measure everything anew, whatever the folder holds.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Folder of the report. Default: reports/MODEL.", file_okay=False
    ),
]


def report(
    context: typer.Context,
    model: options.Model,
    only: Only = None,
    skip: Skip = None,
    fresh: Fresh = False,
    treebank: Treebank = None,
    text: Text = None,
    task: TaskOption = TaskName.fidelity,
    data: Data = None,
    draws: Draws = 20,
    no_validate: options.NoValidate = False,
    output: Output = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    format: options.FormatOption = options.Format.human,
    dtype: options.DtypeOption = options.Dtype.float32,
    device: options.DeviceOption = options.Device.auto,
    revision: options.Revision = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Write one page about a model: claims, roles, ranks, spectra, depth and pruning.

    Sections: validate, classify, rank, spectrum, depth, prune, insights. Each is set by its own
    table of --config; what has not changed since the last run is taken from the folder.
    """
    from headscope.cli.arguments import section_settings, thresholds_from
    from headscope.errors import ValidationFailedError
    from headscope.pipeline.report.run import choose_sections
    from headscope.pipeline.report.run import report as run
    from headscope.pipeline.sections.previous import Previous, content_digest
    from headscope.show.folders import ready_folder
    from headscope.show.report.files import REPORT, write_report
    from headscope.verdicts.limits import require_limits
    from headscope.verdicts.reading import read_results, results_of

    chosen = choose_sections(_names(only), _names(skip))
    limits = settings.limits(context)
    baseline = read_results(Path(limits.baseline)) if limits.baseline else None
    folder = output or Path("reports") / _folder_name(model)
    with ready_folder(folder), progress_bar(quiet, "report") as progress:
        result = run(
            model,
            only=chosen,
            settings=section_settings(context, treebank=treebank, text=text, limit=limit),
            thresholds=thresholds_from(context, None),
            task=task.value,
            data=data,
            draws=draws,
            previous=None if fresh else folder,
            validate=not no_validate,
            seed=seed,
            progress=progress,
            command=command_line(),
            dtype=dtype.value,
            device=device.value,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        digests = {name: content_digest(found) for name, found in result.sections.items()}
        document = write_report(result, folder, digests, Previous.read(folder).document)
    _summarise(folder)
    _print(result, document, folder, format, quiet)
    if result.validate is not None and not result.validate.passed:
        raise ValidationFailedError(f"{model} fails validation: {result.validate.reasons[0]}.")
    require_limits(results_of(document, REPORT), limits, baseline)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _folder_name(model: str) -> str:
    """Name a folder after a model, whatever its path holds."""
    return re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip(".-") or "model"


def _summarise(folder: Path) -> None:
    """Add report.md to the summary of a GitHub Actions step."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write((folder / "report.md").read_text(encoding="utf-8"))
    except OSError as error:
        print(f"headscope: no step summary was written ({error.strerror})", file=sys.stderr)


def _print(
    result: ReportResult,
    document: dict[str, Any],
    folder: Path,
    format: options.Format,
    quiet: bool,
) -> None:
    from rich.text import Text as Line

    from headscope.show.insights.tables import insights_csv, scoreboard
    from headscope.show.report.files import report_json
    from headscope.show.report.words import certificate

    if format is options.Format.json:
        print_data(report_json(document))
        return
    if format is options.Format.csv:
        print_data(insights_csv(result.insights) if result.insights is not None else "")
        return
    print_human(Line(certificate(result)))
    if result.insights is not None:
        print_human(*scoreboard(result.insights))
    if result.reused and not quiet:
        print_human(Line(f"\nUnchanged, taken from {folder}: {', '.join(result.reused)}."))
    for name, why in result.left_out.items():
        print_human(Line(f"\nLeft out: {name}: {why}"))
    print_human(Line(f"\nWritten to {folder / 'report.html'}"))
