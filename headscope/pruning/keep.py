"""The one pruned model that is kept: chosen by name, written, opened again, compared, timed.

What a run measured is never lost with what it was to leave behind: each folder stands or falls by
itself, and one that cannot be made is listed in the result with the reason.

What is proven of a folder is that the *outputs* of the model in it are those of the measured model,
as far as their type of numbers allows: states, logits and embeddings of every evaluation text. A
metric is no proof of it: a rank correlation or a rate jumps where two values that are nearly equal
swap, however small the difference of the outputs.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.opened_again import distance
from headscope.artefacts.saving import trial_folder, whole_folder, write_model
from headscope.artefacts.sentence_transformers import check_embeds
from headscope.core.errors import ArtefactError, HeadscopeError, InputError
from headscope.core.rounding import tied
from headscope.data.token_rows import Padded, padded
from headscope.models.compact import remove_heads
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.loading import load
from headscope.models.manifest import COMPACT, DENSE
from headscope.models.output_maps import replaced_outputs
from headscope.models.sentence_folder import MODULES
from headscope.models.task_heads import Select
from headscope.pruning.card import CARD, CardFacts, model_card
from headscope.pruning.curves import Version
from headscope.pruning.export import export_measured, graphs_of_both, write_and_open
from headscope.pruning.measure import at
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import (
    Candidate,
    ExportedModel,
    FailedArtefact,
    KeptModel,
    PruneResult,
    SavedModel,
)
from headscope.pruning.setup import Inputs, Sources
from headscope.pruning.speed import benchmark, fitting_lengths
from headscope.pruning.steps import Cost, Steps
from headscope.stats.metrics import Outputs
from headscope.tasks.base import Task

#: What a card's speed is measured on where no benchmark was asked for, and for how long.
CARD_TOKENS, CARD_BATCH, CARD_SECONDS = 128, 8, 2.0
_TRIED = 4  # Evaluation examples that a dry run reads.
#: Largest difference of an output, relative to the largest output if that exceeds 1. Wider than the
#: limits of a few short texts in :mod:`headscope.artefacts.opened_again`: this is the worst of all
#: evaluation texts, and zeros in place of a head are summed in another order (5e-6 on 1,500 pairs).
TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}
_FORMS = {"save": COMPACT, "save_dense": DENSE}


def choose_version(
    versions: tuple[Version, ...], inputs: Inputs, did: Callable[[], object]
) -> tuple[Version, KeptModel]:
    """Pick the candidate that is best on the calibration data; the only one is not measured.

    The evaluation data have no say: their values would no longer be those of unseen data. Of equals
    the first is taken, in the order in which the user named methods and repairs.
    """
    best, candidates = versions[0], list[Candidate]()
    if len(versions) > 1:
        # Several candidates come of methods or repairs, which read calibration data.
        task, loaded = inputs.calibration or inputs.evaluation, inputs.loaded
        for version in versions:
            assert version.made is not None  # a mix is the only candidate
            with replaced_outputs(loaded, version.made.maps):
                value = task.value(task.outputs(loaded, version.made.gates.to(loaded.device)))
            candidates.append(Candidate(version.method, version.repair.value, value))
            did()
        sign = 1 if task.higher_is_better else -1
        best = versions[int((sign * tied([each.value for each in candidates])).argmax())]
    kept = (best.method, best.repair.value, best.point.fraction, best.point.value)
    return best, KeptModel(*kept, tuple(candidates))


# --- before the run -------------------------------------------------------------------------------


def rehearse(
    loaded: LoadedModel, sources: Sources, task: Task, options: PruneOptions, steps: Steps
) -> None:
    """Write, open and compare every kind of folder once, of a model without some heads.

    What would refuse at the end refuses here, before the long part: folders that cannot be written,
    a full disk, packages that are missing, programs that do not open what is written. Nothing of it
    stays; what a folder takes here, ``steps`` learn that it will take at the end.
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
        steps.doing(f"try {option}")
        with trial_folder(folder) as room:
            if option != "export":
                write_model(
                    trial,
                    room,
                    _FORMS[option],
                    method="dry run",
                    repair="none",
                    provenance={},
                    standalone=options.standalone and option == "save",
                )
                _same_outputs(task, trial, _opened(room, folder, trial, sources, task), folder, few)
            elif not options.manual:  # else it would take as long as the run itself
                write_and_open(trial, room, task, options, few, room)
            sizes[folder] = sum(path.stat().st_size for path in room.rglob("*"))
        if option != "export" or not options.manual:
            seconds = steps.did(f"try {option}")
            steps.costs[option] = Cost(steps.costs[option].passes, seconds)
            if option == "export":
                alone = seconds / (1 + 0.3 * (options.quantize is not None))
                steps.costs["graph of the full model"] = Cost(seconds=alone)
    _check_space(sizes)


