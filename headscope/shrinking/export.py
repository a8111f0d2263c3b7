"""``headscope export``: another runtime's file in the folder of a model that was saved earlier."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from headscope.artefacts.onnx_graph import check_exportable
from headscope.core.errors import ArtefactError
from headscope.data.examples import read_texts
from headscope.data.token_rows import padded
from headscope.models.load.loading import load
from headscope.shrinking.bench import as_model
from headscope.shrinking.distil import output_of
from headscope.shrinking.serving import (
    CALIBRATION,
    Files,
    Form,
    need_runtimes,
    parts_of,
)
from headscope.tasks.encoder_tasks import tokenised

#: Largest difference of a float32 file's outputs from the model's, relative to the largest above 1.
_TOLERANCE = 1e-4
_COMPARED = 32  # Texts
#: Heads that may read two texts at once, which a graph tells apart by their token types.
_PAIRS = ("classification", "question-answering")


def write_beside(folder: Path, runtime: str, precision: str, text: Path | None) -> str:
    """Write one file into a model's folder; returns a sentence about it.

    Raises
    ------
    ArtefactError
        If the file, opened again, is not the model: then the folder is as it was.
    """
    need_runtimes([runtime])
    form = Form(runtime, precision)
    model = load(str(folder), task_head="auto")
    check_exportable(model)
    rows, _ = tokenised(model, read_texts(text, CALIBRATION).texts)
    if model.task_head in _PAIRS and "token_type_ids" in model.tokenizer.model_input_names:
        rows = [replace(row, types=(0,) * len(row)) for row in rows]  # then the graph takes types
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    target = folder / form.file
    with tempfile.TemporaryDirectory(dir=folder) as room:
        files = Files(model, Path(room), texts)
        batch = padded(rows[:_COMPARED], model.pad_id, model.device)
        with torch.no_grad():
            expected = output_of(model, batch)
            found = output_of(as_model(model, files.served(form)), batch)
        difference = float((found - expected).abs().max())
        if precision == "float32" and not difference <= _TOLERANCE * max(
            1.0, float(expected.abs().max())
        ):
            raise ArtefactError(
                f"The file differs from the model by {difference:.2g}, so nothing was written into "
                f"{folder}; please report this."
            )
        target.parent.mkdir(exist_ok=True)
        for part in parts_of(files.path(form)):
            os.replace(part, target.parent / part.name)
    return (
        f"Wrote {target} ({sum(p.stat().st_size for p in parts_of(target)) / 1e6:.1f} MB): outputs "
        f"of {len(batch.index)} texts differ from the model's in torch by {difference:.2g} at most."
    )
