"""``headscope export FOLDER onnx|openvino``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import print_human

EXAMPLES = """Examples:

`headscope export ./small onnx`

`headscope export ./small openvino --precision int8 --text sentences.txt`
"""

Kind = enum.StrEnum("Kind", ["onnx", "openvino"])
#: How numbers are held in the file.
Precision = enum.StrEnum(
    "Precision", {"float32": "float32", "int8": "int8", "dynamic": "int8-dynamic"}
)


def export(
    folder: Annotated[
        Path,
        Argument(help="A model folder; the file is written into it.", show_default=False),
    ],
    kind: Annotated[Kind, Argument(help="Which runtime is to open it.", show_default=False)],
    precision: Annotated[
        Precision,
        Option(help="int8 takes ranges of activations from text; int8-dynamic is for onnx only."),
    ] = Precision.float32,
    text: Annotated[
        Path | None,
        Option(help="Text without labels to calibrate int8 on. Default: the built-in sample."),
    ] = None,
    config: shared.Config = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Write a saved model as a file of another runtime, where sentence-transformers looks for it.

    The file is opened again and compared with the model in torch before it gets its name.
    """
    if kind is Kind.openvino and precision is Precision.dynamic:
        raise BadParameter("openvino has float32 and int8", param_hint="'--precision'")
    if not folder.is_dir():
        raise BadParameter(f"there is no folder {folder}", param_hint="'FOLDER'")

    from headscope.shrinking.saving import write_beside

    runtime = "openvino" if kind is Kind.openvino else "onnxruntime"
    said = write_beside(folder, runtime, precision.value.replace("-", " "), text)
    if not quiet:
        print_human(said)