def _check_space(sizes: dict[Path, int]) -> None:
    """Refuse folders that would not fit on the disk together."""
    on_disk: dict[int, dict[Path, Path]] = {}  # by device: each folder, and where it is to lie
    for folder in sizes:
        path = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        on_disk.setdefault(path.stat().st_dev, {})[folder] = path
    for paths in on_disk.values():
        needed = sum(sizes[folder] for folder in paths)
        free = min(shutil.disk_usage(path).free for path in paths.values())
        if free < needed:
            raise InputError(
                f"{', '.join(map(str, sizes))} would take about {needed / 1e6:.0f} MB, and "
                f"{free / 1e6:.0f} MB are free; make room, or choose another disk."
            )


# --- after it -------------------------------------------------------------------------------------


@dataclass
class _Room:
    """A folder that is written under another name, until ``stack`` is left.

    It gets its name then, or goes if that is by an error.
    """

    option: str
    folder: Path
    stack: ExitStack
    path: Path  # the other name
    facts: CardFacts | None = None  # what it holds
    saved: SavedModel | None = None
    exported: tuple[ExportedModel, ...] = ()


def keep(
    version: Version,
    compact: LoadedModel,
    result: PruneResult,
    inputs: Inputs,
    options: PruneOptions,
    steps: Steps,
) -> PruneResult:
    """Write ``compact`` to every folder asked for, open it again, compare, time and describe it.

    What could not be made is listed in ``failed``: then nothing of that folder is left, and what
    was there before is as it was.
    """
    full = inputs.loaded
    failed, rooms, done, speed = list[FailedArtefact](), list[_Room](), list[_Room](), None

    @contextmanager
    def attempt(option: str, folder: Path | None) -> Iterator[None]:
        """Note a failure of the block instead of passing it on."""
        try:
            yield
        except Exception as error:  # torch, onnx and safetensors raise many kinds
            message = " ".join(str(error).split())[:200]
            reason = f"{type(error).__name__}: {message}; please report this."
            if isinstance(error, HeadscopeError):
                reason = str(error)
            elif isinstance(error, OSError):
                reason = f"The system refused: {error}."
            failed.append(FailedArtefact(option, None if folder is None else str(folder), reason))

    def progress(what: str, done: int, total: int) -> None:
        if done > 0:  # each shape is a step of its own
            steps.did(f"shape {done - 1}")
        steps(what, done, total)

    with ExitStack() as all_rooms:  # an interrupted run leaves none of them
        for option, folder in options.folders:
            steps.doing(option)
            with attempt(option, folder), ExitStack() as stack:
                room = _Room(option, folder, stack, stack.enter_context(whole_folder(folder)))
                _fill(room, compact, version, inputs, options, result.provenance)
                room.stack = stack.pop_all()
                all_rooms.push(room.stack)
                rooms.append(room)
            steps.did(option)
        described = result
        if options.benchmark:
            graphs = next((room.path for room in rooms if room.exported), None)
            with attempt("benchmark", None), graphs_of_both(full, graphs) as files:
                if files is not None:
                    steps.did("graph of the full model")
                speed = benchmark(full, compact, seed=options.seed, progress=progress, graphs=files)
            described = dataclasses.replace(result, speed=speed)
        elif rooms:
            steps.doing("card")
            with attempt("card", None):
                lengths, sizes = (min(CARD_TOKENS, full.max_length),), (CARD_BATCH,)
                card_speed = benchmark(
                    full, compact, lengths=lengths, batch_sizes=sizes, seconds=CARD_SECONDS
                )
                described = dataclasses.replace(result, speed=card_speed)
            steps.did("card")
        for room in rooms:
            with attempt(room.option, room.folder):
                assert room.facts is not None
                with room.stack:  # at whose end it gets its name, or goes
                    card = model_card(described, full, room.facts)
                    (room.path / CARD).write_text(card, encoding="utf-8")
                done.append(room)
    return dataclasses.replace(
        result,
        saved=tuple(room.saved for room in done if room.saved),
        exported=tuple(model for room in done for model in room.exported),
        speed=speed,
        failed=tuple(failed),
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
    task, point, path, folder = inputs.evaluation, version.point, room.path, room.folder
    if room.option == "export":
        models = export_measured(compact, version, task, options, provenance, folder, path)
        room.facts = CardFacts("onnx", "onnxruntime", models[0].measured, graphs=models)
        room.exported = models
        return
    form = _FORMS[room.option]
    opens = write_model(
        compact,
        path,
        form,
        method=version.method,
        repair=version.repair.value,
        provenance=provenance,
        standalone=options.standalone and form == COMPACT,
    )
    again = _opened(path, folder, inputs.loaded, inputs.sources, task)
    outputs, largest = _same_outputs(task, compact, again, folder)
    measured = task.value(at(outputs, version.examples))
    room.saved = SavedModel(
        folder=str(folder),
        form=form,
        method=version.method,
        repair=version.repair.value,
        heads_removed=point.heads_removed,
        fraction=point.fraction,
        value=point.value,
        measured=measured,
        opens=opens,
        max_difference=largest,
    )
    room.facts = CardFacts(form, opens, measured, (path / MODULES).is_file())


def _opened(
    path: Path, folder: Path, loaded: LoadedModel, sources: Sources, task: Task
) -> LoadedModel:
    """Load what was written; its own tokenizer must give the same tokens."""
    again = load(
        str(path.resolve()), dtype=loaded.dtype, device=loaded.device, task_head=loaded.task_head
    )
    check_embeds(again, path)
    again = again if loaded.whole is None else again.only(loaded.stacks[0])
    if loaded.pooling.origin == "option":
        again = again.pooled_by(loaded.pooling.modes[0])
    if list(sources.evaluation_for(again).rows) != list(task.rows):
        raise ArtefactError(
            f"The tokenizer that was written for {folder} splits the evaluation data otherwise "
            "than the model's own, so the folder was not kept."
        )
    return again


def _same_outputs(
    task: Task,
    measured: LoadedModel,
    opened: LoadedModel,
    folder: Path,
    batches: Iterable[Padded] | None = None,
) -> tuple[Outputs, float]:
    """Run the measured model and the opened one over the examples of a task, side by side.

    Returns the opened one's outputs, and the largest absolute difference of any state, logit or
    embedding; refuses a difference (or a NaN) that is more than rounding.
    """
    differences: list[tuple[float, float]] = []
    embeds = (
        task.name in ("fidelity", "similarity", "retrieval") and measured.pooling.problem is None
    )

    def run(
        *inputs: Tensor, select: Select | None = None, **more: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        sides = []
        for model in (measured, opened):  # attention is routed in one model at a time
            with gated(model) as run_one:
                sides.append(run_one(*inputs, select=select, **more))
        (expected, logits), (hidden, other_logits) = sides
        mask = more.get("decoder_attention_mask", inputs[1])
        differences.append(distance(expected[mask.bool()], hidden[mask.bool()]))
        if logits is not None:
            assert other_logits is not None
            differences.append(distance(logits, other_logits))
        if embeds:
            pairs = ((measured, expected), (opened, hidden))
            differences.append(distance(*(m.pooling.embed(states, mask) for m, states in pairs)))
        return hidden, other_logits

    outputs = task.outputs_of(run, task.batches(measured) if batches is None else batches)
    largest, relative = torch.tensor(differences, dtype=torch.float64).max(dim=0).values.tolist()
    if not relative <= TOLERANCES[measured.dtype]:
        raise ArtefactError(
            f"The model written for {folder}, opened again, puts out something else than the "
            f"measured one (a difference of {largest:.2g}), so the folder was not kept; give dtype "
            "float32 if weights were rounded, else please report this."
        )
    return outputs, largest
