"""The one pruned model that is kept: chosen by name, written, loaded again, measured, timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headscope.errors import ArtefactError
from headscope.models.deploy.sentence_check import check_embeds
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load
from headscope.models.manifest import COMPACT, DENSE
from headscope.models.output_maps import replaced_outputs
from headscope.models.saving import whole_folder, write_model
from headscope.pipeline.progress import Progress
from headscope.pipeline.prune.curves import Inputs, Version
from headscope.pipeline.prune.exporting import graphs_beside
from headscope.pipeline.prune.measuring import compact_model
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repaired
from headscope.pipeline.prune.speed import benchmark
from headscope.pipeline.tasks import Task
from headscope.results import Candidate, KeptModel, SavedModel
from headscope.results.speed import SpeedResult

#: Largest difference between the curve's value and the loaded folder's, in the metric's own unit.
TOLERANCE = 1e-4


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
        best = versions[max(range(len(values)), key=lambda i: (sign * values[i], -i))]
        candidates = tuple(
            Candidate(version.method, version.repair.value, value)
            for version, value in zip(versions, values, strict=True)
        )
    point = best.point
    return best, KeptModel(best.method, best.repair.value, point.fraction, point.value, candidates)


def _value(task: Task, loaded: LoadedModel, made: Repaired) -> float:
    with replaced_outputs(loaded, made.maps):
        return task.value(task.outputs(loaded, made.gates.to(loaded.device)))


def save_measured(
    version: Version, inputs: Inputs, options: PruneOptions, provenance: dict[str, Any]
) -> tuple[SavedModel, ...]:
    """Write every folder that was asked for, load it again, and measure what it holds.

    Raises
    ------
    ArtefactError
        If a loaded model differs from the measured one by more than :data:`TOLERANCE`, or
        transformers or sentence-transformers opens something else; then no folder is left, and one
        that was there before is as it was.
    """
    wanted = [
        (Path(folder), form)
        for folder, form in ((options.save, COMPACT), (options.save_dense, DENSE))
        if folder is not None
    ]
    compact = compact_model(inputs.loaded, inputs.units, version.made)
    method, repair, point = version.method, version.repair.value, version.point
    saved = []
    with ExitStack() as stack:
        rooms = [stack.enter_context(whole_folder(folder)) for folder, _ in wanted]
        for (folder, form), room in zip(wanted, rooms, strict=True):
            write_model(
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
            saved.append(SavedModel(str(folder), form, method, repair, *found))
    return tuple(saved)


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


def time_kept(
    version: Version, inputs: Inputs, options: PruneOptions, progress: Progress
) -> SpeedResult:
    """Time the full model against the one that is kept, and their graphs where it was exported."""
    compact = compact_model(inputs.loaded, inputs.units, version.made)
    with graphs_beside(inputs.loaded, options) as graphs:
        return benchmark(
            inputs.loaded, compact, seed=options.seed, progress=progress, graphs=graphs
        )
