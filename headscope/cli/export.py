"""``headscope export``: a saved model as a file of another runtime.

A function of typer: its parameters are the arguments and flags of the command. ``Choice`` is a flag
that takes one of some words; ``ConfigFile`` is ``--config``, whose file has changed the defaults of
the other flags before this function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.flags import Choice, Debug, Quiet
from headscope.cli.output import print_human
from headscope.cli.settings import ConfigFile

#: The precisions that each kind of file has. ``int8`` is calibrated on text; ``int8-dynamic`` finds
#: the ranges of activations while the model runs.
_PRECISIONS = {
    "onnx": ("float32", "int8-dynamic"),
    "openvino": ("float32", "int8"),
}
#: The runtime that opens each kind.
_RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino"}


def export(
    folder: Annotated[
        Path,
        typer.Argument(help="A model folder; the file is written into it.", show_default=False),
    ],
    kind: Annotated[
        str,
        typer.Argument(
            help="Which runtime is to open it: onnx or openvino.",
            parser=Choice(tuple(_PRECISIONS)),
            metavar="RUNTIME",
            show_default=False,
        ),
    ],
    precision: Annotated[
        str,
        typer.Option(
            help="int8, of openvino only, takes ranges of activations from text; int8-dynamic is "
            "for onnx only. One of float32, int8, int8-dynamic.",
            parser=Choice(("float32", "int8", "int8-dynamic")),
            metavar="NAME",
        ),
    ] = "float32",
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text without labels to calibrate int8 on. Default: the built-in sample."
        ),
    ] = None,
    quiet: Quiet = False,
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Write a saved model as a file of another runtime, where sentence-transformers looks for it.

    The file is opened again and compared with the model in torch before it gets its name.
    """
    if precision not in _PRECISIONS[kind]:
        choices = " and ".join(_PRECISIONS[kind])
        raise typer.BadParameter(f"{kind} has {choices}", param_hint="'--precision'")
    if not folder.is_dir():
        fault = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise typer.BadParameter(
            f"{fault}; give a folder that save_pretrained, prune or shrink wrote",
            param_hint="'FOLDER'",
        )

    from rich.text import Text

    from headscope.shrinking.saving import write_beside

    sentence, codes = write_beside(folder, _RUNTIMES[kind], precision.replace("-", " "), text)
    if quiet:
        return
    print_human(sentence)
    for code in codes:
        print_human(Text(f"\n{code}", no_wrap=True))
