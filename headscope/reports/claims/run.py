"""A run of ``insights``: what is measured for each claim, and which function decides it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope import classify, prune
from headscope.analyses.classify.known_roles import places
from headscope.analyses.classify.result import ClassifyResult
from headscope.commands import COMMANDS
from headscope.core.accumulator import Array
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.files import sha256_of
from headscope.core.processes import current, share
from headscope.core.progress import Progress, part_of, silent
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.data.corpus import Corpus, as_corpus, as_plain, sample_corpus
from headscope.data.examples import Examples, without_shared
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.reports.claims.head_claims import (
    ROLES,
    judge_cross_attention,
    judge_labelled_heads,
)
from headscope.reports.claims.matrix_claims import (
    judge_asymmetry,
    judge_collapse,
    judge_low_rank,
    judge_shared_projections,
)
from headscope.reports.claims.routing_claims import judge_interference, judge_routing
from headscope.reports.claims.rule import Evidence, Rule
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.claims.tuning_claims import judge_frozen, judge_layernorm, judge_unstable
from headscope.reports.options import InsightsOptions
from headscope.reports.result import Insight, InsightsResult, KeptRoles
from headscope.reports.sections import SectionRun, check_settings, run_sections, source_of
from headscope.session.opening import Model, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import Head

#: What each section calls its text.
_TEXTS = {
    **dict.fromkeys(("classify", "flow"), "corpus"),
    **dict.fromkeys(("rank", "spectrum", "depth", "linear", "symmetric"), "text"),
}
SMALL = 256  # Tokens of a batch where few sentences of many lengths are read: less padding.
#: Who decides a claim, by its name in ``claims.toml``, in the order of their numbers. Each takes
#: the results that the claim needs, as that file lists them; two take all the evidence.
JUDGES: dict[str, Callable[..., Insight]] = {
    "asymmetry": judge_asymmetry,
    "routing": judge_routing,
    "labelled_heads": judge_labelled_heads,
    "shared_projections": judge_shared_projections,
    "cross_attention": judge_cross_attention,
    "low_rank": judge_low_rank,
    "interference": judge_interference,
    "collapse": judge_collapse,
    "layernorm": judge_layernorm,
    "frozen": judge_frozen,
    "unstable": judge_unstable,
}


def decide(name: str, evidence: Evidence, thresholds: InsightThresholds | None = None) -> Insight:
    """Give a claim its verdict; "not measured yet" where its measurement is missing."""
    rule = Rule(name, thresholds or InsightThresholds())
    if name in ("labelled_heads", "cross_attention"):
        return JUDGES[name](rule, evidence)
    needs = [getattr(evidence, section) for section in rule.claim.needs]
    if all(result is None for result in needs):
        return rule.missing()
    return JUDGES[name](rule, *needs)


def run(model: Model, options: InsightsOptions) -> InsightsResult:
    """Test the claims of the literature on one model."""
    started = time.monotonic()
    budget = options.budget
    task = options.task
    data = options.data
    limit = options.limit
    seed = options.seed
    names = [name for name in COMMANDS["insights"].uses if name != "prune"]
    settings: Mapping[str, Mapping[str, Any]] = options.settings or {}
    for name, table in settings.items():
        check_settings(name, table)
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)
    thresholds = options.thresholds or InsightThresholds()
    translating = loaded.encoder_decoder and task == "seq2seq"

    # Everything but fine-tuning, which comes last and gets what is left of the budget.
    sections = options.sections
    left_out: dict[str, str] = {}
    tell: Progress = options.tell
    tuning: SectionRun | None = None
    if sections is None:
        if translating:
            if data is None:
                raise InputError("The task seq2seq needs pairs of source and target as data.")
            # Sections that read a text without pairs read every third source.
            sources = list(dict.fromkeys(read_examples(task, data).first[::3]))
            settings = {
                name: {text: as_plain(sources) if text == "text" else sources}
                | dict(settings.get(name, {}))
                for name, text in _TEXTS.items()
            }
        names = [name for name in names if name not in options.skip]
        first = [name for name in names if name != "transfer"]
        source = source_of(model, loaded, options)
        shared = SectionRun(loaded, settings, seed, options.command, options.validate, tell, source)
        measured = run_sections(first, shared)
        sections = measured.sections
        left_out = measured.left_out
        tuning = shared if "transfer" in names else None
        tell = part_of("insights", tell)
    if translating and sections.prune is None:
        # Each stack alone, by the default method and at random: heads are chosen on every other
        # pair, and measured on the rest.
        pairs = read_examples(task, data)
        pruned = prune(
            loaded,
            task="seq2seq",
            data=pairs.pick(range(1, len(pairs), 2)),
            calibration=pairs.pick(range(0, len(pairs), 2)),
            repairs=("none",),
            stack="all",
            limit=limit,
            validate=False,
            seed=seed,
            progress=tell,
        )
        sections = dataclasses.replace(sections, prune=pruned)
    kept_roles = None
    if sections.classify is not None:
        with contextlib.suppress(UnsupportedModelError):
            kept_roles = measure_kept_roles(
                loaded.only("encoder" if loaded.encoder_decoder else "all"),
                sections.classify,
                task=task,
                data=data,
                draws=options.draws,
                limit=limit,
                seed=seed,
                corpus=as_corpus(settings.get("classify", {}).get("corpus")),
                progress=tell,
            )
    if tuning is not None:
        left = max(budget - (time.monotonic() - started), 1.0)
        table = settings.get("transfer", {})
        limits = {**settings, "transfer": {**table, "budget": min(left, table.get("budget", left))}}
        tuned = run_sections(["transfer"], dataclasses.replace(tuning, settings=limits))
        sections = dataclasses.replace(sections, transfer=tuned.sections.transfer)
        left_out |= tuned.left_out
    without = (f"{name} is left out: {why}" for name, why in left_out.items())
    warnings = [*warnings_of(*sections.sections.values()), *without]
    evidence = Evidence(**sections.sections, kept_roles=kept_roles, stacks=loaded.stacks)
    return InsightsResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, warnings=warnings),
        validation=validation,
        insights=tuple(decide(name, evidence, thresholds) for name in JUDGES),
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept_roles,
    )


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
    examples = read_examples(task, data)
    sample = sample_corpus()
    left_out = 0
    if data is None:
        learnt, examples = _halves(sample, examples)
        if classified.corpus.sha256 == sample.sha256:
            tell = part_of("half", progress)
            classified = classify(loaded, learnt, validate=False, seed=seed, progress=tell)
    else:
        unseen = without_shared(examples, _texts_of(corpus or sample))
        left_out = unseen.dropped
        if unseen.same or left_out > len(examples) / 2:
            raise InputError(
                f"More than half of the {len(examples)} examples of {examples.name} hold a "
                "sentence that the heads were classified on; measure the task on another text."
            )
        examples = unseen.examples
    if limit is not None and task != "mlm":  # there it limits the windows that lines make
        examples = examples.draw(limit, seed)
    measured = make_task(task, examples, loaded, seed=seed, limit=limit)
    full_outputs = measured.outputs(loaded)

    of_name = places(loaded)
    labelled = {(h.stack, h.layer, h.head) for h in classified.heads if set(h.roles) & set(ROLES)}
    remaining = [head for name, head in of_name.items() if name in labelled]
    wanted = Counter(layer for layer, _ in remaining)
    by_layer: dict[int, list[int]] = {}
    for layer, head in of_name.values():
        by_layer.setdefault(layer, []).append(head)

    def drawn(draw: int) -> list[Head]:
        """Choose as many heads in every layer, so that layers give no advantage."""
        rng = np.random.default_rng([seed, draw])
        return [
            (layer, head)
            for layer, heads in by_layer.items()
            for head in rng.choice(heads, wanted[layer], replace=False).tolist()
        ]

    @contextlib.contextmanager
    def outcomes(model: LoadedModel) -> Iterator[Callable[[list[Head]], float]]:
        with prepared(model.network):
            yield lambda heads: measured.value(_outputs_of(measured, model, heads))

    value = interval = None
    units = 0
    random: list[float] = []
    if 0 < len(remaining) < len(of_name):
        change = measured.change(full_outputs, _outputs_of(measured, loaded, remaining), seed=seed)
        value = change.value
        units = change.units
        interval = (0.0, 0.0) if change.same else change.ci
        alone = current().size > 1  # batches are shared out, in one order
        each = side_by_side(loaded, map(drawn, range(draws)), outcomes, alone=alone)
        for draw, outcome in enumerate(each):
            random.append(outcome)
            progress("random heads", draw + 1, draws)
    sets = math.prod(math.comb(len(heads), wanted[layer]) for layer, heads in by_layer.items())
    return KeptRoles(
        roles=ROLES,
        kept=tuple(
            (loaded.sites[row].layer, loaded.sites[row].head_ids[head]) for row, head in remaining
        ),
        n_heads=len(of_name),
        classified_on=classified.corpus.name,
        measured_on=examples.name + (f" ({examples.drawn})" if examples.drawn else ""),
        examples=measured.n_examples,
        metric=measured.metric,
        higher_is_better=measured.higher_is_better,
        baseline=measured.value(full_outputs),
        value=value,
        difference_ci=interval,
        random=tuple(random),
        left_out=left_out,
        sets=min(sets, 2**53),
        units=units,
    )


def _outputs_of(task: Task, loaded: LoadedModel, remaining: Sequence[Head]) -> dict[str, Array]:
    """Run a model in which only some heads, each a row and an index, have a gate of one.

    The others' gates are zero, which changes the outputs as removing their weights does; layers
    that share their weights (ALBERT) need no rule of their own.
    """
    gates = torch.zeros(loaded.n_layers, loaded.n_heads, device=loaded.device)
    gates[tuple(np.transpose(remaining))] = 1.0
    with gated(loaded, gates) as run:
        return task.outputs_of(run, share(task.batches(loaded, SMALL)))


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
    return corpus, without_shared(other, _texts_of(corpus)).examples


def _texts_of(corpus: Corpus) -> Examples:
    return Examples(corpus.name, corpus.sha256, first=tuple(item.text for item in corpus))
