"""``headscope explain MODEL SENTENCE``."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope explain demo "The cat sat on the mat."`

`headscope explain demo "She did not see it." --layer 2 --head 5 -o out/`

`headscope explain ./my-bert "The cat sat on the mat." --format json`
"""


@model_command()
def explain(
    call: Call,
    sentence: Annotated[
        str,
        Argument(metavar="SENTENCE", help="Followed through the model.", show_default=False),
    ],
    layer: Annotated[
        int | None, Option(help="Layer, from 0. Default: that of the head that is chosen.")
    ] = None,
    head: Annotated[
        int | None,
        Option(
            help="Head, from 0. Default: the one that links this sentence's words most clearly."
        ),
    ] = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
) -> None:
    """Teach attention with a sentence and this model's own numbers, step by step.

    Every step is held against what the model computes itself; a difference ends with exit code 3.
    """
    call.run()
