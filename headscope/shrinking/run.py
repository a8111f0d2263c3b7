"""``headscope shrink``: open, climb the ladder, write what was chosen.

Or, with ``--check``, measure a folder that was saved before. A ``Bench`` measures models beside the
whole one; the ``Ladder`` makes ever smaller ones until one is good enough.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from headscope.artefacts.saving import bytes_in_memory, failure_with, reserved, room_of_save
from headscope.core.disk import need_room, on_one_disk
from headscope.core.errors import ArtefactError, InputError, InterruptedRunError, UnwrittenError
from headscope.core.serialise import SCHEMA
from headscope.models.anatomy.feed_forward import has_experts
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.head_outputs import gives_one_score
from headscope.models.run.loaded import LoadedModel
from headscope.removal.times import affordable_batch
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.shrinking.bench import Bench
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.saving import measured_folder, save
from headscope.shrinking.serving import (
    FORMS,
    GRAPH,
    Form,
    bytes_of_form,
    installed_runtimes,
    lacks_vnni,
    need_runtimes,
    room_of_forms,
)
from headscope.shrinking.text import Texts, read_all
from headscope.stats.confirm import need_examples

BATCH_SIZE = 32  # Texts that are run together while models are timed; fewer of a large model
#: Smaller models whose files lie beside those of the whole one: the best so far, and the next.
_SMALLER_MODELS = 2


def run(model: Model, options: ShrinkOptions) -> ShrinkResult:
    """Measure the whole model in every form; go on to smaller ones where a target asks for it."""
    with reserved(options.save, by="shrink"):
        return _run(model, options)


def _run(model: Model, options: ShrinkOptions) -> ShrinkResult:
    """Open, prove, measure, and save where that was asked for."""
    # open
    need_runtimes(options.runtimes or ())
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    texts = _read(options, loaded)
    _check_readable(loaded, options)
    forms = [form for form in FORMS if form.runtime in _runtimes(loaded, options)]

    # prove
    validation = require_valid(loaded, options.validate)

    # measure
    task = texts.evaluation_task(loaded)
    texts.training_rows(loaded)  # refuses what does not fit before anything is measured
    if options.max_drop is not None:
        need_examples(task.n_examples, task.data.name)
    with tempfile.TemporaryDirectory() as folder:
        _need_room(loaded, forms, Path(folder), options)
        bench = Bench(
            loaded,
            task,
            texts,
            Path(folder),
            batch_size=options.batch_size or affordable_batch(loaded, task.rows, BATCH_SIZE),
            seed=options.seed,
        )
        if options.max_drop is not None:
            _check_meaningful(bench)
        if options.check_folder is not None:
            return _checked(Path(options.check_folder), bench, options, validation)
        return _climbed(bench, options, validation)


def _need_room(
    loaded: LoadedModel, forms: Sequence[Form], temporary: Path, options: ShrinkOptions
) -> None:
    """Refuse, before anything is measured, disks that may lack the room for what is written.

    ``forms`` are those of the whole model, whose files are written into the folder ``temporary``;
    the model that is saved gets a file in one of them. A folder that is checked has its own.
    """
    if options.check_folder is not None:
        return

    # files that are measured
    largest_form = max((bytes_of_form(loaded, form) for form in forms), default=0.0)
    n_bytes = room_of_forms(loaded, forms)
    if options.searches and largest_form:
        n_bytes += _SMALLER_MODELS * (bytes_of_form(loaded, GRAPH) + largest_form)
    need_room(
        temporary,
        n_bytes,
        "the files of every form that is measured",
        largest_file=bytes_of_form(loaded, GRAPH) if largest_form else 0.0,
        remedy="set TMPDIR to a folder on another disk, or name fewer runtimes",
    )

    # the model that is saved
    if options.save is None:
        return
    folder = Path(options.save)
    name = "the model that is to be saved"
    saved_bytes = room_of_save(loaded, changes_weights=True) + largest_form
    if on_one_disk(folder, temporary):
        saved_bytes += n_bytes
        name = f"{name}, with the files of every form that is measured,"
    need_room(
        folder,
        saved_bytes,
        name,
        largest_file=max(largest_form, bytes_in_memory(loaded)),
    )


def _read(options: ShrinkOptions, loaded: LoadedModel) -> Texts:
    """Read every text that the run needs: to measure, to train and calibrate, to compare."""
    makes_smaller = options.searches and options.check_folder is None
    return read_all(
        options.task,
        options.data,
        options.text or (),
        options.other_text,
        limit=options.limit,
        seed=options.seed,
        trains=makes_smaller,
        calibrates=options.check_folder is None,
        reads_pairs=gives_one_score(loaded),
    )


def _check_readable(loaded: LoadedModel, options: ShrinkOptions) -> None:
    """Refuse a model without a tokenizer, and an encoder-decoder in a task that reads only."""
    need_tokenizer(loaded, "shrink")
    if loaded.encoder_decoder and options.task != "seq2seq":
        raise InputError(
            f"{loaded.name} is an encoder-decoder model; shrink measures what it writes: choose "
            "the task seq2seq, with pairs of source and target."
        )


def _check_meaningful(bench: Bench) -> None:
    """Refuse to bound a loss where the whole model's own values mean nothing."""
    why = bench.degenerate
    if why is not None:
        raise InputError(
            f"The whole model {why}: what a smaller one loses says nothing about it, so "
            "max_drop cannot be used; give speed, ms or mb, or data that the model tells apart."
        )


