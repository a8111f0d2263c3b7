"""``headscope symmetric MODEL``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope symmetric demo`

`headscope symmetric ./my-bert --text articles.txt --sentences 200 -o out/`

`headscope symmetric demo --no-alone --task similarity --data stsb-test.csv`
"""


@model_command("passes")
def symmetric(
    call: Call,
    text: shared.EffectText = None,
    sentences: shared.EffectSentences = 64,
    alone: Annotated[bool, Option(help="Also change each head alone: three passes a head.")] = True,
    task: shared.EffectTask = None,
    data: shared.EffectData = None,
    limit: shared.EffectLimit = None,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    seed: shared.Seed = 0,
) -> None:
    """Make attention scores symmetric before the softmax, and say how far the output moves.

    Beside the same heads removed, random heads removed, and random changes of the same size.
    """
    call.run()
