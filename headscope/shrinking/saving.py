"""Write a model, or another runtime's file of it, where its users look; open it again; check it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch

from headscope.artefacts.onnx_graph import check_exportable
from headscope.artefacts.saving import whole_folder, write_model
from headscope.artefacts.sentence_transformers import check_embeds
from headscope.core.errors import ArtefactError, InputError
from headscope.core.saved_config import MANIFEST
from headscope.data.examples import read_texts
from headscope.data.token_rows import padded
from headscope.models.load.loading import load
from headscope.models.load.manifest import COMPACT
from headscope.removal.card import in_folder
from headscope.shrinking.bench import Bench, as_model
from headscope.shrinking.card import model_card, snippets
from headscope.shrinking.distil import output_of
from headscope.shrinking.result import MeasuredModel, Saved, ShrinkResult
from headscope.shrinking.serving import (
    CALIBRATION,
    FORMS,
    TORCH,
    Files,
    Form,
    need_runtimes,
    parts_of,
)
from headscope.tasks.text_rows import tokenised

#: Largest difference of the metric between a model that was measured and its file opened again.
_TOLERANCE = 0.01
#: Largest difference of a float32 file's outputs from the model's, relative to the largest above 1.
_FILE_TOLERANCE = 1e-4
_COMPARED = 32  # Texts
#: Heads that may read two texts at once, which a graph tells apart by their token types.
_PAIRS = ("classification", "question-answering")


SERVED = "served"  # In ``headscope.json``: runtime and precision of the headline


def save(
    files: Files, form: Form, result: ShrinkResult, bench: Bench, folder: Path
) -> ShrinkResult:
    """Write one folder; nothing of it is left if it does not hold what was measured."""
    best = result.best
    full_model = bench.full_model
    assert best is not None
    with whole_folder(folder) as room:
        opens = write_model(
            files.model,
            room,
            COMPACT,
            method="shrink",
            repair=None if best.training is None else "distilled",
            provenance=result.provenance,
        )
        file = form.default_file
        if form != TORCH:
            (room / file).parent.mkdir(exist_ok=True)
            source = files.path(form)
            for part in parts_of(source):  # weights that lie beside it keep its name
                name = part.name.replace(source.stem, Path(file).stem, 1)
                shutil.copyfile(part, (room / file).with_name(name))
        manifest = json.loads((room / MANIFEST).read_text(encoding="utf-8"))
        manifest[SERVED] = {"runtime": form.runtime, "precision": form.precision}
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        (room / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
        again = load(str(room.resolve()), dtype=full_model.dtype, task_head=full_model.task_head)
        check_embeds(again, room)
        opened = Files(again, room, [], written={form: room / file})
        measured = bench.value(again, opened.served(form)).value.value or 0.0
        if not abs(measured - (best.value.value or 0.0)) <= _TOLERANCE:
            raise ArtefactError(
                f"The model written for {folder}, opened again, has {measured:.4g} of "
                f"{result.metric} where {best.value.value:.4g} was measured, so the folder was not "
                "kept; please report this.",
                result=result,
            )
        sentences = (room / "modules.json").is_file()
        code, *_ = snippets(form, full_model, sentences=sentences, opens=opens)
        saved = Saved(str(folder), file, measured, opens, in_folder(code, str(folder)))
        result = dataclasses.replace(result, saved=saved)
        card, picture = model_card(result, full_model, sentences=sentences)
        (room / "README.md").write_text(card, encoding="utf-8")
        (room / "shrink.png").write_bytes(picture)
    return result


def measured_folder(folder: Path, bench: Bench) -> tuple[MeasuredModel, MeasuredModel]:
    """Measure a folder, in the form that it was saved for, against the whole model.

    That form is torch's where the folder does not say. Returns the whole model first.

    Raises
    ------
    InputError
        If there is no such folder, its file is gone, or it was made of another model.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; check takes one that shrink saved.")
    try:
        served = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))[SERVED]
        form = next(f for f in FORMS if {"runtime": f.runtime, "precision": f.precision} == served)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        form = TORCH
    if form != TORCH and not (folder / form.default_file).is_file():
        raise InputError(f"{folder} has lost its {form.default_file}; save the model anew.")
    need_runtimes([form.runtime])
    full_model = bench.full_model
    model = load(str(folder.resolve()), dtype=full_model.dtype, task_head=full_model.task_head)
    same = type(model.network).__name__ == type(full_model.network).__name__
    if not same and not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} holds a {model.family} model and {full_model.name} is a "
            f"{full_model.family}: give the model that the folder was made of."
        )
    files = Files(model, folder, [], written={form: folder / form.default_file})
    times = bench.times(model, files.served(form))
    return (
        bench.measured(bench.files_of_whole, TORCH, times.of_whole()),
        bench.measured(files, form, times),
    )


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
    if model.task_head in _PAIRS and model.token_types.given:
        # Then the graph takes types.
        rows = [dataclasses.replace(row, types=row.types or (0,) * len(row)) for row in rows]
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    target = folder / form.file
    with tempfile.TemporaryDirectory(dir=folder) as room:
        files = Files(model, Path(room), texts)
        batch = padded(rows[:_COMPARED], model.pad_id, model.device)
        with torch.no_grad():
            expected = output_of(model, batch)
            actual = output_of(as_model(model, files.served(form)), batch)
        difference = float((actual - expected).abs().max())
        if precision == "float32" and not difference <= _FILE_TOLERANCE * max(
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
