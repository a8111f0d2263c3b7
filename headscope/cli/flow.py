"""``headscope flow MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope flow demo`

`headscope flow ./my-bert --treebank en_ewt-ud-test.conllu -o out/`

`headscope flow demo --text lines.txt --no-control --format json`
"""


@model_command("sentences")
def flow(
    call: Call,
    treebank: Annotated[
        Path | None, Option(help="CoNLL-U file with gold trees. Default: the built-in sample.")
    ] = None,
    text: Annotated[
        Path | None, Option(help="Plain text, one sentence a line; no trees are measured then.")
    ] = None,
    control: Annotated[bool, Option(help="Measure random weights beside the model.")] = True,
    control_seeds: Annotated[
        int, Option(help="Draws of Gaussian factors beside the spectra, 2 or more.")
    ] = 5,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    limit: shared.Limit = None,
    seed: shared.Seed = 0,
) -> None:
    """Say how much of what heads read they pass on; hubs and trees in their attention.

    Spectra of W_V and W_V W_O, what z holds of the states it was made from, which words are hubs,
    and how well the largest tree of each head fits gold trees.
    """
    call.run()
