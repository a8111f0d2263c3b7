"""``headscope classify MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope classify demo`

`headscope classify ./my-bert --treebank en_ewt-ud-test.conllu --control -o out`

`headscope classify demo --text lines.txt --language en --format json`

`headscope classify ./my-marian --text pairs.tsv --control -o out/`

`headscope classify demo --ablate --prefix-matching`

`headscope classify demo --norm-weighted --control`
"""


@model_command("sentences")
def classify(
    call: Call,
    treebank: Annotated[
        Path | None, Option(help="CoNLL-U file with gold trees. Default: the built-in sample.")
    ] = None,
    text: Annotated[
        Path | None,
        Option(
            help="Plain text, one sentence a line; no syntactic roles then. For an encoder-decoder "
            "model also a table of source and target (.tsv, .csv, .jsonl)."
        ),
    ] = None,
    stack: shared.Stack = None,
    frequencies: Annotated[
        Path | None,
        Option(help="Word and count per line, tab between. Default: wordfreq, else the corpus."),
    ] = None,
    language: Annotated[
        str | None, Option(help="ISO code for wordfreq, where the file's name does not tell.")
    ] = None,
    threshold: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Change a threshold, e.g. 'positional=0.8'; repeatable. See docs/classify.md.",
        ),
    ] = None,
    control: Annotated[
        bool, Option(help="Measure random weights too and count their labels.")
    ] = False,
    norm_weighted: Annotated[
        bool,
        Option(
            "--norm-weighted",
            help="Weigh each key by the norm of what it contributes, in place of the pattern; says "
            "which labels of the pattern stay.",
        ),
    ] = False,
    prefix_matching: Annotated[
        bool,
        Option(
            "--prefix-matching",
            help="Score heads on repeated random tokens: the induction score, with its control.",
        ),
    ] = False,
    ablate: Annotated[
        bool,
        Option(
            "--ablate",
            help="Remove every head alone and measure what that does to the output, beside the "
            "roles.",
        ),
    ] = False,
    task: Annotated[
        shared.TaskName, Option(help="What --ablate measures; fidelity needs no labels.")
    ] = shared.TaskName.fidelity,
    data: Annotated[
        Path | None,
        Option(
            help="What --ablate is measured on, one half, with means of the other: text, or CSV, "
            "TSV, JSONL with labels or targets. Default: the built-in sample."
        ),
    ] = None,
    ablate_limit: Annotated[
        int, Option(help="Most examples of each half, drawn at random (mlm: windows).")
    ] = 64,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    resume: shared.Resume = False,
    limit: shared.Limit = None,
    seed: shared.Seed = 0,
) -> None:
    """Say what each head does: positional, syntactic, rare-word and other roles.

    A label comes with what it had to beat, a 95% interval and an adjusted p-value. Swapped trees
    (of cross-attention: swapped sources) and, with --control, random weights show how many come by
    chance.
    """
    call.run()
