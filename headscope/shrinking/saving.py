"""Write a model, or another runtime's file of it, where its users look; open it again; check it.

:func:`save` writes the folder of ``shrink --save``, :func:`measured_folder` measures one for
``shrink --check``, and :func:`write_beside` is ``export``: one file more in a folder that is there.

A *form* is a runtime and a precision; ``Files`` holds a model with its file in every form, written
when it is asked for; a ``Bench`` measures models beside the whole one on the same data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from headscope.artefacts.onnx_graph import check_exportable
from headscope.artefacts.saving import megabytes_of_folder, whole_folder, write_model
from headscope.artefacts.sentence_outputs import check_embeds
from headscope.core.disk import need_room, writing
from headscope.core.errors import ArtefactError, InputError, UnwrittenError
from headscope.core.saved_config import MANIFEST
from headscope.data.examples import read_texts
from headscope.data.token_rows import Row, padded
from headscope.models.load.loading import load
from headscope.models.load.sentence_files import MODULES
from headscope.models.run.loaded import LoadedModel
from headscope.removal.card import CARD, in_folder
from headscope.shrinking.bench import Bench
from headscope.shrinking.card import model_card, snippets
from headscope.shrinking.distil import output_of
from headscope.shrinking.elsewhere import as_model
from headscope.shrinking.result import MeasuredModel, Saved, ShrinkResult
from headscope.shrinking.serving import (
    CALIBRATION,
    FORMS,
    GRAPH,
    TORCH,
    Files,
    Form,
    bytes_of_form,
    files_of_graph,
    need_runtimes,
)
from headscope.tasks.text_rows import tokenised

#: Largest difference of the metric between a model that was measured and its file opened again.
_TOLERANCE = 0.01
#: Largest difference of a float32 file's outputs from the model's, relative to the largest output
#: if that exceeds 1.
_FILE_TOLERANCE = 1e-4
_COMPARED = 32  # Texts on which a file's outputs are compared with the model's
#: Heads that may read two texts at once, which a graph tells apart by their token types.
_PAIRS = ("classification", "question-answering")
SERVED = "served"  # Key of ``headscope.json``: the form in which the folder is to be served


def save(
    files: Files, form: Form, result: ShrinkResult, bench: Bench, folder: Path
) -> ShrinkResult:
    """Write the chosen model into a folder, opened again and measured before it is kept.

    ``files`` are the model's, ``form`` is the one that was chosen, ``result`` says what was
    measured. Returns the result, which then says what was saved too.

    Raises
    ------
    ArtefactError
        If the folder, opened again, has another value of the metric.
    """
    best = result.best
    full_model = bench.full_model
    assert best is not None
    with whole_folder(folder, by="shrink") as temporary:
        # the model, and its file of another runtime
        opens = write_model(
            files.model,
            temporary,
            method="shrink",
            repair=None if best.training is None else "distilled",
            provenance=result.provenance,
        )
        if form != TORCH:
            _copy_graph(files.path(form), temporary / form.default_file)
        _record_form(form, temporary)

        # opened again, and measured
        again = _opened(temporary, full_model)
        check_embeds(again, temporary)
        measured = _measured_again(again, form, temporary, bench)
        if not abs(measured - (best.value.value or 0.0)) <= _TOLERANCE:
            raise ArtefactError(
                f"The model written for {folder}, opened again, has {measured:.4g} of "
                f"{result.metric} where {best.value.value:.4g} was measured, so the folder was not "
                "kept; please report this."
            )

        # the card, which says how to open it
        sentences = (temporary / MODULES).is_file()  # sentence-transformers opens the folder too
        code = snippets(form, full_model, sentences=sentences, opens=opens)[0]
        saved = Saved(
            folder=str(folder),
            file=form.default_file,
            measured=measured,
            opens=opens,
            code=in_folder(code, str(folder)),
        )
        result = dataclasses.replace(result, saved=saved)
        card, picture = model_card(result, full_model, sentences=sentences)
        (temporary / CARD).write_text(card, encoding="utf-8")
        (temporary / "shrink.png").write_bytes(picture)
        saved = dataclasses.replace(saved, megabytes=megabytes_of_folder(temporary))
        return dataclasses.replace(result, saved=saved)


def _copy_graph(source: Path, target: Path) -> None:
    """Copy a graph under another name, and the files with its weights accordingly.

    ``model_int8.xml`` and ``model_int8.bin`` to ``model.xml`` -> ``model.xml``, ``model.bin``.
    """
    target.parent.mkdir(exist_ok=True)
    for file in files_of_graph(source):
        name = file.name.replace(source.stem, target.stem, 1)
        shutil.copyfile(file, target.with_name(name))


def _record_form(form: Form, folder: Path) -> None:
    """Let a folder's manifest name the form in which it is to be served."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest[SERVED] = _record_of(form)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def _record_of(form: Form) -> dict[str, str]:
    return {"runtime": form.runtime, "precision": form.precision}


def _opened(folder: Path, full_model: LoadedModel) -> LoadedModel:
    """Open a folder in the dtype, and with the task head, of the whole model."""
    return load(str(folder.resolve()), dtype=full_model.dtype, task_head=full_model.task_head)


