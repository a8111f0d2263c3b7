"""``headscope spectrum MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result, progress_bar

__all__ = ["spectrum"]

EXAMPLES = """Examples:

`headscope spectrum demo`

`headscope spectrum demo --control --efficient`

`headscope spectrum ./my-bert --text wiki.txt --length 512 --control -o out/`

`headscope spectrum demo --text wiki.txt --sequences 10000 -o out/ --resume`
"""

Text = Annotated[
    Path | None,
    typer.Option(
        help="Plain text, one sentence or paragraph a line. Default: the built-in sample."
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        "-n",
        help="Tokens of every sequence, special ones included. Default: 128, or "
        "the model's limit if lower.",
    ),
]
K = Annotated[
    int | None, typer.Option("--k", help="How many singular values to count. Default: length / 4.")
]
Sequences = Annotated[
    int | None, typer.Option(help="Measure so many sequences, spread evenly over the text.")
]
Precision = Annotated[
    float | None,
    typer.Option(
        help="Measure sequences in random order until every head's 95% half-width is below this. "
        "Default: 0.01, unless --sequences is given."
    ),
]
LowRank = Annotated[
    float, typer.Option("--low-rank", help="Share above which a head counts as low rank.")
]
Roles = Annotated[
    Path | None,
    typer.Option(
        help="classify.json of the same model, to name positional heads. Default: the one in the "
        "folder of -o, if there."
    ),
]
Efficient = Annotated[
    bool,
    typer.Option(
        "--efficient/--no-efficient",
        help="Measure what could replace full attention: projections, windows, random blocks.",
    ),
]
Control = Annotated[
    bool,
    typer.Option(
        "--control/--no-control",
        help="Measure the same architecture with random weights too, on the same sequences.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from an interrupted run in the folder of -o.")
]


def spectrum(
    model: options.Model,
    text: Text = None,
    length: Length = None,
    k: K = None,
    sequences: Sequences = None,
    precision: Precision = None,
    low_rank: LowRank = 0.9,
    roles: Roles = None,
    efficient: Efficient = False,
    control: Control = False,
    no_validate: options.NoValidate = False,
    output: options.Output = None,
    resume: Resume = False,
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
    """Measure how low the rank of each head's softmax matrix is, and what could replace it.

    Shares of singular values beside closed-form controls and, with --control, random weights; the
    sequences have no padding.
    """
    from headscope.pipeline.spectrum.run import spectrum as run
    from headscope.show.cells import to_csv
    from headscope.show.files import state_name, write_result
    from headscope.show.folders import ready_folder
    from headscope.show.spectrum.tables import spectrum_report

    with ready_folder(output), progress_bar(quiet, "sequences") as progress:
        result = run(
            model,
            text,
            length=length,
            k=k,
            sequences=sequences,
            precision=precision,
            low_rank=low_rank,
            roles=roles,
            folder=output,
            efficient=efficient,
            control=control,
            validate=not no_validate,
            seed=seed,
            state=output / state_name("spectrum") if output else None,
            resume=resume,
            progress=progress,
            command=command_line(),
            dtype=dtype.value,
            device=device.value,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        if output is not None:
            write_result("spectrum", result, output)
    print_result(result, format, human=spectrum_report, csv=to_csv)
