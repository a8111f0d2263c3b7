"""``headscope transfer MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope transfer demo`

`headscope transfer ./my-bert --train train.tsv --test test.tsv --sizes 64,256`

`headscope transfer demo --variants head,layernorm --seeds 5 --budget 120`
"""

_VARIANTS = "head, layernorm, biases, weights, lora, all_biases, attention, all"


@model_command("runs")
def transfer(
    call: Call,
    train: Annotated[
        Path | None,
        Option(help="Labelled sentences or pairs to train on. Default: a built-in task."),
    ] = None,
    test: Annotated[
        Path | None, Option(help="Labelled examples that accuracy is measured on.")
    ] = None,
    sizes: Annotated[
        str | None,
        Option(metavar="N,N,...", help="Training examples. Default: 64 and all there are."),
    ] = None,
    seeds: Annotated[int, Option(help="Runs of each variant, start and size.")] = 3,
    spread_seeds: Annotated[
        int,
        Option(
            help="Runs of attention and layernorm at the smallest size, and at 3 and 10 times "
            "their best rates."
        ),
    ] = 5,
    variants: Annotated[
        str | None,
        Option(metavar="NAME,NAME,...", help=f"What to train: {_VARIANTS}. Default: all eight."),
    ] = None,
    random: Annotated[
        str | None,
        Option(
            metavar="NAME,NAME,...",
            help="What to train from random weights too. Default: head,layernorm,attention,all.",
        ),
    ] = None,
    steps: Annotated[int, Option(help="Most steps of a run.")] = 64,
    batch: Annotated[int, Option(help="Examples of a step.")] = 16,
    patience: Annotated[int, Option(help="Validations without gain before a run stops.")] = 3,
    search: Annotated[
        bool,
        Option(
            help="Choose learning rates on validation data, from grids that grow while the best "
            "one lies at an edge; else the middle of the grid."
        ),
    ] = True,
    budget: Annotated[float, Option(help="Seconds for all runs; what is not reached is said.")] = (
        540.0
    ),
    train_limit: Annotated[int, Option(help="Examples drawn of --train; 0 for all.")] = 512,
    test_limit: Annotated[int, Option(help="Examples drawn of --test; 0 for all.")] = 400,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    seed: shared.Seed = 0,
) -> None:
    """Fine-tune LayerNorm only, attention only, everything, or equally many other parameters.

    From pretrained and random weights, with several seeds; the model itself is not changed.
    """
    call.run()
