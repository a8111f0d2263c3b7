"""Run a model with the formula of some heads exchanged, and say how far its output moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.core.errors import UnsupportedModelError
from headscope.data.plain import PlainText, as_plain
from headscope.measures.accumulator import Array
from headscope.measures.metrics import mean_of
from headscope.measures.paired_change import interval_of
from headscope.measures.pooling import cosine
from headscope.measures.statistics import finite
from headscope.models.intervene import Exchanged, intervene
from headscope.models.loaded import LoadedModel
from headscope.models.replay import Prefix
from headscope.pipeline.validate import require_valid
from headscope.results.effects import Effect, EffectTask
from headscope.results.estimated import Estimated
from headscope.results.serialise import SCHEMA
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.options import EffectOptions
from headscope.session.progress import Progress
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples


@dataclass(frozen=True)
class Opened:
    """A model whose heads are to be exchanged, and what it is measured on."""

    loaded: LoadedModel  # Certified, and seen in the one stack that a text runs
    effects: Effects  # Of its changed versions
    #: The fields that every result has: provenance, certificate, text, task and left-out stacks.
    common: dict[str, Any]

    @classmethod
    def of(cls, model: Model, options: EffectOptions, name: str) -> Opened:
        """Open, check and certify a model, and read its text; ``name`` is the command."""
        seed, limit = options.seed, options.limit
        source = spread_lines(as_plain(options.text), options.sentences, limit)
        whole = open_for_tasks(model, **options.loading)
        need_tokenizer(whole, name)
        whole.pooling.check()
        if not whole.sites:  # the certificate says why
            require_valid(whole, options.validate)
        loaded = readable(whole, name)
        validation = require_valid(loaded, options.validate)
        task = task_of(loaded, options.task, options.data, limit, seed)
        effects = Effects(loaded, source, task, seed)
        common = {
            "schema": SCHEMA,
            "provenance": provenance(loaded, command=options.command, seed=seed, data=source),
            "validation": validation,
            "left_out": tuple(stack for stack in whole.stacks if stack not in loaded.stacks),
            "text": effects.describe(),
            "task": effects.task,
        }
        return cls(loaded, effects, common)


@dataclass(frozen=True)
class TaskEffect:
    """The task's value of a changed model, and its difference to the unchanged one's."""

    metric: float
    difference: Estimated


def readable(loaded: LoadedModel, command: str) -> LoadedModel:
    """Return the view of a model whose queries and keys a text can show: one sequence, a square S.

    Of an encoder-decoder model that is the encoder: a text runs nothing else.
    """
    if loaded.encoder_decoder:
        loaded = loaded.only("encoder")
    if not any(site.n_heads for site in loaded.sites):
        raise UnsupportedModelError(
            f"{loaded.name} has no head that reads a text, so {command} has nothing to measure."
        )
    return loaded


def spread_lines(text: PlainText, lines: int, limit: int | None = None) -> PlainText:
    """Return some lines of a text, or of its first ones, spread evenly; all where it has fewer."""
    of = min(text.n_lines, limit or text.n_lines)
    chosen = {i * of // min(lines, of) for i in range(min(lines, of))}

    def read() -> Iterator[str]:
        return (line for i, line in enumerate(text) if i in chosen)

    return dataclasses.replace(text, n_lines=len(chosen), read=read)


def task_of(
    loaded: LoadedModel, task: str | None, data: str | Path | None, limit: int | None, seed: int
) -> Task | None:
    """Make the task that changed models are measured by; None where none is asked for."""
    if task is None:
        return None
    examples = read_examples(task, data, limit)
    return make_task(task, examples, loaded, seed=seed, limit=limit)


class Effects:
    """A model and the lines that its changed versions are compared with it on."""

    def __init__(
        self, loaded: LoadedModel, text: PlainText, task: Task | None = None, seed: int = 0
    ) -> None:
        self._loaded, self._task, self._seed = loaded, task, seed
        self.batches = [loaded.pad(batch) for _, batch in line_batches(loaded, text)]
        self.lines = sum(len(ids) for ids, _ in self.batches)
        self.skipped = text.n_lines - self.lines
        check_measured(text, self.lines)
        self._text = text
        self._baseline = None if task is None else task.outputs(loaded)
        self.task: EffectTask | None = None
        if task is not None and self._baseline is not None:
            before = task.interval(self._baseline, seed=seed)
            self.task = EffectTask(
                name=task.name,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                data={"name": task.data.name, "sha256": task.data.sha256},
                examples=task.n_examples,
                baseline=Estimated(before.value, *(before.ci or ())),
            )

    def describe(self) -> dict[str, Any]:
        """Say what was read."""
        return {
            "name": self._text.name,
            "sha256": self._text.sha256,
            "lines": self.lines,
            "skipped": self.skipped,
            "tokens": sum(int(mask.sum()) for _, mask in self.batches),
        }

    def measure(self, versions: Sequence[Exchanged], progress: Progress, what: str) -> list[Effect]:
        """Measure changed versions of the model, each alone."""
        effects = [Effect(boot(row, self._seed)) for row in self.cosines(versions, progress, what)]
        if self._task is None:
            return effects
        tasks = self.on_task(versions, progress, what)
        return [
            dataclasses.replace(effect, metric=own.metric, difference=own.difference)
            for effect, own in zip(effects, tasks, strict=True)
        ]

    def on_task(
        self, versions: Sequence[Exchanged], progress: Progress, what: str
    ) -> list[TaskEffect]:
        """Measure changed versions by the task, each alone; nothing where there is no task."""
        effects: list[TaskEffect] = []
        loaded, task = self._loaded, self._task
        if task is None or self._baseline is None:
            return effects
        for i, version in enumerate(versions):
            with intervene(loaded, attention=version) as router:
                outputs = task.outputs_of(
                    lambda *args, **options: router.checked(loaded.run, *args, **options),
                    task.batches(loaded),
                )
            change = task.change(self._baseline, outputs, seed=self._seed)
            difference = Estimated(change.difference, *(change.ci or ()))
            effects.append(TaskEffect(change.value, difference))
            progress(f"{what}, task", i + 1, len(versions))
        return effects

    def cosines(self, versions: Sequence[Exchanged], progress: Progress, what: str) -> Array:
        """Return the cosine of every line to the unchanged model's, (versions, lines)."""
        loaded, parts = self._loaded, list[list[Array]]([] for _ in versions)
        for b, (ids, mask) in enumerate(self.batches):
            prefix = Prefix(loaded.model, loaded.sites)
            with intervene(loaded) as router, prefix.recording(router):
                own = loaded.pooling.embed(router.checked(loaded.forward, ids, mask), mask)
            for i, version in enumerate(versions):
                with intervene(loaded, attention=version) as router:
                    with prefix.replaying(router, version.first_row):
                        hidden = loaded.forward(ids, mask)
                    router.check_calls()
                    changed = loaded.pooling.embed(hidden, mask)
                parts[i].append(cosine(changed, own).cpu().numpy().clip(-1.0, 1.0))
                progress(what, b * len(versions) + i + 1, len(self.batches) * len(versions))
        return np.array([np.concatenate(of_lines) for of_lines in parts])


def boot(values: Array, seed: int) -> Estimated:
    """Return the mean of values with its bootstrap interval, None where there is no value."""
    if not len(values):
        return Estimated(None)
    found = interval_of(mean_of("x"), {"x": values}, seed=seed)
    return Estimated(finite(found.value), *(found.ci or ()))
