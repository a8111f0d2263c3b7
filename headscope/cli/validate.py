"""``headscope validate MODEL``."""

from __future__ import annotations

import typer

from headscope.cli.command import Call, model_command
from headscope.cli.output import print_note

EXAMPLES = "Example: `headscope validate demo`"


@model_command()
def validate(call: Call) -> None:
    """Prove that our attention equals the model's: layer by layer, padded and not.

    Compared with the model's own eager and SDPA runs, and with float32 from recorded queries and
    keys. Exits with 3 when anything is off.
    """
    result = call.run()
    if not result.passed:
        print_note(f"validation failed: {'; '.join(result.reasons)}", call.values["quiet"])
        raise typer.Exit(3)
