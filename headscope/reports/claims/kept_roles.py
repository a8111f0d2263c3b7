"""What claims 2 and 4 measure: the model with only labelled heads, and pruned by stack."""

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
from headscope.data.corpus import Corpus, sample_corpus
from headscope.data.examples import Examples, as_pairs
from headscope.data.plain import as_plain
from headscope.models.loaded import LoadedModel
from headscope.pruning.result import PruneResult
from headscope.reports.claims.head_claims import ROLES
from headscope.reports.result import KeptRoles
from headscope.session.progress import Progress, silent
from headscope.tasks.making import make_task, read_examples, select

#: Random sets that the labelled heads are compared with, and the fewest: 39 leave room for one that
#: does as well, 2 / 40 = 5%.
DRAWS = 39


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
    examples with a sentence that heads were classified on are left out. ``corpus`` is what heads
    were classified on, the built-in sample by default; ``limit`` keeps the first examples.
    """
    examples, sample, left_out = read_examples(task, data), sample_corpus(), 0
    if data is None:
        learnt, examples = _halves(sample, examples)
        if classified.corpus.sha256 == sample.sha256:
            classified = classify(loaded, learnt, validate=False, seed=seed)
    else:
        unseen = _unseen(examples, (" ".join(sentence.words) for sentence in corpus or sample))
        left_out = len(examples) - len(unseen)
        if left_out > len(examples) / 2:
            raise InputError(
                f"{left_out} of the {len(examples)} examples of {examples.name} hold a sentence "
                "that the heads were classified on; measure the task on another text."
            )
        examples = unseen
    if limit is not None and task != "mlm":  # there it limits the windows that lines make
        examples = select(examples, range(min(limit, len(examples))))
    measured = make_task(task, examples, loaded, seed=seed, limit=limit)
    whole = measured.outputs(loaded)

    of_name = places(loaded)
    labelled = {(h.stack, h.layer, h.head) for h in classified.heads if set(h.roles) & set(ROLES)}
    kept = [place for name, place in of_name.items() if name in labelled]
    wanted, by_layer = Counter(layer for layer, _ in kept), dict[int, list[int]]()
    for layer, head in of_name.values():
        by_layer.setdefault(layer, []).append(head)
    value = interval = None
    random: list[float] = []
    if 0 < len(kept) < len(of_name):
        change = measured.change(whole, measured.outputs(loaded, _gates(loaded, kept)), seed=seed)
        value, interval = change.value, change.ci
        for draw in range(draws):  # as many heads in every layer: where heads lie is no merit
            rng = np.random.default_rng([seed, draw])
            chosen = [
                (layer, head)
                for layer, heads in by_layer.items()
                for head in rng.choice(heads, wanted[layer], replace=False).tolist()
            ]
            random.append(measured.value(measured.outputs(loaded, _gates(loaded, chosen))))
            progress("random heads", draw + 1, draws)
    sets = math.prod(math.comb(len(heads), wanted[layer]) for layer, heads in by_layer.items())
    return KeptRoles(
        roles=ROLES,
        kept=tuple((layer, loaded.sites[layer].head_ids[head]) for layer, head in kept),
        n_heads=len(of_name),
        classified_on=classified.corpus.name,
        measured_on=examples.name,
        examples=measured.n_examples,
        metric=measured.metric,
        higher_is_better=measured.higher_is_better,
        baseline=measured.value(whole),
        value=value,
        difference_ci=interval,
        random=tuple(random),
        left_out=left_out,
        sets=min(sets, 2**53),
    )


def _gates(loaded: LoadedModel, kept: Sequence[tuple[int, int]]) -> Tensor:
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    for layer, head in kept:
        gates[layer, head] = 1.0
    return gates


def _halves(sample: Corpus, examples: Examples) -> tuple[Corpus, Examples]:
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
    other = dataclasses.replace(examples, name=name, first=examples.first[1::2])
    return corpus, _unseen(other, (" ".join(sentence.words) for sentence in sentences))


def _unseen(examples: Examples, texts: Iterable[str]) -> Examples:
    """Leave out examples that share a sentence with some texts.

    Spaces and case do not count: corpora cut words differently.
    """

    def key(text: str) -> str:
        return "".join(text.casefold().split())

    sides = [side for side in (examples.first, examples.second) if side is not None]
    keys = [{key(text) for text in pair} for pair in zip(*sides, strict=True)]
    seen = set().union(*keys) & set(map(key, texts))
    return select(examples, (i for i, pair in enumerate(keys) if not pair & seen))


#: What each section calls its text.
_TEXTS = {
    **dict.fromkeys(("classify", "flow"), "corpus"),
    **dict.fromkeys(("rank", "spectrum", "depth", "linear", "symmetric"), "text"),
}


def with_sources(
    settings: Mapping[str, Mapping[str, Any]], data: str | Path | None
) -> dict[str, dict[str, Any]]:
    """Let sections without a text of their own read every third source of the pairs."""
    if data is None:
        raise InputError("The task seq2seq needs pairs of source and target as data.")
    sources = list(dict.fromkeys(as_pairs(data).first[::3]))
    return {
        name: {text: as_plain(sources) if text == "text" else sources, **settings.get(name, {})}
        for name, text in _TEXTS.items()
    }


def prune_stacks(
    loaded: LoadedModel, data: str | Path | None, limit: int | None, seed: int, progress: Progress
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
