"""The one pruned model that is saved: chosen by name, written, opened again, compared, timed.

What is proven of a folder is that the *outputs* of the model in it are those of the measured model,
as far as their type of numbers allows: states, logits and embeddings of every evaluation text. A
metric is no proof of it: a rank correlation or a rate jumps where two values that are nearly equal
swap, however small the difference of the outputs.

A :class:`Version` is a pruned model of a curve, by which method and repair it was made, and the
point that it was measured as. :func:`choose_version` picks one, :func:`keep` does the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headscope.artefacts.saving import (
    failure_with,
    megabytes_of_folder,
    whole_folder,
    write_model,
)
from headscope.artefacts.sentence_outputs import check_embeds
from headscope.core.errors import ArtefactError
from headscope.core.progress import Progress, progress_of_part
from headscope.core.rounding import tied
from headscope.models.load.loading import load
from headscope.models.load.sentence_files import MODULES
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import distance
from headscope.models.run.task_heads import Select
from headscope.models.surgery.output_maps import replaced_outputs
from headscope.pruning.card import model_card, snippets
from headscope.pruning.curves import Version
from headscope.pruning.measure import Pruner, compact_model, select_examples
from headscope.pruning.result import Candidate, KeptModel, PruneResult, SavedModel, SpeedResult
from headscope.removal.card import CARD, in_folder
from headscope.removal.times import affordable_batch, times
from headscope.stats.metrics import Outputs
from headscope.tasks.base import Task

BATCH_SIZE = 8  # Texts of a batch that is timed; fewer of a large model
#: Largest difference of an output, relative to the largest output if that exceeds 1. Wider than the
#: limits of a few short texts in :mod:`headscope.models.run.outputs`: this is the worst of all
#: evaluation texts (5e-6 on 1,500 pairs).
TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}


def choose_version(
    versions: tuple[Version, ...], loaded: LoadedModel, task: Task
) -> tuple[Version, KeptModel]:
    """Pick the pruned model that is best on the calibration data, whose task is ``task``.

    A single one is not measured. The evaluation data are not used: their values would no longer be
    those of unseen data. Ties go to the first, in the order in which the user named methods and
    repairs.
    """
    best = versions[0]
    candidates: list[Candidate] = []
    if len(versions) > 1:
        for version in versions:
            with replaced_outputs(loaded, version.model.maps):
                value = task.value(task.outputs(loaded, version.model.gates.to(loaded.device)))
            candidates.append(Candidate(version.method, version.repair.value, value))
        sign = 1 if task.higher_is_better else -1
        qualities = sign * tied([candidate.value for candidate in candidates])
        best = versions[int(qualities.argmax())]
    measured_value = best.point.value.value
    assert measured_value is not None
    return best, KeptModel(
        method=best.method,
        repair=best.repair.value,
        fraction=best.point.fraction,
        value=measured_value,
        candidates=tuple(candidates),
    )


def keep(
    version: Version,
    kept_model: KeptModel,
    *,
    result: PruneResult,
    pruner: Pruner,
    evaluation_of: Callable[[LoadedModel], Task],
    folder: Path,
) -> PruneResult:
    """Write the model of a version, open it again, compare, time and describe it.

    ``version`` is the pruned model and its point of a curve; ``kept_model`` says why it was chosen.
    ``evaluation_of`` tokenises the evaluation data with the tokenizer of another model. Returns the
    result with what was kept, saved and timed.

    Raises
    ------
    ArtefactError
        If the folder could not be made; the error has the result with everything else. Nothing of
        the folder is left then, and what was there before is as it was.
    """
    loaded = pruner.loaded
    task = pruner.evaluation
    result = dataclasses.replace(result, kept=kept_model)
    tell = progress_of_part("saving", pruner.tell)
    compact = compact_model(loaded, pruner.units, version.model)
    with failure_with(result), whole_folder(folder, by="prune") as path:
        # Write it, and open what was written. ``opens`` says what a user opens the folder with:
        # transformers alone, its remote code, or headscope.
        tell("writing the folder", 0, 1)
        opens = write_model(
            compact,
            path,
            method=kept_model.method,
            repair=kept_model.repair,
            provenance=result.provenance,
        )
        tell("opening the folder again", 0, 1)
        reopened = _reopened(path, loaded)
        if list(evaluation_of(reopened).rows) != list(task.rows):
            raise ArtefactError(
                f"The tokenizer that was written for {folder} splits the evaluation data otherwise "
                "than the model's own, so the folder was not kept."
            )

        # Compare it with the measured model.
        tell("comparing its outputs", 0, 1)
        outputs, largest_difference = _same_outputs(task, compact, reopened, folder)
        opens_as_sentences = (path / MODULES).is_file()
        first_code = snippets(opens, loaded, sentences=opens_as_sentences)[0]
        saved = SavedModel(
            folder=str(folder),
            heads_removed=version.point.heads_removed,
            measured=task.value(select_examples(outputs, pruner.examples)),
            opens=opens,
            max_difference=largest_difference,
            code=in_folder(first_code, str(folder)),
        )

        # Time and describe it.
        speed = _speed(loaded, reopened, task, tell)
        result = dataclasses.replace(result, saved=saved, speed=speed)
        card = model_card(result, loaded, sentences=opens_as_sentences)
        (path / CARD).write_text(card, encoding="utf-8")
        saved = dataclasses.replace(saved, megabytes=megabytes_of_folder(path))
        return dataclasses.replace(result, saved=saved)


def _reopened(path: Path, original: LoadedModel) -> LoadedModel:
    """Open a folder that was just written as the original was opened: its stack and its pooling."""
    reopened = load(
        str(path.resolve()),
        dtype=original.dtype,
        device=original.device,
        task_head=original.task_head,
    )
    check_embeds(reopened, path)
    if original.view_of is not None:
        reopened = reopened.only(original.stacks[0])
    if original.pooling.origin == "option":
        reopened = reopened.pooled_by(original.pooling.modes[0])
    return reopened


def _speed(full: LoadedModel, pruned: LoadedModel, task: Task, tell: Progress) -> SpeedResult:
    """Time the pruned model and the whole one alternately, on texts of the evaluation data."""
    batch_size = affordable_batch(full, task.rows, BATCH_SIZE)
    timed = times(
        (full, full, task.rows),
        (pruned, pruned, task.rows),
        batch_size=batch_size,
        tell=tell,
    )
    return SpeedResult(
        speed=timed.speed,
        ms=timed.ms,
        batch_size=batch_size,
        device=full.device,
        threads=torch.get_num_threads(),
        parameters_full=_n_parameters(full),
        parameters_pruned=_n_parameters(pruned),
    )


def _n_parameters(loaded: LoadedModel) -> int:
    """Count the weights of a model."""
    return sum(parameter.numel() for parameter in loaded.network.parameters())


def _same_outputs(
    task: Task, measured: LoadedModel, opened: LoadedModel, folder: Path
) -> tuple[Outputs, float]:
    """Run the measured model and the opened one over the examples of a task, side by side.

    Returns the opened one's outputs for the metric, and the largest absolute difference of any
    state, logit or embedding; refuses a difference (or a NaN) that is more than rounding.
    """
    differences: list[tuple[float, float]] = []  # Absolute, and relative where numbers are large
    compares_embeddings = (
        task.name in ("fidelity", "similarity", "retrieval") and measured.pooling.problem is None
    )

    def run_both(
        *inputs: Tensor, select: Select | None = None, **more: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Run both, note how they differ, and return what the opened one puts out."""
        with gated(measured) as run:  # attention is routed in one model at a time
            states, logits = run(*inputs, select=select, **more)
        with gated(opened) as run:
            opened_states, opened_logits = run(*inputs, select=select, **more)
        # inputs are (ids, mask, token types); with a decoder the states are those of its tokens.
        mask = more.get("decoder_attention_mask", inputs[1])
        real = mask.bool()
        differences.append(distance(states[real], opened_states[real]))
        if logits is not None:
            assert opened_logits is not None
            differences.append(distance(logits, opened_logits))
        if compares_embeddings:
            embedding = measured.pooling.embed(states, mask)
            opened_embedding = opened.pooling.embed(opened_states, mask)
            differences.append(distance(embedding, opened_embedding))
        return opened_states, opened_logits

    outputs = task.outputs_of(run_both, task.batches(measured))
    # By torch, as Python's max would pass over a NaN.
    largest, relative = torch.tensor(differences, dtype=torch.float64).max(dim=0).values.tolist()
    if not relative <= TOLERANCES[measured.dtype]:  # also where it is NaN
        raise ArtefactError(
            f"The model written for {folder}, opened again, puts out something else than the "
            f"measured one (a difference of {largest:.2g}), so the folder was not kept; give dtype "
            "float32 if weights were rounded, else please report this."
        )
    return outputs, largest
