"""``headscope compare REPORT REPORT ...``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import print_data, print_human

EXAMPLES = """Examples:

`headscope compare reports/bert-base reports/bert-large reports/minilm`

`headscope compare reports/* -o out/`

`headscope compare a/report.json b/report.json --format csv`
"""

#: How the comparison is printed on stdout.
CompareFormat = enum.StrEnum("CompareFormat", ["human", "json", "csv", "md", "html"])


def compare(
    reports: Annotated[
        list[Path],
        Argument(
            metavar="REPORT",
            help="Two or more folders of reports, or report.json files.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder for Markdown, CSV, HTML and JSON.", file_okay=False),
    ] = None,
    format: Annotated[CompareFormat, Option(help="What goes to stdout.")] = CompareFormat.human,
    config: shared.Config = None,
    verbose: shared.Verbose = False,
    debug: shared.Debug = False,
) -> None:
    """Put several models' reports side by side: the key numbers of each, with their intervals.

    What differs between the runs besides the model (data, seeds, settings) is said first.
    """
    if len(reports) < 2:
        raise BadParameter("give two reports or more", param_hint="'REPORT'")

    from headscope.reports.compare import compare_files, compare_report, gather
    from headscope.reports.reading import read_results
    from headscope.show.folders import ready_folder, write_files

    with ready_folder(output):
        result = gather([read_results(path) for path in reports])
        files = compare_files(result) if output or format is not CompareFormat.human else {}
        if output is not None:
            write_files(output, files)
    if format is CompareFormat.human:
        print_human(*compare_report(result, verbose=verbose))
    else:
        print_data(files[f"compare.{format}"].decode())
