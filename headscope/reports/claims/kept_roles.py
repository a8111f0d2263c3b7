"""What claim 2 is decided on: the model with only its labelled heads, and with random ones."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headscope import classify
from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.files import sha256_of
from headscope.core.processes import current, share
from headscope.core.progress import Progress, progress_of_part, silent
from headscope.data.corpus import Corpus, sample_corpus
from headscope.data.examples import Examples, without_shared
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.reports.claims.labelled_heads import KINDS
from headscope.reports.result import KeptRoles
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import Head

SMALL = 256  # Tokens of a batch where few sentences of many lengths are read: less padding.


def measure_kept_roles(
    loaded: LoadedModel,
    classified: ClassifyResult,
    *,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = 39,
    limit: int | None = None,
    seed: int = 0,
    corpus: Corpus | None = None,
    progress: Progress = silent,
) -> KeptRoles:
    """Measure what is left with only the heads that have one of the claim's roles.

    Roles and metric never come from the same sentences: where both would be the built-in sample,
    heads are classified anew on every other sentence, and the rest is measured. Of other data,
    examples with a sentence that heads were classified on are left out. ``corpus`` is what heads
    were classified on, the built-in sample by default; ``limit`` examples are chosen at random.
    """
    # Two texts that share no sentence.
    examples = read_examples(task, data)
    dropped = 0
    if data is None:
        classified, examples = _on_two_halves(loaded, classified, examples, seed, progress)
    else:
        examples, dropped = _unseen(examples, corpus or sample_corpus())
    if limit is not None and task != "mlm":  # there it limits the windows that lines make
        examples = examples.draw(limit, seed)
    measured = make_task(task, examples, loaded, seed=seed, limit=limit)
    full_outputs = measured.outputs(loaded)

    # The heads that have a role, and those that there are in their layers.
    place_of = places(loaded)
    labelled_names = {
        (head.stack, head.layer, head.head)
        for head in classified.heads
        if not KINDS.keys().isdisjoint(head.roles)
    }
    labelled = [head for name, head in place_of.items() if name in labelled_names]
    layers = _Layers.of(place_of.values(), labelled)

    # The metric with only these heads, and with random sets of as many.
    value = None
    interval: tuple[float, ...] | None = None
    units = 0
    random: list[float] = []
    if 0 < len(labelled) < len(place_of):
        outputs = outputs_with_only(measured, loaded, labelled)
        change = measured.change(full_outputs, outputs, seed=seed)
        value = change.value
        units = change.units
        interval = (0.0, 0.0) if change.same else change.ci
        random = _random_values(loaded, measured, layers, draws, seed, progress)
    drawn = f" ({examples.drawn})" if examples.drawn else ""
    return KeptRoles(
        roles=tuple(KINDS),
        kept=tuple(
            (loaded.sites[row].layer, loaded.sites[row].head_ids[head]) for row, head in labelled
        ),
        n_heads=len(place_of),
        classified_on=classified.corpus.name,
        measured_on=f"{examples.name}{drawn}",
        examples=measured.n_examples,
        metric=measured.metric,
        higher_is_better=measured.higher_is_better,
        baseline=measured.value(full_outputs),
        value=value,
        difference_ci=interval,
        random=tuple(random),
        left_out=dropped,
        sets=min(layers.sets, 2**53),
        units=units,
    )


# --- the texts ------------------------------------------------------------------------------------


def _on_two_halves(
    loaded: LoadedModel,
    classified: ClassifyResult,
    examples: Examples,
    seed: int,
    progress: Progress,
) -> tuple[ClassifyResult, Examples]:
    """Classify anew on half of the sample, if it was on all of it; return the other half too."""
    sample = sample_corpus()
    first_half, other_half = halves(sample, examples)
    if classified.corpus.sha256 == sample.sha256:
        classified = classify(
            loaded,
            first_half,
            validate=False,
            seed=seed,
            progress=progress_of_part("half", progress),
        )
    return classified, other_half


def halves(sample: Corpus, examples: Examples) -> tuple[Corpus, Examples]:
    """Split the sample: every other sentence to classify on, the others to measure."""
    sentences = list(sample)[::2]
    corpus = dataclasses.replace(
        sample,
        name=f"half of the {sample.name}",
        sha256=sha256_of(f"{sample.sha256} even"),
        n_sentences=len(sentences),
        read=lambda: iter(sentences),
    )
    name = f"the other half of the {sample.name}"
    other_half = dataclasses.replace(examples, name=name, first=examples.first[1::2])
    return corpus, without_shared(other_half, _texts_of(corpus)).examples


def _unseen(examples: Examples, corpus: Corpus) -> tuple[Examples, int]:
    """Leave out examples with a sentence of the corpus; return the others, and how many went."""
    unseen = without_shared(examples, _texts_of(corpus))
    if unseen.same or unseen.dropped > len(examples) / 2:
        raise InputError(
            f"More than half of the {len(examples)} examples of {examples.name} hold a "
            "sentence that the heads were classified on; measure the task on another text."
        )
    return unseen.examples, unseen.dropped


def _texts_of(corpus: Corpus) -> Examples:
    texts = tuple(sentence.text for sentence in corpus)
    return Examples(corpus.name, corpus.sha256, first=texts)


# --- random sets of heads -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layers:
    """The heads of each layer, and how many of them are labelled.

    Random sets have as many heads in every layer, so that layers give no advantage.
    """

    heads: dict[int, list[int]]
    n_labelled: Counter[int]

    @classmethod
    def of(cls, heads: Iterable[Head], labelled: Iterable[Head]) -> _Layers:
        """Group heads, each a layer's row and an index in it, by their layer."""
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        return cls(by_layer, Counter(layer for layer, _ in labelled))

    @property
    def sets(self) -> int:
        """How many different sets have as many heads in every layer."""
        return math.prod(
            math.comb(len(heads), self.n_labelled[layer]) for layer, heads in self.heads.items()
        )

    def draw(self, seed: int, draw: int) -> list[Head]:
        """Choose as many heads in every layer at random."""
        rng = np.random.default_rng([seed, draw])
        drawn: list[Head] = []
        for layer, heads in self.heads.items():
            chosen = rng.choice(heads, self.n_labelled[layer], replace=False)
            drawn += [(layer, head) for head in chosen.tolist()]
        return drawn


def _random_values(
    loaded: LoadedModel,
    task: Task,
    layers: _Layers,
    draws: int,
    seed: int,
    progress: Progress,
) -> list[float]:
    """Measure the metric with only random heads, several sets side by side."""

    @contextlib.contextmanager
    def metric_of(model: LoadedModel) -> Iterator[Callable[[list[Head]], float]]:
        with prepared(model.network):
            yield lambda heads: task.value(outputs_with_only(task, model, heads))

    alone = current().size > 1  # batches are shared out, in one order
    sets = (layers.draw(seed, draw) for draw in range(draws))
    values = []
    for value in side_by_side(loaded, sets, metric_of, alone=alone):
        values.append(value)
        progress("random heads", len(values), draws)
    return values


def outputs_with_only(task: Task, loaded: LoadedModel, heads: Sequence[Head]) -> dict[str, Array]:
    """Run a model in which only some heads, each a row and an index, have a gate of one.

    The others' gates are zero, which changes the outputs as removing their weights does; layers
    that share their weights (ALBERT) need no rule of their own.
    """
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    for row, head in heads:
        gates[row, head] = 1.0
    with gated(loaded, gates) as run:
        return task.outputs_of(run, share(task.batches(loaded, SMALL)))
