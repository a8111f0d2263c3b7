"""The one pruned model that is kept: chosen by name, written, opened again, compared, timed.

What a run found out is never lost with what it was to leave behind: each folder stands or falls by
itself, and one that cannot be made is listed in the result with the reason.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headscope.artefacts.card import CARD, CardFacts, model_card
from headscope.artefacts.saving import trial_folder, whole_folder, write_model
from headscope.artefacts.sentence_transformers import check_embeds
from headscope.core.errors import ArtefactError, HeadscopeError, InputError
from headscope.data.pair_rows import padded
from headscope.measures.rounding import tied
from headscope.models.compact import remove_heads
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load
from headscope.models.manifest import COMPACT, DENSE
from headscope.models.output_maps import replaced_outputs
from headscope.models.sentence_folder import MODULES
from headscope.pipeline.prune.curves import Inputs, Version
from headscope.pipeline.prune.exporting import Graphs, export_measured, graphs_beside, try_export
from headscope.pipeline.prune.measuring import at, compact_model
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repaired
from headscope.pipeline.prune.same_outputs import Agreement, compare
from headscope.pipeline.prune.sources import Sources
from headscope.pipeline.prune.speed import benchmark, fitting_lengths
from headscope.pipeline.prune.steps import Cost, Steps
from headscope.results import Candidate, FailedArtefact, KeptModel, PruneResult, SavedModel
from headscope.results.speed import SpeedResult
from headscope.tasks.base import Task

#: What a card's speed is measured on where no benchmark was asked for, and for how long.
CARD_TOKENS, CARD_BATCH, CARD_SECONDS = 128, 8, 2.0
#: Evaluation examples that a dry run reads.
_TRIED = 4


def choose(
    versions: Sequence[Version], inputs: Inputs, did: Callable[[], None]
) -> tuple[Version, KeptModel]:
    """Pick the candidate that is best on the calibration data; the only one is not measured.

    The evaluation data have no say: their values would no longer be those of unseen data. Of equals
    the first is taken, in the order in which the user named methods and repairs.
    """
    best, candidates = versions[0], tuple[Candidate, ...]()
    if len(versions) > 1:
        # Several candidates come of methods or repairs, which read calibration data.
        task = inputs.calibration or inputs.evaluation
        values = []
        for version in versions:
            values.append(_value(task, inputs.loaded, version.made))
            did()
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


# --- before the run -------------------------------------------------------------------------------


def rehearse(
    loaded: LoadedModel, sources: Sources, task: Task, options: PruneOptions, steps: Steps
) -> None:
    """Write, open and compare every kind of folder once, of a model without some heads.

    What would refuse at the end refuses here, before the long part: folders that cannot be written,
    a full disk, packages that are missing, programs that do not open what is written. Nothing of it
    stays.

    Parameters
    ----------
    loaded : LoadedModel
        The model before it is pruned.
    sources : Sources
        The examples as they were read.
    task : Task
        On the evaluation data.
    options : PruneOptions
        What will be kept.
    steps : Steps
        Of the run: what a folder takes here, it will take at the end.

    Raises
    ------
    HeadscopeError
        As the end of the run would.
    """
    if options.benchmark:
        fitting_lengths(loaded)
    if not options.folders or sum(site.n_heads for site in loaded.sites) < 2:
        return
    widest = max(loaded.sites, key=lambda site: site.n_heads)
    sites = loaded.sites if options.even and widest.n_heads > 1 else [widest]
    trial = remove_heads(loaded, [(s.stack, s.layer, s.head_ids[0]) for s in sites], share=True)
    few = [padded(task.rows[:_TRIED], loaded.pad_id, loaded.device)]
    sizes: dict[Path, int] = {}
    for option, folder in options.folders:
        with trial_folder(folder) as room:
            if option != "export":
                form = COMPACT if option == "save" else DENSE
                _write(trial, room, form, options, "dry run", "none", {})
                found = compare(task, trial, _opened(room, folder, trial, sources, task), few)
                _check(found, folder, loaded)
            elif not options.manual:  # else it would take as long as the run itself
                try_export(trial, room, task, few, options)
            sizes[folder] = sum(path.stat().st_size for path in room.rglob("*"))
        if option != "export" or not options.manual:
            steps.did(f"try {option}")
            seconds = steps.took(f"try {option}")
            steps.price(option, Cost(steps.cost(option).passes, seconds))
            if option == "export":
                alone = seconds / (1 + 0.3 * (options.quantize is not None))
                steps.price("graph of the full model", Cost(seconds=alone))
    _check_space(sizes)


def _check_space(sizes: Mapping[Path, int]) -> None:
    """Refuse folders that would not fit on the disk together."""
    for device in {_device(folder) for folder in sizes}:
        needed = sum(size for folder, size in sizes.items() if _device(folder) == device)
        free = min(shutil.disk_usage(_there(f)).free for f in sizes if _device(f) == device)
        if free < needed:
            raise InputError(
                f"{', '.join(map(str, sizes))} would take about {needed / 1e6:.0f} MB, and "
                f"{free / 1e6:.0f} MB are free; make room, or choose another disk."
            )


def _there(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _device(folder: Path) -> int:
    return _there(folder).stat().st_dev


# --- after it -------------------------------------------------------------------------------------


@dataclass
class _Room:
    """A folder that is written under another name, until ``stack`` is left.

    It gets its name then, or goes if that is by an error; ``facts`` say what it holds.
    """

    option: str
    folder: Path
    stack: ExitStack
    path: Path
    facts: CardFacts | None = None
    saved: SavedModel | None = None
    graphs: Graphs | None = None


class _Attempts:
    """Runs what may fail without taking the rest with it; remembers what failed, and why."""

    def __init__(self) -> None:
        self.failed: list[FailedArtefact] = []

    @contextmanager
    def attempt(self, option: str, folder: Path | None) -> Iterator[None]:
        """Note a failure of the block instead of passing it on."""
        try:
            yield
        except Exception as error:  # torch, onnx and safetensors raise many kinds
            where = None if folder is None else str(folder)
            self.failed.append(FailedArtefact(option, where, _reason(error)))


def _reason(error: Exception) -> str:
    if isinstance(error, HeadscopeError):
        return str(error)
    if isinstance(error, OSError):
        return f"The system refused: {error}."
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}; please report this."


def keep(
    version: Version,
    result: PruneResult,
    inputs: Inputs,
    options: PruneOptions,
    steps: Steps,
) -> PruneResult:
    """Write every folder that was asked for, open it again, compare, time and describe it.

    Returns
    -------
    PruneResult
        ``result`` with what was saved, exported and timed. What could not be made is listed in
        ``failed``: then nothing of that folder is left, and what was there before is as it was.
    """
    compact = compact_model(inputs.loaded, inputs.units, version.made)
    tries, rooms, speed = _Attempts(), list[_Room](), None
    with ExitStack() as all_rooms:  # an interrupted run leaves none of them
        for option, folder in options.folders:
            with tries.attempt(option, folder), ExitStack() as stack:
                room = _Room(option, folder, stack, stack.enter_context(whole_folder(folder)))
                _fill(room, compact, version, inputs, options, result.provenance)
                room.stack = stack.pop_all()
                all_rooms.push(room.stack)
                rooms.append(room)
            steps.did(option)
        graphs = next((room.graphs for room in rooms if room.graphs), None)
        if options.benchmark:
            with tries.attempt("benchmark", None), graphs_beside(inputs.loaded, graphs) as files:
                if files is not None:
                    steps.did("graph of the full model")
                speed = benchmark(
                    inputs.loaded,
                    compact,
                    seed=options.seed,
                    progress=partial(_shape_done, steps),
                    graphs=files,
                )
        described = dataclasses.replace(result, speed=speed)
        if rooms and not options.benchmark:
            with tries.attempt("card", None):
                card_speed = _card_speed(inputs.loaded, compact)
                described = dataclasses.replace(result, speed=card_speed)
            steps.did("card")
        done = []
        for room in rooms:
            with tries.attempt(room.option, room.folder):
                assert room.facts is not None
                with room.stack:  # at whose end it gets its name, or goes
                    card = model_card(described, inputs.loaded, room.facts)
                    (room.path / CARD).write_text(card, encoding="utf-8")
                done.append(room)
    return dataclasses.replace(
        result,
        saved=tuple(room.saved for room in done if room.saved),
        exported=tuple(model for room in done if room.graphs for model in room.graphs.models),
        speed=speed,
        failed=tuple(tries.failed),
    )


def _shape_done(steps: Steps, what: str, done: int, total: int) -> None:
    """Tell how far the benchmark has come; each shape is a step of its own."""
    if done > 0:
        steps.did(f"shape {done - 1}")
    steps(what, done, total)


def failure(result: PruneResult) -> ArtefactError | None:
    """Return the error that says what of a result could not be made; None if all was."""
    if not result.failed:
        return None
    names = [failed.option for failed in result.failed]
    reasons = " ".join(failed.reason for failed in result.failed)
    return ArtefactError(
        f"{' and '.join(names)} could not be made, and everything else that was found is kept: "
        f"{reasons}",
        result=result,
    )


def _fill(
    room: _Room,
    compact: LoadedModel,
    version: Version,
    inputs: Inputs,
    options: PruneOptions,
    provenance: dict[str, Any],
) -> None:
    """Write one folder, open it again, and compare and measure what it holds."""
    folder, task = room.folder, inputs.evaluation
    if room.option == "export":
        room.graphs = export_measured(
            compact, version, inputs, options, provenance, folder, room.path
        )
        models = room.graphs.models
        room.facts = CardFacts("onnx", "onnxruntime", models[0].measured, graphs=models)
        return
    form = COMPACT if room.option == "save" else DENSE
    method, repair, point = version.method, version.repair.value, version.point
    opens = _write(compact, room.path, form, options, method, repair, provenance)
    again = _opened(room.path, folder, inputs.loaded, inputs.sources, task)
    found = compare(task, compact, again)
    _check(found, folder, inputs.loaded)
    measured = task.value(at(found.outputs, version.places))
    room.saved = SavedModel(
        folder=str(folder),
        form=form,
        method=method,
        repair=repair,
        heads_removed=point.heads_removed,
        fraction=point.fraction,
        value=point.value,
        measured=measured,
        opens=opens,
        max_difference=found.largest,
    )
    sentences = (room.path / MODULES).is_file()
    room.facts = CardFacts(form, opens, measured, sentences)


def _write(
    compact: LoadedModel,
    room: Path,
    form: str,
    options: PruneOptions,
    method: str,
    repair: str,
    provenance: dict[str, Any],
) -> str:
    return write_model(
        compact,
        room,
        form,
        method=method,
        repair=repair,
        provenance=provenance,
        standalone=options.standalone and form == COMPACT,
    )


def _opened(
    room: Path, folder: Path, loaded: LoadedModel, sources: Sources, task: Task
) -> LoadedModel:
    """Load what was written; its own tokenizer must give the same tokens."""
    again = load(
        str(room.resolve()), dtype=loaded.dtype, device=loaded.device, task_head=loaded.task_head
    )
    check_embeds(again, room)
    if loaded.pooling.origin == "option":
        again = again.pooled_by(loaded.pooling.modes[0])
    if list(sources.evaluation_for(again).rows) != list(task.rows):
        raise ArtefactError(
            f"The tokenizer that was written for {folder} splits the evaluation data otherwise "
            "than the model's own, so the folder was not kept."
        )
    return again


def _check(found: Agreement, folder: Path, loaded: LoadedModel) -> None:
    """Refuse a folder whose model puts out something else; its metric is no proof either way."""
    if found.holds(loaded.dtype):
        return
    raise ArtefactError(
        f"The model written for {folder}, opened again, puts out something else than the measured "
        f"one (a difference of {found.largest:.2g}), so the folder was not kept; give dtype "
        "float32 if weights were rounded, else please report this."
    )


def _card_speed(full: LoadedModel, compact: LoadedModel) -> SpeedResult:
    """Time one usual input, for cards of a run without a benchmark."""
    lengths = (min(CARD_TOKENS, full.max_length),)
    return benchmark(
        full, compact, lengths=lengths, batch_sizes=(CARD_BATCH,), seconds=CARD_SECONDS
    )
