"""``headscope rank MODEL``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope rank demo`

`headscope rank demo --text lines.txt -o out/`

`headscope rank demo --share-projections 48,96,192,288 --no-fresh`
"""


#: Of what the dimensions hold a share.
Share = enum.StrEnum("Share", ["sigma2", "sigma"])
#: What to do with b_Q and b_V.
Biases = enum.StrEnum("Biases", ["exclude", "include"])


@model_command("layers")
def rank(
    call: Call,
    stack: shared.Stack = None,
    share: Annotated[
        Share, Option(help="Count the dimensions that hold 90/95/99% of this.")
    ] = Share.sigma2,
    biases: Annotated[
        Biases, Option(help="Include b_Q and b_V by augmenting the input with a 1.")
    ] = Biases.exclude,
    fold_layernorm: Annotated[
        bool, Option(help="Fold the preceding LayerNorm's gain into the weights.")
    ] = False,
    rtol: Annotated[
        float | None,
        Option(help="For the numerical rank. Default: max(shape) * eps of the stored dtype."),
    ] = None,
    control_seeds: Annotated[int, Option(help="Draws that the Gaussian control averages.")] = 5,
    fresh: Annotated[bool, Option(help="Measure fresh initialisation too.")] = True,
    text: Annotated[
        Path | None,
        Option(help="One sentence a line: data-aware ranks, asymmetry of the patterns."),
    ] = None,
    share_projections: Annotated[
        str | None,
        Option(
            metavar="R1,R2,...",
            help="Let the heads of each layer share projections of these widths.",
        ),
    ] = None,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    limit: shared.Limit = None,
    seed: shared.Seed = 0,
) -> None:
    """Measure the ranks of W_Q W_K^T and W_V W_O, per head and per layer, from weights alone.

    Every number stands beside the same number of random matrices.
    """
    call.run()
