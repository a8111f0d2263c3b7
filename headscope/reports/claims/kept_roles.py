"""What claim 2 is decided on: the model with only its labelled heads, and with random ones.

Labelled are the heads that ``classify`` gives one of the claim's roles. All other heads are gated
off; the metric of a task says what is left, and random sets of as many heads are the control.

A head is (row, index) here: the row of its layer among all measured layers, and its index in the
layer. A :class:`Task` is the *scorer*: it has the batches, and makes the metric of outputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from headscope.data.examples import WINDOWED, Examples
from headscope.data.unshared import without_shared
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.reports.claims.labelled_heads import SINK, kinds_of
from headscope.reports.result import KeptRoles, WithoutSinks
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import Head

#: Tokens of a batch: sentences of many lengths need less padding in small batches.
SMALL = 256


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
    """Measure the metric of a task with only the heads that have one of the claim's roles.

    Roles and metric never come from the same sentences: where both would come from the built-in
    sample, heads are classified anew on every other sentence, and the metric is measured on the
    rest. Of other data, examples with a sentence that heads were classified on are left out.
    ``corpus`` is the text that heads were classified on, the built-in sample by default; at most
    ``limit`` examples are measured, chosen at random, with ``draws`` random sets of heads.
    """
    # One text to classify heads on and one to measure, without a sentence in common.
    examples = read_examples(task, data)
    n_dropped = 0
    if data is None:
        classified, examples = _on_two_halves(loaded, classified, examples, seed, progress)
    else:
        examples, n_dropped = _unseen(examples, corpus or sample_corpus())
    if limit is not None and task not in WINDOWED:  # there it limits the windows that lines make
        examples = examples.draw(limit, seed)
    scorer = make_task(task, examples, loaded, seed=seed, limit=limit)
    full_outputs = scorer.outputs(loaded)

    # All heads by (stack, layer, number), and those of them that have a role.
    heads = places(loaded)
    kinds = tuple(kinds_of(loaded.stacks))
    labelled = _labelled_heads(classified, heads, kinds)

    # The metric with only the labelled heads, with random sets of as many heads, and where some
    # heads are sinks with those that have another role.
    def measured(kept_heads: Sequence[Head]) -> _Measured:
        return _measure(
            loaded, scorer, full_outputs, kept_heads, heads.values(), draws, seed, progress
        )

    kept = measured(labelled)
    counts = {kind: len(_labelled_heads(classified, heads, [kind])) for kind in kinds}
    without_sinks = None
    if counts.get(SINK):
        other_kinds = [kind for kind in kinds if kind != SINK]
        others = _labelled_heads(classified, heads, other_kinds)
        rest = measured(others)
        without_sinks = WithoutSinks(
            kept=len(others),
            value=rest.value,
            difference_ci=rest.interval,
            random=tuple(rest.random),
        )

    # The result.
    drawn = f" ({examples.drawn})" if examples.drawn else ""
    return KeptRoles(
        roles=kinds,
        kept=tuple(_layer_and_number(loaded, head) for head in labelled),
        n_heads=len(heads),
        classified_on=classified.corpus.name,
        measured_on=f"{examples.name}{drawn}",
        examples=scorer.n_examples,
        metric=scorer.metric,
        higher_is_better=scorer.higher_is_better,
        baseline=scorer.value(full_outputs),
        value=kept.value,
        difference_ci=kept.interval,
        random=tuple(kept.random),
        left_out=n_dropped,
        sets=min(kept.sets, 2**53),  # the largest number that JSON holds exactly
        units=kept.units,
        counts=counts,
        without_sinks=without_sinks,
    )


@dataclass(frozen=True)
class _Measured:
    """The metric with only some heads, and with random sets of as many in every layer."""

    value: float | None  # None where all heads are kept, or none
    interval: tuple[float, ...] | None  # Of ``value`` minus that of the whole model
    random: list[float]
    sets: int  # How many such sets there are
    units: int


def _measure(
    loaded: LoadedModel,
    scorer: Task,
    full_outputs: dict[str, Array],
    kept: Sequence[Head],
    heads: Collection[Head],
    draws: int,
    seed: int,
    progress: Progress,
) -> _Measured:
    """Measure the metric with some of the heads; nothing where these are all heads, or none."""
    random_sets = _RandomSets.like(kept, heads)
    if not 0 < len(kept) < len(heads):
        return _Measured(value=None, interval=None, random=[], sets=random_sets.count, units=0)
    outputs = outputs_with_only(scorer, loaded, kept)
    change = scorer.change(full_outputs, outputs, seed=seed)
    return _Measured(
        value=change.value,
        interval=(0.0, 0.0) if change.same else change.ci,  # the same model: exactly no change
        random=_random_values(loaded, scorer, random_sets, draws, seed, progress),
        sets=random_sets.count,
        units=change.units,
    )


def _labelled_heads(
    classified: ClassifyResult,
    heads: Mapping[tuple[str, int, int], Head],
    kinds: Collection[str],
) -> list[Head]:
    """Return the heads that have one of these roles, as (row, index).

    ``heads`` are all heads of the model, by (stack, layer, number) as results name them.
    """
    labelled: set[tuple[str, int, int]] = set()
    for head in classified.heads:
        if any(role in kinds for role in head.roles):
            labelled.add((head.stack, head.layer, head.head))
    return [head for name, head in heads.items() if name in labelled]


def _layer_and_number(loaded: LoadedModel, head: Head) -> tuple[int, int]:
    """Return layer and number of a head as results name them."""
    row, index = head
    site = loaded.sites[row]
    return site.layer, site.head_ids[index]


# --- the texts ------------------------------------------------------------------------------------


def _on_two_halves(
    loaded: LoadedModel,
    classified: ClassifyResult,
    examples: Examples,
    seed: int,
    progress: Progress,
) -> tuple[ClassifyResult, Examples]:
    """Return a classification on half of the built-in sample, and the other half as examples.

    Heads are classified anew if that was done on all of the sample.
    """
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
    """Split the sample: sentences 0, 2, 4, ... to classify heads on, 1, 3, 5, ... to measure.

    A sentence of the second half that stands in the first as well is left out.
    """
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
    """Return the examples without a sentence of the corpus, and how many others were left out."""
    unseen = without_shared(examples, _texts_of(corpus))
    if unseen.same or unseen.dropped > len(examples) / 2:
        raise InputError(
            f"More than half of the {len(examples)} examples of {examples.name} hold a "
            "sentence that the heads were classified on; measure the task on another text."
        )
    return unseen.examples, unseen.dropped


def _texts_of(corpus: Corpus) -> Examples:
    """Return a corpus as examples, to compare it with others."""
    texts = tuple(sentence.text for sentence in corpus)
    return Examples(corpus.name, corpus.sha256, first=texts)


# --- random sets of heads -------------------------------------------------------------------------


@dataclass(frozen=True)
class _RandomSets:
    """Random sets of heads, with as many in every layer as are labelled.

    So it gives no advantage to lie in a certain layer.
    """

    heads_by_layer: dict[int, list[int]]  # Indices of all heads, by the row of their layer
    n_labelled: Counter[int]  # Number of labelled heads, by the row of the layer

    @classmethod
    def like(cls, labelled: Iterable[Head], heads: Iterable[Head]) -> _RandomSets:
        """Prepare to draw from ``heads`` sets that have as many in every layer as ``labelled``."""
        heads_by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            heads_by_layer.setdefault(layer, []).append(head)
        return cls(heads_by_layer, Counter(layer for layer, _ in labelled))

    @property
    def count(self) -> int:
        """How many different sets there are: the product of the layers' numbers of choices."""
        count = 1
        for layer, heads in self.heads_by_layer.items():
            count *= math.comb(len(heads), self.n_labelled[layer])
        return count

    def draw(self, seed: int, draw: int) -> list[Head]:
        """Draw one set; the same ``draw`` of a seed is the same set."""
        rng = np.random.default_rng([seed, draw])
        drawn: list[Head] = []
        for layer, heads in self.heads_by_layer.items():
            chosen = rng.choice(heads, self.n_labelled[layer], replace=False)
            drawn += [(layer, head) for head in chosen.tolist()]
        return drawn


