"""``headscope depth MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope depth demo`

`headscope depth ./my-bert --text articles.txt --log -o out/`

`headscope depth demo --sequences 500 --no-control --format json`
"""


@model_command("windows")
def depth(
    call: Call,
    text: Annotated[
        Path | None, Option(help="UTF-8 text to cut windows from. Default: the built-in sample.")
    ] = None,
    length: Annotated[int, Option(help="Tokens of a window, special tokens included.")] = 128,
    sequences: Annotated[int, Option(help="Windows to measure, spread evenly over the text.")] = 32,
    control: Annotated[bool, Option(help="Measure random weights beside the model.")] = True,
    log: Annotated[bool, Option(help="Logarithmic axis in the figure of the ratios.")] = False,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    seed: shared.Seed = 0,
    dtype: Annotated[
        shared.Dtype | None,
        Option(help="Compute in this type. Default: float64, on devices that have it."),
    ] = None,
) -> None:
    """Say whether attention alone makes all tokens alike, and what prevents it.

    Every layer is re-run without its skip connection, feed-forward network or LayerNorm.
    """
    call.run(log=log)
