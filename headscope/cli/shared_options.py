"""Options that commands share, and the TOML file that can set any of them."""

from __future__ import annotations

import enum
import inspect
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from headscope.cli.settings import read_settings

#: How results are printed on stdout.
Format = enum.StrEnum("Format", ["human", "json", "csv"])
#: What to compute in.
Dtype = enum.StrEnum("Dtype", ["float64", "float32", "bfloat16", "float16"])
#: Where to compute.
Device = enum.StrEnum("Device", ["auto", "cpu", "cuda", "mps"])
#: What the model is measured by.
TaskName = enum.StrEnum("TaskName", ["fidelity", "mlm", "classification", "similarity", "seq2seq"])
#: How the states of a text become one embedding.
PoolingName = enum.StrEnum("PoolingName", ["mean", "cls", "max", "weighted"])
#: Which attention of an encoder-decoder model.
StackName = enum.StrEnum("StackName", ["encoder", "decoder", "cross", "all"])


def _read_config(context: Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command's options; flags still win."""
    table = read_settings(path, context).tables.get(context.info_name or "", {})
    defaults = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in table.items()
        if name != "thresholds"
    }
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


NoValidate = Annotated[
    bool, Option("--no-validate", help="Skip the certificate; the result records it.")
]
Output = Annotated[
    Path | None, Option("--output", "-o", help="Folder for JSON, CSV and figures.", file_okay=False)
]
#: The parameter of commands that write a folder.
OUTPUT = inspect.Parameter(
    "output", inspect.Parameter.KEYWORD_ONLY, annotation=Output, default=None
)
Resume = Annotated[
    bool, Option("--resume", help="Go on from an interrupted run in the folder of -o.")
]
Stack = Annotated[
    StackName | None,
    Option(help="Attention of an encoder-decoder model. Default: all that the input exercises."),
]
Pooling = Annotated[
    PoolingName | None,
    Option(help="How states become one embedding. Default: what the model's folder says."),
]
Limit = Annotated[int | None, Option(help="Only the first sentences.")]
Seed = Annotated[int, Option(help="For everything that is drawn at random.")]

Treebank = Annotated[
    Path | None,
    Option(help="CoNLL-U file that heads are classified on. Default: the built-in sample."),
]
Texts = Annotated[
    Path | None,
    Option(help="Plain text for ranks, spectra and depth. Default: the built-in sample."),
]
TaskOption = Annotated[
    TaskName, Option(help="Measures the model with only its labelled heads (claim 2).")
]
TaskData = Annotated[
    Path | None, Option(help="What that task is measured on. Default: the built-in sample.")
]
Draws = Annotated[int, Option(help="Random sets of heads that they are compared with, 39 or more.")]

EffectText = Annotated[
    Path | None, Option(help="One sentence a line. Default: the built-in sample.")
]
EffectSentences = Annotated[int, Option(help="Lines to read, spread evenly over the text.")]
EffectTask = Annotated[
    TaskName | None, Option(help="Measure changed models by this task too; takes longer.")
]
EffectData = Annotated[Path | None, Option(help="What the task is measured on.")]
EffectLimit = Annotated[
    int | None, Option(help="Only the first lines of the text, and examples of the task.")
]

DtypeOption = Annotated[Dtype, Option(help="Compute in this type, whatever the checkpoint stores.")]
Config = Annotated[
    Path | None,
    Option(
        help="TOML file with a table per command; flags win over it.",
        callback=_read_config,
        is_eager=True,
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress bar, no messages.")]
Debug = Annotated[bool, Option("--debug", help="Show tracebacks.")]


def of_every_model_command(
    context: Context,
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
            show_default=False,
        ),
    ],
    format: Annotated[Format, Option(help="What goes to stdout.")] = Format.human,
    dtype: DtypeOption = Dtype.float32,
    device: Annotated[Device, Option(help="Where to compute; auto: cuda, else cpu.")] = Device.auto,
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a hub id.")] = None,
    allow_pickle: Annotated[
        bool,
        Option(
            "--allow-pickle",
            help="Accept pickled weights; they can hide code, so only if you trust their author.",
        ),
    ] = False,
    config: Config = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Declare what every command that takes a model has; its own options come after the model."""
