"""``headscope export``: a saved model as a file of another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.flags import Choice, Debug, Quiet
from headscope.cli.output import print_human
from headscope.cli.settings import ConfigFile

_RUNTIMES = Choice(("onnx", "openvino"))
_PRECISIONS = Choice(("float32", "int8", "int8-dynamic"))


def export(
    folder: Annotated[
        Path,
        typer.Argument(help="A model folder; the file is written into it.", show_default=False),
    ],
    kind: Annotated[
        str,
        typer.Argument(
            help="Which runtime is to open it.",
            parser=_RUNTIMES,
            metavar="[onnx|openvino]",
            show_default=False,
        ),
    ],
    precision: Annotated[
        str,
        typer.Option(
            help="int8 takes ranges of activations from text; int8-dynamic is for onnx only. One "
            "of float32, int8, int8-dynamic.",
            parser=_PRECISIONS,
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
    if kind == "openvino" and precision == "int8-dynamic":
        raise typer.BadParameter("openvino has float32 and int8", param_hint="'--precision'")
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="'FOLDER'")

    from headscope.shrinking.saving import write_beside

    runtime = "openvino" if kind == "openvino" else "onnxruntime"
    sentence = write_beside(folder, runtime, precision.replace("-", " "), text)
    if not quiet:
        print_human(sentence)
