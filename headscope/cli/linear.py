"""``headscope linear MODEL``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope linear demo`

`headscope linear ./my-bert --text articles.txt --sentences 200 -o out/`

`headscope linear demo --no-alone --task similarity --data stsb-test.csv`
"""


@model_command("passes")
def linear(
    call: Call,
    text: shared.EffectText = None,
    sentences: shared.EffectSentences = 64,
    alone: Annotated[bool, Option(help="Also make each head alone linear: a pass a head.")] = True,
    control: Annotated[bool, Option(help="Measure random weights beside the model.")] = True,
    task: shared.EffectTask = None,
    data: shared.EffectData = None,
    limit: shared.EffectLimit = None,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    seed: shared.Seed = 0,
) -> None:
    """Take the softmax out of attention: what heads and model lose, and whether keys say why.

    Also with common feature maps, and values stored under N keys and read back.
    """
    call.run()
