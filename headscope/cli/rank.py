"""``headscope rank MODEL``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result, progress_bar

__all__ = ["rank"]

EXAMPLES = """Examples:

`headscope rank demo`

`headscope rank demo --text lines.txt -o out/`

`headscope rank demo --share-projections 48,96,192,288 --no-fresh`
"""


class Share(enum.StrEnum):
    """Of what the dimensions hold a share."""

    sigma2 = "sigma2"
    sigma = "sigma"


class Biases(enum.StrEnum):
    """What to do with b_Q and b_V."""

    exclude = "exclude"
    include = "include"


ShareOption = Annotated[
    Share, typer.Option("--share", help="Count the dimensions that hold 90/95/99% of this.")
]
BiasesOption = Annotated[
    Biases,
    typer.Option("--biases", help="Include b_Q and b_V by augmenting the input with a 1."),
]
Fold = Annotated[
    bool,
    typer.Option(
        "--fold-layernorm/--no-fold-layernorm",
        help="Fold the preceding LayerNorm's gain into the weights.",
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(help="For the numerical rank. Default: max(shape) * eps of the stored dtype."),
]
Seeds = Annotated[int, typer.Option(help="Draws that the Gaussian control averages.")]
Fresh = Annotated[
    bool, typer.Option("--fresh/--no-fresh", help="Measure fresh initialisation too.")
]
Text = Annotated[
    Path | None,
    typer.Option(help="One sentence a line: data-aware ranks, asymmetry of the patterns."),
]
Widths = Annotated[
    str | None,
    typer.Option(
        metavar="R1,R2,...", help="Let the heads of each layer share projections of these widths."
    ),
]


def rank(
    model: options.Model,
    share: ShareOption = Share.sigma2,
    biases: BiasesOption = Biases.exclude,
    fold_layernorm: Fold = False,
    rtol: Rtol = None,
    control_seeds: Seeds = 5,
    fresh: Fresh = True,
    text: Text = None,
    share_projections: Widths = None,
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
    """Measure the ranks of W_Q W_K^T and W_V W_O, per head and per layer, from weights alone.

    Every number stands beside the same number of random matrices.
    """
    widths = _widths(share_projections)

    from headscope.pipeline.rank.run import rank as run
    from headscope.show.cells import to_csv
    from headscope.show.files import write_result
    from headscope.show.folders import ready_folder
    from headscope.show.rank.tables import rank_report

    with ready_folder(output), progress_bar(quiet, "layers") as progress:
        result = run(
            model,
            share=share.value,
            biases=biases is Biases.include,
            fold_layernorm=fold_layernorm,
            rtol=rtol,
            control_seeds=control_seeds,
            fresh=fresh,
            text=text,
            share_projections=widths,
            limit=limit,
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
            write_result("rank", result, output)
    print_result(result, format, human=rank_report, csv=to_csv)


def _widths(text: str | None) -> tuple[int, ...]:
    """Read ``48,96,192``."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of widths; write them as 48,96,192",
            param_hint="'--share-projections'",
        ) from None
