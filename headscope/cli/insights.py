"""``headscope insights MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_data, print_human, progress_bar
from headscope.cli.prune import TaskName

__all__ = ["insights"]

EXAMPLES = """Examples:

`headscope insights demo`

`headscope insights ./my-bert --treebank en_ewt-ud-test.conllu --text wiki.txt -o out/`

`headscope insights ./my-bert --task classification --data dev.tsv --threshold metric_loss=0.02`
"""

Treebank = Annotated[
    Path | None,
    typer.Option(help="CoNLL-U file that heads are classified on. Default: the built-in sample."),
]
Text = Annotated[
    Path | None,
    typer.Option(help="Plain text for ranks, spectra and depth. Default: the built-in sample."),
]
TaskOption = Annotated[
    TaskName,
    typer.Option("--task", help="Measures the model with only its labelled heads (claim 2)."),
]
Data = Annotated[
    Path | None, typer.Option(help="What that task is measured on. Default: the built-in sample.")
]
Draws = Annotated[
    int, typer.Option(help="Random sets of heads that they are compared with, 20 or more.")
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Change what decides a claim, e.g. 'most=0.6'; repeatable. See docs/insights.md.",
    ),
]


def insights(
    context: typer.Context,
    model: options.Model,
    treebank: Treebank = None,
    text: Text = None,
    task: TaskOption = TaskName.fidelity,
    data: Data = None,
    draws: Draws = 20,
    threshold: ThresholdOption = None,
    no_validate: options.NoValidate = False,
    output: options.Output = None,
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
    """Hold the claims of the literature against this model: measured, control, verdict, rule.

    The tables [classify], [rank], [spectrum] and [depth] of --config set how each is measured.
    """
    from headscope.cli.arguments import section_settings, thresholds_from
    from headscope.pipeline.insights.run import insights as run
    from headscope.results import to_json
    from headscope.show.files import write_result
    from headscope.show.folders import ready_folder
    from headscope.show.insights.tables import insights_csv, insights_report

    thresholds = thresholds_from(context, threshold)
    settings = section_settings(context, treebank=treebank, text=text, limit=limit)
    settings.pop("prune")
    with ready_folder(output), progress_bar(quiet, "insights") as progress:
        result = run(
            model,
            thresholds=thresholds,
            task=task.value,
            data=data,
            draws=draws,
            settings=settings,
            validate=not no_validate,
            seed=seed,
            progress=progress,
            command=command_line(),
            dtype=dtype.value,
            device=device.value,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        if output is not None:
            write_result("insights", result, output)
    if format is options.Format.json:
        print_data(to_json(result))
    elif format is options.Format.csv:
        print_data(insights_csv(result))
    else:
        print_human(*insights_report(result))
