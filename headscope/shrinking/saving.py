"""Write the smaller model where its users look for it, open it again, and describe it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from headscope.artefacts.saving import whole_folder, write_model
from headscope.artefacts.sentence_transformers import check_embeds
from headscope.core.errors import ArtefactError, InputError
from headscope.core.saved_config import MANIFEST
from headscope.models.load.loading import load
from headscope.models.load.manifest import COMPACT
from headscope.shrinking.bench import Bench
from headscope.shrinking.card import model_card
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import Saved, ShrinkResult
from headscope.shrinking.serving import FORMS, TORCH, Files, Form, parts_of

#: Largest difference of the metric between a model that was measured and its file opened again.
_TOLERANCE = 0.01
SERVED = "served"  # In ``headscope.json``: runtime and precision of the headline


def save(
    files: Files, form: Form, result: ShrinkResult, bench: Bench, options: ShrinkOptions
) -> ShrinkResult:
    """Write one folder; nothing of it is left if it does not hold what was measured."""
    best, folder = result.best, Path(str(options.save))
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
        _note(room, form)
        again = load(str(room.resolve()), dtype=bench.whole.dtype, task_head=bench.whole.task_head)
        check_embeds(again, room)
        opened = Files(again, room, [], written={form: room / file})
        value, _, _ = bench.value(again, opened.served(form))
        measured = value.value or 0.0
        if not abs(measured - (best.value.value or 0.0)) <= _TOLERANCE:
            raise ArtefactError(
                f"The model written for {folder}, opened again, has {measured:.4g} of "
                f"{result.metric} where {best.value.value:.4g} was measured, so the folder was not "
                "kept; please report this.",
                result=result,
            )
        sentences = (room / "modules.json").is_file()
        saved = Saved(str(folder), file, measured, opens)
        result = dataclasses.replace(result, saved=saved)
        card, picture = model_card(result, bench.whole, sentences=sentences)
        (room / "README.md").write_text(card, encoding="utf-8")
        (room / "shrink.png").write_bytes(picture)
    return result


def form_of(folder: Path) -> Form:
    """Return the form that a folder was saved for; torch's where it does not say.

    Raises
    ------
    InputError
        If its file is not there.
    """
    try:
        served = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))[SERVED]
        form = next(f for f in FORMS if {"runtime": f.runtime, "precision": f.precision} == served)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return TORCH
    if form != TORCH and not (folder / form.default_file).is_file():
        raise InputError(f"{folder} has lost its {form.default_file}; save the model anew.")
    return form


def _note(room: Path, form: Form) -> None:
    path, served = room / MANIFEST, {"runtime": form.runtime, "precision": form.precision}
    manifest = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({**manifest, SERVED: served}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
