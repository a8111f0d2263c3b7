"""``headscope classify MODEL``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result, progress_bar
from headscope.errors import InputError

__all__ = ["classify"]

EXAMPLES = """Examples:

`headscope classify demo`

`headscope classify ./my-bert --treebank en_ewt-ud-test.conllu --control -o out/`

`headscope classify demo --text lines.txt --language en --format json`
"""

Treebank = Annotated[
    Path | None, typer.Option(help="CoNLL-U file with gold trees. Default: the built-in sample.")
]
Text = Annotated[
    Path | None, typer.Option(help="Plain text, one sentence a line; no syntactic roles then.")
]
Frequencies = Annotated[
    Path | None,
    typer.Option(help="Word and count per line, tab between. Default: wordfreq, else the corpus."),
]
Language = Annotated[
    str | None, typer.Option(help="ISO code for wordfreq, where the file's name does not tell.")
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Change a threshold, e.g. 'positional=0.8'; repeatable. See docs/classify.md.",
    ),
]
Control = Annotated[
    bool,
    typer.Option(
        "--control/--no-control", help="Measure random weights too and count their labels."
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from an interrupted run in the folder of -o.")
]


def classify(
    context: typer.Context,
    model: options.Model,
    treebank: Treebank = None,
    text: Text = None,
    frequencies: Frequencies = None,
    language: Language = None,
    threshold: ThresholdOption = None,
    control: Control = False,
    no_validate: options.NoValidate = False,
    output: options.Output = None,
    resume: Resume = False,
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
    """Say what each head does: positional, syntactic, rare-word and other roles.

    A label comes with what it had to beat, a 95% interval and an adjusted p-value. Swapped trees
    and, with --control, random weights show how many come by chance.
    """
    if treebank is not None and text is not None:
        raise typer.BadParameter("give --treebank or --text, not both")
    thresholds = _thresholds(context.meta.get("thresholds", {}), threshold or [])

    from headscope.data.corpus import open_text, open_treebank
    from headscope.pipeline.classify import classify as run
    from headscope.show.cells import to_csv
    from headscope.show.classify.tables import classify_report
    from headscope.show.files import state_name, write_result
    from headscope.show.folders import ready_folder

    corpus = open_treebank(treebank) if treebank else open_text(text) if text else None
    with ready_folder(output), progress_bar(quiet) as progress:
        result = run(
            model,
            corpus,
            frequencies=frequencies,
            language=language,
            thresholds=thresholds,
            control=control,
            validate=not no_validate,
            limit=limit,
            seed=seed,
            state=output / state_name("classify") if output else None,
            resume=resume,
            progress=progress,
            command=command_line(),
            dtype=dtype.value,
            device=device.value,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        if output is not None:
            write_result("classify", result, output)
    print_result(result, format, human=classify_report, csv=to_csv)


def _thresholds(from_config: dict[str, Any], from_flags: list[str]) -> Any:
    """Build the thresholds from the TOML table and the flags; flags win."""
    from headscope.measures.classify.thresholds import Thresholds

    values = dict(from_config)
    for item in from_flags:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"--threshold {item!r}: write NAME=VALUE, such as positional=0.8.")
        values[name.strip()] = value.strip()
    return Thresholds.parse(values)
