"""The model with only its labelled heads, against as many heads drawn at random."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.data.corpus import Corpus, sample_corpus
from headscope.data.tasks import Examples
from headscope.errors import InputError
from headscope.measures.insights.roles import ROLES
from headscope.models.loading import LoadedModel
from headscope.pipeline.classify import classify
from headscope.pipeline.tasks import Task, make_task, read_examples
from headscope.results import ClassifyResult, KeptRoles

__all__ = ["DRAWS", "measure_kept_roles"]

#: Random sets that the labelled heads are compared with.
DRAWS = 20

Progress = Callable[[str, int, int], None]
Place = tuple[int, int]


def measure_kept_roles(
    loaded: LoadedModel,
    classified: ClassifyResult,
    *,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> KeptRoles:
    """Measure what is left with only the heads that have one of the claim's roles.

    Roles and metric never come from the same sentences: where both would be the built-in sample,
    heads are classified anew on every other sentence, and the rest is measured.

    Parameters
    ----------
    loaded : LoadedModel
        With its task head, where the task needs it.
    classified : ClassifyResult
    task : str
    data : path, optional
        What the task is measured on; the built-in sample by default.
    draws : int
        Random sets, 20 or more.
    seed : int
    progress : callable, optional

    Raises
    ------
    InputError
        For too few draws, or data that is the text of the classification.
    """
    if draws < 20:
        raise InputError(f"{draws} random sets tell no 95% quantile; give 20 or more (--draws).")
    examples = read_examples(task, data)
    sample = sample_corpus()
    if data is not None and examples.sha256 == classified.corpus.sha256:
        raise InputError(
            f"{examples.name} is what the heads were classified on; measure the task on another."
        )
    if data is None:
        learnt, examples = _halves(sample, examples)
        if classified.corpus.sha256 == sample.sha256:
            classified = classify(loaded, learnt, validate=False, seed=seed)
    kept = _labelled(loaded, classified)
    measured = make_task(task, examples, loaded, seed=seed)
    whole = measured.outputs(loaded)
    places = [(site.layer, head) for site in loaded.sites for head in range(site.n_heads)]
    result = KeptRoles(
        roles=ROLES,
        kept=tuple((layer, loaded.sites[layer].head_ids[head]) for layer, head in kept),
        n_heads=len(places),
        classified_on=classified.corpus.name,
        measured_on=examples.name,
        examples=measured.n_examples,
        metric=measured.metric,
        higher_is_better=measured.higher_is_better,
        baseline=measured.value(whole),
        value=None,
        difference_ci=None,
        random=(),
    )
    if not 0 < len(kept) < len(places):
        return result
    outputs = measured.outputs(loaded, _gates(loaded, kept))
    found = measured.interval(outputs, whole, seed=seed)
    return dataclasses.replace(
        result,
        value=found.value,
        difference_ci=(float(found.difference_low or 0.0), float(found.difference_high or 0.0)),
        random=_random(loaded, measured, places, len(kept), draws, seed, progress),
    )


def _random(
    loaded: LoadedModel,
    task: Task,
    places: Sequence[Place],
    size: int,
    draws: int,
    seed: int,
    progress: Progress | None,
) -> tuple[float, ...]:
    values = []
    for draw in range(draws):
        chosen = np.random.default_rng([seed, draw]).choice(len(places), size, replace=False)
        gates = _gates(loaded, [places[i] for i in sorted(chosen.tolist())])
        values.append(task.value(task.outputs(loaded, gates)))
        if progress is not None:
            progress("random heads", draw + 1, draws)
    return tuple(values)


def _labelled(loaded: LoadedModel, classified: ClassifyResult) -> list[Place]:
    """Places, in the loaded model, of the heads that have one of the roles."""
    named = {(h.layer, h.head) for h in classified.heads if set(h.roles) & set(ROLES)}
    return [
        (site.layer, place)
        for site in loaded.sites
        for place, name in enumerate(site.head_ids)
        if (site.layer, name) in named
    ]


def _gates(loaded: LoadedModel, kept: Sequence[Place]) -> Tensor:
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    for layer, head in kept:
        gates[layer, head] = 1.0
    return gates


def _halves(sample: Corpus, examples: Examples) -> tuple[Corpus, Examples]:
    """Split the sample: every other sentence to classify on, the others to measure."""
    sentences = list(sample)
    learnt = sentences[::2]
    seen = {" ".join(sentence.words) for sentence in learnt}
    name = f"half of the {sample.name}"
    corpus = dataclasses.replace(
        sample,
        name=name,
        sha256=hashlib.sha256(f"{sample.sha256} even".encode()).hexdigest(),
        n_sentences=len(learnt),
        read=lambda: iter(learnt),
    )
    texts = tuple(text for text in examples.first[1::2] if text not in seen)
    return corpus, dataclasses.replace(
        examples, name=f"the other half of the {sample.name}", first=texts
    )
