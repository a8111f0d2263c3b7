"""``headscope insights MODEL``."""

from __future__ import annotations

import functools
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.arguments import section_settings
from headscope.cli.command import Call, model_command
from headscope.cli.output import print_note

EXAMPLES = """Examples:

`headscope insights demo`

`headscope insights ./my-bert --treebank en_ewt-ud-test.conllu -o out/`

`headscope insights demo --skip transfer`

`headscope insights ./my-bert --task classification --data dev.tsv`

`headscope insights demo --threshold metric_loss=0.02`
"""


@model_command("insights")
def insights(
    call: Call,
    treebank: shared.Treebank = None,
    text: shared.Texts = None,
    task: shared.TaskOption = shared.TaskName.fidelity,
    data: shared.TaskData = None,
    draws: shared.Draws = 39,
    threshold: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Change what decides a claim, e.g. 'most=0.6'; repeatable. See docs/insights.md.",
        ),
    ] = None,
    skip: Annotated[
        str | None,
        Option(metavar="NAME,NAME,...", help="Sections not to run, such as transfer."),
    ] = None,
    budget: Annotated[
        float,
        Option(help="Seconds for everything: transfer, which comes last, gets what is left."),
    ] = 300.0,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    limit: shared.Limit = None,
    seed: shared.Seed = 0,
) -> None:
    """Hold the claims of the literature against this model: measured, control, verdict, rule.

    The tables [classify], [rank], [spectrum], [depth], [flow], [transfer], [linear] and [symmetric]
    of --config set how each is measured.
    """
    from headscope.results.sections import section_of

    arguments = call.arguments()
    uses = section_of("insights").uses
    settings = section_settings(call.context, uses, call.values)
    announce = functools.partial(print_note, quiet=call.values["quiet"])
    call.run({**arguments, "settings": settings, "announce": announce})