def _checked(
    folder: Path, bench: Bench, options: ShrinkOptions, validation: ValidationSummary
) -> ShrinkResult:
    """Measure a saved folder, and say which of the targets it misses."""
    whole, smaller = measured_folder(folder, bench)
    metric = bench.task.metric
    missed: list[str] = []
    if not smaller.reaches(options.target):
        missed.append(f"{options.target} was asked for, and it has {smaller.extent}")
    if not smaller.keeps(options.max_drop):
        missed.append(
            f"at most {options.max_drop:g} of {metric} may be lost, and "
            f"{smaller.excess(metric, options.max_drop)}"
        )
    return _result(
        bench,
        options,
        validation,
        models=(whole, smaller),
        chosen=1,
        reached=not missed,
        checked=str(folder),
        stopped=f"{'; '.join(missed)}." if missed else "",
    )


def _climbed(bench: Bench, options: ShrinkOptions, validation: ValidationSummary) -> ShrinkResult:
    """Climb the ladder, and save what was chosen.

    Raises
    ------
    ArtefactError
        If a target was given and nothing reaches it, or a file could not be written; with what was
        measured.
    InterruptedRunError
        On Ctrl-C, with what was measured before.
    """
    ladder = Ladder(
        bench,
        _runtimes(bench.full_model, options),
        target=options.target,
        max_drop=options.max_drop,
        minutes=options.minutes,
        tell=options.tell,
    )

    def result_so_far() -> ShrinkResult:
        return _result(
            bench,
            options,
            validation,
            models=ladder.models,
            refused=(*_not_tried(bench.full_model, options), *ladder.whole.refused),
            lead=ladder.whole.lead,
            chosen=ladder.chosen,
            reached=ladder.reached,
            stopped=ladder.stopped,
        )

    try:
        ladder.climb()
    except KeyboardInterrupt:
        if not ladder.models:
            raise
        ladder.stopped = "The run was interrupted; these were measured before."
        raise InterruptedRunError(result_so_far()) from None
    except UnwrittenError as error:  # a file of another runtime had no room
        if not ladder.models:
            raise
        raise ArtefactError(str(error), result=result_so_far()) from error
    result = result_so_far()
    if options.save is not None and ladder.files is not None and ladder.reached:
        options.tell("saving", 0, 1)
        with failure_with(result):
            result = save(ladder.files, ladder.form, result, bench, Path(options.save))
    if options.searches and not ladder.reached:
        raise ArtefactError(ladder.stopped, result=result)
    return result


def _runtimes(loaded: LoadedModel, options: ShrinkOptions) -> tuple[str, ...]:
    """Return the runtimes that a model is measured in: those asked for, or all that are there."""
    asked_for = tuple(dict.fromkeys(options.runtimes or ()))  # each once
    if asked_for:
        return asked_for
    return ("torch",) if _writes(loaded) else installed_runtimes()


def _writes(loaded: LoadedModel) -> bool:
    """Whether a model writes token by token, which no graph of another runtime holds."""
    return loaded.task_head in ("seq2seq", "causal")


def _not_tried(loaded: LoadedModel, options: ShrinkOptions) -> tuple[str, ...]:
    """Say why no other runtime than torch is measured, where none was asked for by name."""
    if options.runtimes or not _writes(loaded):
        return ()
    return ("onnxruntime and openvino, since this model writes token by token.",)


def _result(
    bench: Bench, options: ShrinkOptions, validation: ValidationSummary, **measured: Any
) -> ShrinkResult:
    """Put what was measured beside what it was measured on."""
    task = bench.task
    texts = bench.texts
    names = texts.names
    if not names and texts.training.name:
        names = (texts.training.name,)
    warnings = list(texts.warnings)
    if any(model.training is not None for model in measured["models"]):
        warnings += texts.training_warnings()
    warnings += task.notes
    warnings += _remarks(bench)
    return ShrinkResult(
        schema=SCHEMA,
        provenance=provenance(
            bench.full_model, command=options.command, seed=options.seed, data=task.data
        ),
        validation=validation,
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        examples=task.n_examples,
        data=task.data.name,
        batch_size=bench.batch_size,
        threads=torch.get_num_threads(),
        cores=os.cpu_count() or 0,
        target=options.target,
        max_drop=options.max_drop,
        text=names,
        sentences=len(texts.training),
        dropped=texts.dropped,
        warnings=tuple(warnings),
        **measured,
    )


def _remarks(bench: Bench) -> Iterator[str]:
    """Say what makes the values, or the times of forms in 8 bits, doubtful."""
    if (why := bench.degenerate) is not None:
        yield f"The whole model {why}, so no value here means anything."
    yield from bench.doubts
    if has_experts(bench.full_model):
        yield (
            "Its feed-forward networks are mixtures of experts, which stay whole: only layers are "
            "left out."
        )
    if lacks_vnni():
        yield (
            "This processor has no instructions for products of 8-bit numbers (VNNI): int8 "
            "gains less time here than on one that has them, and may lose more, since sums of "
            "two products are cut off at 16 bits."
        )
