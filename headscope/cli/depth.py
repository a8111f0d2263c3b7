"""``headscope depth MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result, progress_bar

__all__ = ["depth"]

EXAMPLES = """Examples:

`headscope depth demo`

`headscope depth ./my-bert --text articles.txt --log -o out/`

`headscope depth demo --sequences 500 --no-control --format json`
"""

Text = Annotated[
    Path | None, typer.Option(help="UTF-8 text to cut windows from. Default: the built-in sample.")
]
Length = Annotated[int, typer.Option(help="Tokens of a window, special tokens included.")]
Sequences = Annotated[int, typer.Option(help="Windows to measure, spread evenly over the text.")]
Control = Annotated[
    bool, typer.Option("--control/--no-control", help="Measure random weights beside the model.")
]
Log = Annotated[
    bool, typer.Option("--log/--no-log", help="Logarithmic axis in the figure of the ratios.")
]


def depth(
    model: options.Model,
    text: Text = None,
    length: Length = 128,
    sequences: Sequences = 32,
    control: Control = True,
    log: Log = False,
    no_validate: options.NoValidate = False,
    output: options.Output = None,
    seed: options.Seed = 0,
    format: options.FormatOption = options.Format.human,
    dtype: options.DtypeOption = options.Dtype.float64,
    device: options.DeviceOption = options.Device.auto,
    revision: options.Revision = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Say whether attention alone makes all tokens alike, and what prevents it.

    Every layer is re-run without its skip connection, feed-forward network or LayerNorm.
    """
    from headscope.pipeline.depth import depth as run
    from headscope.show.cells import to_csv
    from headscope.show.depth.tables import depth_report
    from headscope.show.files import write_result
    from headscope.show.folders import ready_folder

    with ready_folder(output), progress_bar(quiet, "windows") as progress:
        result = run(
            model,
            text,
            length=length,
            sequences=sequences,
            control=control,
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
            write_result("depth", result, output, log=log)
    print_result(result, format, human=depth_report, csv=to_csv)