def _random_values(
    loaded: LoadedModel,
    scorer: Task,
    random_sets: _RandomSets,
    draws: int,
    seed: int,
    progress: Progress,
) -> list[float]:
    """Measure the metric with each of ``draws`` random sets of heads, several side by side."""

    @contextlib.contextmanager
    def measuring(copy: LoadedModel) -> Iterator[Callable[[list[Head]], float]]:
        """Prepare a copy of the model, one for each thread; yield what measures a set on it."""

        def value_with_only(heads: list[Head]) -> float:
            return scorer.value(outputs_with_only(scorer, copy, heads))

        with prepared(copy.network):
            yield value_with_only

    # Where several processes share out the batches, all have to measure the sets in one order.
    alone = current().size > 1
    sets = (random_sets.draw(seed, draw) for draw in range(draws))
    values = []
    for value in side_by_side(loaded, sets, measuring, alone=alone):
        values.append(value)
        progress("random heads", len(values), draws)
    return values


def outputs_with_only(scorer: Task, loaded: LoadedModel, heads: Sequence[Head]) -> dict[str, Array]:
    """Run a model in which only some heads have a gate of one, and return what the task needs.

    The gates of all others are zero, which changes the outputs as removing their weights does;
    layers that share their weights (ALBERT) need no rule of their own.
    """
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    for row, index in heads:
        gates[row, index] = 1.0
    with gated(loaded, gates) as run:
        return scorer.outputs_of(run, share(scorer.batches(loaded, SMALL)))
