"""The model with only its labelled heads, against as many heads drawn at random."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope import classify, prune
from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.errors import InputError
from headscope.core.files import sha256_of
from headscope.data.corpus import Corpus, as_plain, sample_corpus
from headscope.data.examples import Examples, as_pairs
from headscope.models.loaded import LoadedModel
from headscope.pruning.result import PruneResult
from headscope.reports.claims.head_claims import ROLES
from headscope.reports.result import KeptRoles
from headscope.session.progress import Progress, silent
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples, select

#: Random sets that the labelled heads are compared with, and the fewest: 39 leave room for one that
#: does as well, 2 / 40 = 5%.
DRAWS = 39

Place = tuple[int, int]


def measure_kept_roles(
    loaded: LoadedModel,
    classified: ClassifyResult,
    *,
    task: str = "fidelity",
    data: str | Path | None = None,
    draws: int = DRAWS,
    limit: int | None = None,
    seed: int = 0,
    corpus: Corpus | None = None,
    progress: Progress = silent,
) -> KeptRoles:
    """Measure what is left with only the heads that have one of the claim's roles.

    Roles and metric never come from the same sentences: where both would be the built-in sample,
    heads are classified anew on every other sentence, and the rest is measured. Of other data,
    examples with a sentence that heads were classified on are left out.

    ``corpus`` is what heads were classified on, the built-in sample by default; ``draws`` are the
    random sets that the labelled heads are compared with; ``limit`` keeps the first examples.
    """
    examples = read_examples(task, data)
    sample = sample_corpus()
    left_out = 0
    if data is None:
        learnt, examples = _halves(sample, examples)
        if classified.corpus.sha256 == sample.sha256:
            classified = classify(loaded, learnt, validate=False, seed=seed)
    else:
        texts = (" ".join(sentence.words) for sentence in corpus or sample)
        unseen = _unseen(examples, texts)
        left_out = len(examples) - len(unseen)
        if left_out > len(examples) / 2:
            raise InputError(
                f"{left_out} of the {len(examples)} examples of {examples.name} hold a sentence "
                "that the heads were classified on; measure the task on another text."
            )
        examples = unseen
    if limit is not None and task != "mlm":  # it limits the windows that its lines make
        examples = select(examples, range(min(limit, len(examples))))
    everything = list(places(loaded).values())
    named = {(h.stack, h.layer, h.head) for h in classified.heads if set(h.roles) & set(ROLES)}
    kept = [place for name, place in places(loaded).items() if name in named]
    measured = make_task(task, examples, loaded, seed=seed, limit=limit)
    whole = measured.outputs(loaded)
    wanted = Counter(layer for layer, _ in kept)
    sizes = _by_layer(everything).items()
    result = KeptRoles(
        roles=ROLES,
        kept=tuple((layer, loaded.sites[layer].head_ids[head]) for layer, head in kept),
        n_heads=len(everything),
        classified_on=classified.corpus.name,
        measured_on=examples.name,
        examples=measured.n_examples,
        metric=measured.metric,
        higher_is_better=measured.higher_is_better,
        baseline=measured.value(whole),
        value=None,
        difference_ci=None,
        random=(),
        left_out=left_out,
        sets=min(math.prod(math.comb(len(heads), wanted[layer]) for layer, heads in sizes), 2**53),
    )
    if not 0 < len(kept) < len(everything):
        return result
    outputs = measured.outputs(loaded, _gates(loaded, kept))
    found = measured.change(whole, outputs, seed=seed)
    return dataclasses.replace(
        result,
        value=found.value,
        difference_ci=found.ci,
        random=_random(loaded, measured, everything, kept, draws, seed, progress),
    )


def _random(
    loaded: LoadedModel,
    task: Task,
    everything: Sequence[Place],
    kept: Sequence[Place],
    draws: int,
    seed: int,
    progress: Progress,
) -> tuple[float, ...]:
    """Measure random sets with as many heads in every layer: where heads lie is not what counts."""
    of_layer, wanted = _by_layer(everything), Counter(layer for layer, _ in kept)
    values = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        chosen = [
            (layer, head)
            for layer, heads in of_layer.items()
            for head in rng.choice(heads, wanted[layer], replace=False).tolist()
        ]
        values.append(task.value(task.outputs(loaded, _gates(loaded, chosen))))
        progress("random heads", draw + 1, draws)
    return tuple(values)


def _by_layer(everything: Sequence[Place]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for layer, head in everything:
        found.setdefault(layer, []).append(head)
    return found


def _gates(loaded: LoadedModel, kept: Sequence[Place]) -> Tensor:
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    for layer, head in kept:
        gates[layer, head] = 1.0
    return gates


def _halves(sample: Corpus, examples: Examples) -> tuple[Corpus, Examples]:
    """Split the sample: every other sentence to classify on, the others to measure."""
    sentences = list(sample)
    learnt = sentences[::2]
    name = f"half of the {sample.name}"
    corpus = dataclasses.replace(
        sample,
        name=name,
        sha256=sha256_of(f"{sample.sha256} even"),
        n_sentences=len(learnt),
        read=lambda: iter(learnt),
    )
    other = dataclasses.replace(
        examples, name=f"the other half of the {sample.name}", first=examples.first[1::2]
    )
    return corpus, _unseen(other, (" ".join(sentence.words) for sentence in learnt))


def _unseen(examples: Examples, texts: Iterable[str]) -> Examples:
    """Leave out examples that have a sentence in common with some texts, spaces and case aside."""
    sides = [side for side in (examples.first, examples.second) if side is not None]
    keys = [[_key(text) for text in pair] for pair in zip(*sides, strict=True)]
    wanted = {key for pair in keys for key in pair}
    seen = {key for key in map(_key, texts) if key in wanted}
    return select(examples, (i for i, pair in enumerate(keys) if not seen.intersection(pair)))


def _key(text: str) -> str:
    """Make equal what differs in spaces and case only: corpora cut words differently."""
    return "".join(text.casefold().split())


#: Every so many-th source is read by the other sections; the task is measured on the others too.
_EVERY = 3
#: What each section calls its text.
_TEXTS = {
    **dict.fromkeys(("classify", "flow"), "corpus"),
    **dict.fromkeys(("rank", "spectrum", "depth", "linear", "symmetric"), "text"),
}

Settings = Mapping[str, Mapping[str, Any]]


def with_sources(settings: Settings, data: str | Path | None) -> dict[str, dict[str, Any]]:
    """Let sections that were given no text of their own read sources of the pairs."""
    if data is None:
        raise InputError("The task seq2seq needs pairs of source and target as data.")
    sources = list(dict.fromkeys(as_pairs(data).first[::_EVERY]))
    of_pairs: dict[str, dict[str, Any]] = {
        name: {text: as_plain(sources) if text == "text" else sources}
        for name, text in _TEXTS.items()
    }
    return {name: {**of_pairs.get(name, {}), **settings.get(name, {})} for name in _TEXTS}


def prune_stacks(
    loaded: LoadedModel,
    data: str | Path | None,
    limit: int | None,
    seed: int,
    progress: Progress,
) -> PruneResult:
    """Prune each stack alone, by the default method and at random.

    Heads are chosen on every other pair, and measured on the rest, the first ``limit`` of them.
    """
    pairs = as_pairs(data)
    return prune(
        loaded,
        task="seq2seq",
        data=select(pairs, range(1, len(pairs), 2)),
        calibration=select(pairs, range(0, len(pairs), 2)),
        repairs=("none",),
        stack="all",
        limit=limit,
        ablation=False,
        roles=False,
        validate=False,
        seed=seed,
        progress=progress,
    )
