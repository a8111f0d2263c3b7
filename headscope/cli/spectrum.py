"""``headscope spectrum MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope spectrum demo`

`headscope spectrum demo --control --efficient`

`headscope spectrum ./my-bert --text wiki.txt --length 512 --control -o out/`

`headscope spectrum demo --text wiki.txt --sequences 10000 -o out/ --resume`
"""


@model_command("sequences")
def spectrum(
    call: Call,
    text: Annotated[
        Path | None,
        Option(
            help="Plain text, one sentence or paragraph a line; for an encoder-decoder also a "
            "table of sources and targets. Default: the built-in sample."
        ),
    ] = None,
    stack: shared.Stack = None,
    length: Annotated[
        int | None,
        Option(
            "--length",
            "-n",
            help="Tokens of every sequence, special ones included. Default: 128, or "
            "the model's limit if lower.",
        ),
    ] = None,
    k: Annotated[
        int | None, Option(help="How many singular values to count. Default: length / 4.")
    ] = None,
    sequences: Annotated[
        int | None, Option(help="Measure so many sequences, spread evenly over the text.")
    ] = None,
    precision: Annotated[
        float | None,
        Option(
            help="Measure sequences in random order until every head's 95% half-width is below "
            "this. Default: 0.01, unless --sequences is given."
        ),
    ] = None,
    low_rank: Annotated[float, Option(help="Share above which a head counts as low rank.")] = 0.9,
    roles: Annotated[
        Path | None,
        Option(
            help="classify.json of the same model, to name positional heads. Default: the one in "
            "the folder of -o, if there."
        ),
    ] = None,
    efficient: Annotated[
        bool,
        Option(
            help="Measure what could replace full attention: projections, windows, random blocks."
        ),
    ] = False,
    control: Annotated[
        bool,
        Option(
            help="Measure the same architecture with random weights too, on the same sequences."
        ),
    ] = False,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    resume: shared.Resume = False,
    seed: shared.Seed = 0,
) -> None:
    """Measure how low the rank of each head's softmax matrix is, and what could replace it.

    Shares of singular values beside closed-form controls and, with --control, random weights; the
    sequences have no padding.
    """
    call.run({**call.arguments(), "folder": output})
