"""Tuning as a run has it: on all calibration text, and what it did to text of another kind."""

from __future__ import annotations

from collections.abc import Callable

from headscope.core.errors import InputError
from headscope.data.examples import Examples, sample_texts
from headscope.data.shared_sentences import without_shared
from headscope.models.loaded import LoadedModel
from headscope.pruning.mix.result import Tuned
from headscope.pruning.mix.tune import distil
from headscope.pruning.options import PruneOptions
from headscope.pruning.setup import Inputs
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.tasks.encoder_tasks import Fidelity
from headscope.tasks.making import make_task


def tuned(
    small: LoadedModel,
    inputs: Inputs,
    options: PruneOptions,
    examples: Examples,
    tell: Callable[[float], object],
) -> tuple[LoadedModel, Tuned]:
    """Distil a smaller model on ``examples``, and look at text of another kind too."""
    whole, seed = inputs.loaded, options.seed
    name = inputs.sources.calibration_task
    name = "fidelity" if name in ("similarity", "retrieval") else name
    mine, theirs = (make_task(name, examples, model, seed=seed + 1) for model in (small, whole))
    if len(mine.rows) != len(theirs.rows):
        raise InputError(
            "Some calibration texts no longer fit the model once rare words are spelled in more "
            "pieces; leave the longest ones out of the calibration data."
        )
    found = distil(small, whole, (mine, theirs), options.tune_minutes, seed=seed, tell=tell)
    other = inputs.sources.fidelity or without_shared(sample_texts(), examples).examples
    before, after = (_fidelity(model, whole, other, seed) for model in (small, found.model))
    return found.model, Tuned(
        text=examples.name,
        sentences=found.sentences,
        minutes=found.minutes,
        allowed=options.tune_minutes,
        steps=found.steps,
        before=found.before,
        after=found.after,
        other_text=other.name,
        other_before=before,
        other_after=after,
    )


def _fidelity(model: LoadedModel, whole: LoadedModel, examples: Examples, seed: int) -> Estimate:
    """Mean cosine of embeddings to the whole model's, with its interval."""
    if whole.encoder_decoder or len(examples) < 2:
        return UNKNOWN
    reference, task = Fidelity(examples, whole), Fidelity(examples, model)
    if len(task.rows) != len(reference.rows):
        return UNKNOWN
    task.distance = reference.distance
    return task.interval(task.outputs(model), seed=seed).estimate()
