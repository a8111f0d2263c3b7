"""Run a model with the formula of some heads exchanged, and say how far its output moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headscope.data.plain import PlainText, as_plain
from headscope.errors import UnsupportedModelError
from headscope.measures.accumulator import Array
from headscope.measures.metrics import mean_of
from headscope.measures.paired_change import interval_of
from headscope.measures.pooling import cosine
from headscope.measures.statistics import finite
from headscope.models.exchanged import Exchanged
from headscope.models.loaded import LoadedModel
from headscope.models.prefix import Prefix
from headscope.models.routing import Router, routed
from headscope.pipeline.opening import Model, need_tokenizer, open_for_tasks
from headscope.pipeline.progress import Progress
from headscope.pipeline.provenance import provenance
from headscope.pipeline.tasks import Task, make_task, read_examples
from headscope.pipeline.texts import check_measured, line_batches
from headscope.pipeline.validate import require_valid
from headscope.results import SCHEMA
from headscope.results.effects import Effect, EffectTask
from headscope.results.estimated import Estimated
from headscope.session.options import EffectOptions

__all__ = ["Effects", "Opened", "TaskEffect", "boot", "readable", "spread_lines", "task_of"]


@dataclass(frozen=True)
class Opened:
    """A model whose heads are to be exchanged, and what it is measured on.

    Attributes
    ----------
    loaded : LoadedModel
        Certified, and seen in the one stack that a text runs.
    effects : Effects
        Of its changed versions.
    common : dict
        The fields that every result has: provenance, certificate, text, task and left-out stacks.
    """

    loaded: LoadedModel
    effects: Effects
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

    Raises
    ------
    UnsupportedModelError
        If there are no such heads.
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
    """A model and the lines that its changed versions are compared with it on.

    Parameters
    ----------
    loaded : LoadedModel
        The unchanged model, seen in one stack.
    text : PlainText
        Its lines are held in memory as padded token ids.
    task : Task, optional
        What changed versions are measured by beside the cosine.
    seed : int
        Of the bootstraps.

    Attributes
    ----------
    batches : list of (input_ids, attention_mask)
        The lines, padded; each (batch, pos).
    lines, skipped : int
        Measured; longer than the model's limit.
    task : EffectTask or None
        What is said of the task.
    """

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
        self.task = None if task is None else self._describe(task)

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
        """Measure changed versions of the model, each alone.

        Parameters
        ----------
        versions : sequence of Exchanged
            What is changed in each.
        progress : callable
            Told ("what", done, total).
        what : str
            What progress is told.
        """
        cosines = self.cosines(versions, progress, what)
        found = [Effect(boot(row, self._seed)) for row in cosines]
        tasks = self.on_task(versions, progress, what)
        pairs = zip(found, tasks, strict=True) if tasks else ()
        return [
            dataclasses.replace(effect, metric=own.metric, difference=own.difference)
            for effect, own in pairs
        ] or found

    def on_task(
        self, versions: Sequence[Exchanged], progress: Progress, what: str
    ) -> list[TaskEffect]:
        """Measure changed versions by the task, each alone; nothing where there is no task."""
        found = []
        if self._task is not None:
            for i, version in enumerate(versions):
                found.append(self._on_task(self._task, version))
                progress(f"{what}, task", i + 1, len(versions))
        return found

    def cosines(self, versions: Sequence[Exchanged], progress: Progress, what: str) -> Array:
        """Return the cosine of every line to the unchanged model's, (versions, lines)."""
        found: list[list[Array]] = [[] for _ in versions]
        for b, (ids, mask) in enumerate(self.batches):
            prefix = Prefix(self._loaded.model, self._loaded.sites)
            own = self._embed(ids, mask, prefix, None)
            for i, version in enumerate(versions):
                changed = self._embed(ids, mask, prefix, version)
                found[i].append(cosine(changed, own).cpu().numpy().clip(-1.0, 1.0))
                progress(what, b * len(versions) + i + 1, len(self.batches) * len(versions))
        return np.array([np.concatenate(parts) for parts in found])

    def _embed(
        self, ids: Tensor, mask: Tensor, prefix: Prefix, version: Exchanged | None
    ) -> Tensor:
        """Return embeddings (batch, d) of one batch; the unchanged model's are recorded on."""
        loaded = self._loaded
        router = Router(loaded.sites, others=loaded.others, mechanism=version)
        with routed(loaded.model, router):
            router.begin()
            around = (
                prefix.recording(router)
                if version is None
                else prefix.replaying(router, version.first_row)
            )
            with around:
                hidden = loaded.forward(ids, mask)
            router.check_calls()
        return loaded.pooling.embed(hidden, mask)

    def _on_task(self, task: Task, version: Exchanged) -> TaskEffect:
        loaded = self._loaded
        router = Router(loaded.sites, others=loaded.others, mechanism=version)
        with routed(loaded.network, router):
            outputs = task.outputs_of(
                lambda *args, **options: router.checked(loaded.run, *args, **options),
                task.batches(loaded),
            )
        assert self._baseline is not None
        found = task.change(self._baseline, outputs, seed=self._seed)
        return TaskEffect(found.value, Estimated(found.difference, *(found.ci or ())))

    def _describe(self, task: Task) -> EffectTask:
        assert self._baseline is not None
        found = task.interval(self._baseline, seed=self._seed)
        return EffectTask(
            name=task.name,
            metric=task.metric,
            higher_is_better=task.higher_is_better,
            data={"name": task.data.name, "sha256": task.data.sha256},
            examples=task.n_examples,
            baseline=Estimated(found.value, *(found.ci or ())),
        )


def boot(values: Array, seed: int) -> Estimated:
    """Return the mean of values with its bootstrap interval, None where there is no value."""
    if not len(values):
        return Estimated(None)
    found = interval_of(mean_of("x"), {"x": values}, seed=seed)
    return Estimated(finite(found.value), *(found.ci or ()))