def _measured_again(model: LoadedModel, form: Form, folder: Path, bench: Bench) -> float:
    """Return the metric of a folder's file in one form."""
    files = Files(model, folder, [], written={form: folder / form.default_file})
    return bench.measurement(model, files.served(form)).value.value or 0.0


def measured_folder(folder: Path, bench: Bench) -> tuple[MeasuredModel, MeasuredModel]:
    """Measure a folder, in the form that it was saved for, beside the whole model.

    The form is torch's where the folder does not say. Returns the whole model and the folder's.

    Raises
    ------
    InputError
        If there is no such folder, its file is gone, it was made of another model, or it is served
        in a form that there is no more.
    """
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; check takes one that shrink saved.")
    form = _form_of(folder)
    if form != TORCH and not (folder / form.default_file).is_file():
        raise InputError(f"{folder} has lost its {form.default_file}; save the model anew.")
    need_runtimes([form.runtime])

    # whether it was made of the whole model
    full_model = bench.full_model
    model = _opened(folder, full_model)
    same = type(model.network).__name__ == type(full_model.network).__name__
    if not same and not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} holds a {model.family} model and {full_model.name} is a "
            f"{full_model.family}: give the model that the folder was made of."
        )
    if model.vocab_size != full_model.vocab_size:
        raise InputError(
            f"{folder} has a vocabulary of {model.vocab_size:,} rows and {full_model.name} one of "
            f"{full_model.vocab_size:,}, so they read texts otherwise; save the model anew."
        )

    # both, timed in turns
    files = Files(model, folder, [], written={form: folder / form.default_file})
    times = bench.times(model, files.served(form))
    return (
        bench.measured(bench.files_of_whole, TORCH, times.of_whole()),
        bench.measured(files, form, times),
    )


def _form_of(folder: Path) -> Form:
    """Read from its manifest in which form a folder is served; torch's where it does not say."""
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))[SERVED]
    except (OSError, ValueError, KeyError, TypeError):  # no manifest, or one that says nothing
        return TORCH
    for form in FORMS:
        if _record_of(form) == record:
            return form
    raise InputError(
        f"{folder} is served by a form that shrink no longer has ({record}); save the model anew."
    )


def write_beside(
    folder: Path, runtime: str, precision: str, text: Path | None
) -> tuple[str, list[str]]:
    """Write a file in another form into a model's folder.

    ``text`` calibrates 8 bits, and the file is compared with the model on it. Returns a sentence
    about the file, and the Python that opens it: by its runtime, and by sentence-transformers.

    Raises
    ------
    ArtefactError
        If the file, opened again, is not the model: then the folder is as it was.
    """
    need_runtimes([runtime])
    form = Form(runtime, precision)
    model = load(str(folder), task_head="auto")
    check_exportable(model)
    need_room(
        folder,
        sum(bytes_of_form(model, written) for written in {GRAPH, form}),
        "the file, with the graph it is made from,",
        largest_file=bytes_of_form(model, GRAPH),
    )
    rows = _calibration_rows(model, text)
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    target = folder / form.file
    with (
        writing(target),
        tempfile.TemporaryDirectory(dir=folder) as temporary,
        _named_in(folder, temporary),
    ):
        files = Files(model, Path(temporary), texts)

        # the outputs of the file, opened again, and of the model
        batch = padded(rows[:_COMPARED], model.pad_id, model.device)
        with torch.no_grad():
            expected = output_of(model, batch)
            actual = output_of(as_model(model, files.served(form)), batch)
        difference = float((actual - expected).abs().max())
        tolerance = _FILE_TOLERANCE * max(1.0, float(expected.abs().max()))
        if precision == "float32" and not difference <= tolerance:
            raise ArtefactError(
                f"The file differs from the model by {difference:.2g}, so nothing was written into "
                f"{folder}; please report this."
            )

        # moved into the folder
        target.parent.mkdir(exist_ok=True)
        for file in files_of_graph(files.path(form)):
            os.replace(file, target.parent / file.name)
    megabytes = sum(file.stat().st_size for file in files_of_graph(target)) / 1e6
    sentence = (
        f"Wrote {target} ({megabytes:.1f} MB): outputs of {len(batch.index)} texts differ from the "
        f"model's in torch by {difference:.2g} at most."
    )
    sentences = (folder / MODULES).is_file()
    codes = snippets(form, model, sentences=sentences, file=form.file)
    return sentence, [in_folder(code, str(folder)) for code in codes]


@contextmanager
def _named_in(folder: Path, temporary: str) -> Iterator[None]:
    """Let an error about a file of a temporary folder name the file that the user is to get."""
    try:
        yield
    except UnwrittenError as error:
        raise UnwrittenError(str(error).replace(temporary, str(folder))) from error


def _calibration_rows(model: LoadedModel, text: Path | None) -> list[Row]:
    """Read texts to calibrate and to compare on; with token types if the graph is to take them."""
    rows, _ = tokenised(model, read_texts(text, CALIBRATION).texts)
    if model.task_head in _PAIRS and model.token_types.given:
        return [dataclasses.replace(row, types=row.types or (0,) * len(row)) for row in rows]
    return list(rows)
