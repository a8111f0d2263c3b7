"""``headscope validate MODEL``."""

from __future__ import annotations

import sys

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result

__all__ = ["validate"]

EXAMPLES = "Example: `headscope validate demo`"


def validate(
    model: options.Model,
    format: options.FormatOption = options.Format.human,
    dtype: options.DtypeOption = options.Dtype.float32,
    device: options.DeviceOption = options.Device.auto,
    revision: options.Revision = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Prove that our attention equals the model's: layer by layer, padded and not.

    Compared with the model's own eager and SDPA runs, and with float32 from recorded queries and
    keys. Exits with 3 when anything is off.
    """
    from headscope.pipeline.validate import validate as run
    from headscope.show.validate.tables import validation_csv, validation_report

    result = run(
        model,
        command=command_line(),
        dtype=dtype.value,
        device=device.value,
        revision=revision,
        allow_pickle=allow_pickle,
    )
    print_result(result, format, human=validation_report, csv=validation_csv)
    if not result.passed:
        if not quiet:
            print(f"headscope: validation failed: {'; '.join(result.reasons)}", file=sys.stderr)
        raise typer.Exit(3)
