"""The one pruned model that is kept: chosen by name, written, loaded again, measured, timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headscope.errors import ArtefactError
from headscope.measures.rounding import tied
from headscope.models.card import CARD, CardFacts, model_card
from headscope.models.deploy.sentence_check import check_embeds
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load
from headscope.models.manifest import COMPACT, DENSE
from headscope.models.output_maps import replaced_outputs
from headscope.models.saving import whole_folder, write_model
from headscope.pipeline.progress import Progress
from headscope.pipeline.prune.curves import Inputs, Version
from headscope.pipeline.prune.exporting import Graphs, export_measured, graphs_beside
from headscope.pipeline.prune.measuring import compact_model
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repaired
from headscope.pipeline.prune.speed import benchmark
from headscope.pipeline.tasks import Task
from headscope.results import Candidate, KeptModel, PruneResult, SavedModel
from headscope.results.speed import SpeedResult

#: Largest difference between the curve's value and the loaded folder's, in the metric's own unit.
TOLERANCE = 1e-4
#: What a card's speed is measured on where no benchmark was asked for, and for how long.
CARD_TOKENS, CARD_BATCH, CARD_SECONDS = 128, 8, 2.0


def choose(versions: Sequence[Version], inputs: Inputs) -> tuple[Version, KeptModel]:
    """Pick the candidate that is best on the calibration data; the only one is not measured.

    The evaluation data have no say: their values would no longer be those of unseen data. Of equals
    the first is taken, in the order in which the user named methods and repairs.
    """
    best, candidates = versions[0], tuple[Candidate, ...]()
    if len(versions) > 1:
        # Several candidates come of methods or repairs, which read calibration data.
        task = inputs.calibration or inputs.evaluation
        values = [_value(task, inputs.loaded, version.made) for version in versions]
        sign = 1 if task.higher_is_better else -1
        best = versions[int((sign * tied(values)).argmax())]
        candidates = tuple(
            Candidate(version.method, version.repair.value, value)
            for version, value in zip(versions, values, strict=True)
        )
    point = best.point
    return best, KeptModel(best.method, best.repair.value, point.fraction, point.value, candidates)


def _value(task: Task, loaded: LoadedModel, made: Repaired) -> float:
    with replaced_outputs(loaded, made.maps):
        return task.value(task.outputs(loaded, made.gates.to(loaded.device)))


def keep(
    version: Version,
    result: PruneResult,
    inputs: Inputs,
    options: PruneOptions,
    progress: Progress,
) -> PruneResult:
    """Write every folder that was asked for, open it again, measure, time and describe it.

    Returns
    -------
    PruneResult
        ``result`` with what was saved, exported and timed.

    Raises
    ------
    ArtefactError
        If what was written, opened again, is not the measured model: by more than
        :data:`TOLERANCE` in the metric, or in what transformers, sentence-transformers or
        onnxruntime make of it. Then no folder is left, and those that were there before are as they
        were.
    """
    compact = compact_model(inputs.loaded, inputs.units, version.made)
    provenance = result.provenance
    with ExitStack() as stack:
        written = [
            _saved(compact, version, inputs, options, provenance, (Path(folder), form, stack))
            for folder, form in ((options.save, COMPACT), (options.save_dense, DENSE))
            if folder is not None
        ]
        graphs = export_measured(compact, version, inputs, options, provenance, stack)
        speed = _timed(compact, inputs, options, graphs, progress) if options.benchmark else None
        result = dataclasses.replace(
            result,
            saved=tuple(saved for saved, _ in written),
            exported=graphs.models if graphs else (),
            speed=speed,
        )
        _describe(compact, result, written, graphs, inputs.loaded)
    return result


def _saved(
    compact: LoadedModel,
    version: Version,
    inputs: Inputs,
    options: PruneOptions,
    provenance: dict[str, Any],
    where: tuple[Path, str, ExitStack],
) -> tuple[SavedModel, Path]:
    """Write one folder under another name, load it again, and measure what it holds."""
    folder, form, stack = where
    method, repair, point = version.method, version.repair.value, version.point
    room = stack.enter_context(whole_folder(folder))
    opens = write_model(
        compact,
        room,
        form,
        method=method,
        repair=repair,
        provenance=provenance,
        standalone=options.standalone and form == COMPACT,
    )
    measured = _measured(room, folder, inputs)
    _check(measured, version, folder, inputs.evaluation)
    found = (point.heads_removed, point.fraction, point.value, measured)
    return SavedModel(str(folder), form, method, repair, *found, opens=opens), room


def _measured(room: Path, folder: Path, inputs: Inputs) -> float:
    """Load what was written and measure it; its own tokenizer must give the same tokens."""
    loaded, task = inputs.loaded, inputs.evaluation
    again = load(
        str(room.resolve()), dtype=loaded.dtype, device=loaded.device, task_head=loaded.task_head
    )
    check_embeds(again, room)
    if loaded.pooling.origin == "option":
        again = again.pooled_by(loaded.pooling.modes[0])
    if list(inputs.sources.evaluation_for(again).rows) != list(task.rows):
        raise ArtefactError(
            f"The tokenizer that was written for {folder} splits the evaluation data otherwise "
            "than the model's own, so nothing was kept."
        )
    return task.value(task.outputs(again))


def _check(measured: float, version: Version, folder: Path, task: Task) -> None:
    expected = version.point.value
    if abs(measured - expected) <= TOLERANCE:
        return
    raise ArtefactError(
        f"The model written for {folder} has a {task.metric} of {measured:.6g} where "
        f"{version.method} with repair {version.repair.value} had {expected:.6g}, so nothing was "
        "kept; give dtype float32 if weights were rounded, else please report this."
    )


def _timed(
    compact: LoadedModel,
    inputs: Inputs,
    options: PruneOptions,
    graphs: Graphs | None,
    progress: Progress,
) -> SpeedResult:
    """Time the full model against the one that is kept, and their graphs where it was exported."""
    with graphs_beside(inputs.loaded, graphs) as files:
        return benchmark(inputs.loaded, compact, seed=options.seed, progress=progress, graphs=files)


def _describe(
    compact: LoadedModel,
    result: PruneResult,
    written: Sequence[tuple[SavedModel, Path]],
    graphs: Graphs | None,
    full: LoadedModel,
) -> None:
    """Put a card into every folder; without a benchmark its speed is that of one usual input."""
    if not written and graphs is None:
        return
    if result.speed is None:
        lengths = (min(CARD_TOKENS, full.max_length),)
        speed = benchmark(
            full, compact, lengths=lengths, batch_sizes=(CARD_BATCH,), seconds=CARD_SECONDS
        )
        result = dataclasses.replace(result, speed=speed)
    for saved, room in written:
        assert saved.measured is not None
        assert saved.opens is not None
        sentences = (room / "modules.json").is_file()
        facts = CardFacts(saved.form, saved.opens, saved.measured, sentences)
        (room / CARD).write_text(model_card(result, full, facts), encoding="utf-8")
    if graphs is not None:
        facts = CardFacts("onnx", "onnxruntime", graphs.models[0].measured, graphs=graphs.models)
        (graphs.room / CARD).write_text(model_card(result, full, facts), encoding="utf-8")
