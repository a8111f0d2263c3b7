"""Run a model with its attention replaced, and measure how little its outputs change.

:meth:`Opened.of` opens a model and its text for a command; :class:`Effects` measures changed
versions of the model on that text: the cosine of every line's embedding to the unchanged model's,
and, if there is a task, its metric. :class:`PooledStates` has the cosines alone, for batches that
the caller has made.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from headscope.attention import stream_attention
from headscope.core.accumulator import Array
from headscope.core.errors import UnsupportedModelError
from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.core.serialise import SCHEMA
from headscope.data.batches import buckets
from headscope.data.corpus import Corpus, as_plain
from headscope.data.examples import lines_without_shared
from headscope.data.token_rows import Padded
from headscope.models.run.formulas import ExchangedHeads, Factors, HeadInputs
from headscope.models.run.intervene import Run, intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.models.run.replay import Recorded, Replay, Rerun
from headscope.models.run.routing import Mechanism, prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.options import EffectOptions
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.session.validate import require_valid
from headscope.stats.effects import Effect, EffectTask
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import mean_of
from headscope.stats.paired_change import interval_of
from headscope.tasks.base import BatchOutputs, Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tokens of a batch of lines, padding included: enough for matrix products to run at full speed,
#: and few, since every batch is run once for every version.
BATCH_TOKENS = 400


class PooledStates:
    """A model's embeddings of padded batches, to compare a changed model's with.

    The mean cosine is the fidelity of the change. ``batches`` are token ids and their masks.
    """

    def __init__(self, loaded: LoadedModel, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._loaded = loaded
        self._batches = batches
        self._original = self._embeddings()

    def cosines(
        self, attention: Mechanism | None = None, *, scores: Factors | None = None
    ) -> list[Array]:
        """Return the cosine of every example to itself unchanged, by batch.

        What is changed: every site attends by ``attention``, or its ``scores`` are replaced.
        """
        changed = self._embeddings(attention, scores)
        return [
            _cosines(embeddings, original)
            for embeddings, original in zip(changed, self._original, strict=True)
        ]

    def _embeddings(
        self, attention: Mechanism | None = None, scores: Factors | None = None
    ) -> list[Tensor]:
        loaded = self._loaded
        with intervene(loaded, attention=attention, scores=scores) as router:
            return [
                loaded.pooling.embed(router.checked(loaded.forward, ids, mask), mask)
                for ids, mask in self._batches
            ]


def _cosines(embeddings: Tensor, original: Tensor) -> Array:
    """Return the cosine of every row of two batches of embeddings."""
    return cosine(embeddings, original).cpu().numpy().clip(-1.0, 1.0)


@dataclass(frozen=True)
class Opened:
    """A model whose heads are to be exchanged, and what it is measured on."""

    loaded: LoadedModel  # Certified; a view of the one stack that a text runs
    effects: Effects  # Measures its changed versions
    #: The first fields of the command's result: provenance, certificate, text, task and stacks that
    #: are left out.
    common: dict[str, Any]

    @classmethod
    def of(cls, model: Model, options: EffectOptions, name: str) -> Opened:
        """Open, check and certify a model, and read its text; ``name`` is the command."""
        # Read the text, without the lines that the task is measured on.
        seed = options.seed
        limit = options.limit
        text = as_plain(options.text).first(limit)
        n_lines_before = text.n_sentences
        examples = None
        if options.task is not None:
            examples = read_examples(options.task, options.data, limit, seed)
            text = lines_without_shared(text, examples)
        chosen_lines = _spread_evenly(text, options.sentences)

        # Open the model, and certify the one stack that a text runs.
        all_stacks = open_for_tasks(model, task=options.task, **options.loading)
        need_tokenizer(all_stacks, name)
        all_stacks.pooling.check()
        if not all_stacks.sites:  # the certificate says why
            require_valid(all_stacks, options.validate)
        loaded = text_stack(all_stacks, name)
        validation = require_valid(loaded, options.validate)

        # Measure the unchanged model.
        task = None
        if options.task is not None and examples is not None:
            task = make_task(options.task, examples, loaded, seed=seed, limit=limit)
        effects = Effects(loaded, chosen_lines, task, seed)

        # What the result begins with.
        common = {
            "schema": SCHEMA,
            "provenance": provenance(
                loaded,
                command=options.command,
                seed=seed,
                data=chosen_lines,
                warnings=effects.warnings,
            ),
            "validation": validation,
            "left_out": tuple(stack for stack in all_stacks.stacks if stack not in loaded.stacks),
            "text": {
                "name": text.name,
                "sha256": text.sha256,
                "lines": effects.lines,
                "skipped": effects.skipped,
                "tokens": sum(int(mask.sum()) for _, mask in effects.batches),
                "dropped": n_lines_before - text.n_sentences,
            },
            "task": effects.task,
        }
        return cls(loaded, effects, common)


def _spread_evenly(text: Corpus, n_lines: int) -> Corpus:
    """Return so many lines of a text, at even distances; all if it has no more."""
    n_lines = min(n_lines, text.n_sentences)
    chosen = {i * text.n_sentences // n_lines for i in range(n_lines)}

    def read() -> Iterator[str]:
        return (line for i, line in enumerate(text.lines()) if i in chosen)

    return dataclasses.replace(text, n_sentences=n_lines, read=read)


def text_stack(loaded: LoadedModel, command: str) -> LoadedModel:
    """Return the view of a model that has the one stack which a text alone runs.

    In an encoder-decoder model that is the encoder.
    """
    if loaded.encoder_decoder:
        loaded = loaded.only("encoder")
    if not any(site.n_heads for site in loaded.sites):
        raise UnsupportedModelError(
            f"{loaded.name} has no head that reads a text, so {command} has nothing to measure."
        )
    return loaded


#: The task's value of a changed model, and its difference to the unchanged one's.
TaskEffect = tuple[float, Estimate]


class Effects:
    """A model, and the lines on which changed versions are compared with it.

    A *version* is the attention that takes the place of the model's own in some or all heads.
    """

    def __init__(
        self, loaded: LoadedModel, text: Corpus, task: Task | None = None, seed: int = 0
    ) -> None:
        """Pad the lines, and measure the unchanged model by the task if there is one."""
        self._loaded = loaded
        self._task = task
        self._seed = seed
        self.batches: list[tuple[Tensor, Tensor]] = []  # Token ids and mask, (lines, pos)
        for _, lines in line_batches(loaded, text):
            self.batches += map(loaded.pad, buckets(list(lines), BATCH_TOKENS))
        batch_sizes = [len(ids) for ids, _ in self.batches]
        self.lines = sum(batch_sizes)
        #: The number of the first line of every batch
        self.first = np.cumsum([0, *batch_sizes[:-1]]).tolist()
        self.skipped = text.n_sentences - self.lines
        check_measured(text, self.lines)

        self._baseline = None if task is None else task.outputs(loaded)
        self.task: EffectTask | None = None
        self.warnings: tuple[str, ...] = ()  # What makes values of the task doubtful
        if task is not None and self._baseline is not None:
            self.task = EffectTask(
                name=task.name,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                data={"name": task.data.name, "sha256": task.data.sha256, "drawn": task.data.drawn},
                examples=task.n_examples,
                baseline=task.interval(self._baseline, seed=seed),
            )
            self.warnings = (*task.notes, *task.doubts(self._baseline))

    def observe(
        self, see: Callable[[int, HeadInputs, Tensor], None], loaded: LoadedModel | None = None
    ) -> None:
        """Run the unchanged model, or another one, and show what its heads compute.

        ``see`` is called once for each batch and site, maybe by several threads, with the number of
        the batch, what the heads attend with, and their z (batch, heads, pos, d_head).
        """

        @contextmanager
        def reader(model: LoadedModel) -> Iterator[Callable[[int], None]]:
            def read(number: int) -> None:
                def attend(inputs: HeadInputs) -> Tensor:
                    qkv = (inputs.q, inputs.k, inputs.v)
                    z = stream_attention(*qkv, mask=inputs.mask, scale=inputs.scale)
                    see(number, inputs, z)
                    return z

                with intervene(model, attention=ExchangedHeads(attend)) as router:
                    router.run(partial(model.forward, *self.batches[number]))

            with prepared(model.network):
                yield read

        for _ in side_by_side(loaded or self._loaded, range(len(self.batches)), reader):
            pass  # ``see`` has taken what it needs

    def measure(
        self, versions: Sequence[ExchangedHeads], progress: Progress, step: str
    ) -> list[Effect]:
        """Measure changed versions of the model, each alone; progress is told under ``step``."""
        cosines = self.cosines(versions, progress, step)
        task_effects = self.on_task(versions, progress, step)
        return [
            self.effect(cosines_of_version, task_effect)
            for cosines_of_version, task_effect in zip(cosines, task_effects, strict=True)
        ]

    def effect(self, cosines: Array, on_task: TaskEffect | None) -> Effect:
        """Combine the results of :meth:`cosines` and :meth:`on_task` for one version."""
        effect = Effect(mean_with_interval(cosines, self._seed))
        if on_task is None:
            return effect
        value, difference = on_task
        return dataclasses.replace(effect, metric=value, difference=difference)

    def on_task(
        self, versions: Sequence[ExchangedHeads], progress: Progress, step: str
    ) -> list[TaskEffect | None]:
        """Measure changed versions by the task, each alone; None where there is no task."""
        loaded = self._loaded
        task = self._task
        if task is None or self._baseline is None:
            return [None] * len(versions)
        select = one_position if loaded.task_head in TOKEN_HEADS else None
        rerun = Rerun(loaded, task.batches(loaded), select)

        @contextmanager
        def reader(model: LoadedModel) -> Iterator[Callable[[tuple[int, Padded]], BatchOutputs]]:
            """Ready one thread's copy of the model; yield what runs a version on a batch."""

            def read(version_and_batch: tuple[int, Padded]) -> BatchOutputs:
                i, batch = version_and_batch
                with intervene(model, attention=versions[i]) as router:
                    run: Run = partial(router.checked, model.run)  # type: ignore[call-arg]
                    return task.read(rerun.again(run, model), batch)

            with prepared(model.network):
                yield read

        # Versions that change the same first layer share what is computed before it.
        effects: dict[int, TaskEffect] = {}
        for row in sorted({version.first_row for version in versions}):
            rerun.start_at(row)
            changed_from_row = [i for i, version in enumerate(versions) if version.first_row == row]
            runs = itertools.product(changed_from_row, rerun.batches)
            outputs = side_by_side(loaded, runs, reader, alone=task.alone)
            with closing(outputs):
                for i in changed_from_row:
                    outputs_of_version = itertools.islice(outputs, len(rerun.batches))
                    gathered = task.gathered(outputs_of_version)
                    change = task.change(self._baseline, gathered, seed=self._seed)
                    effects[i] = change.value, change.estimate()
                    release_memory()  # or freed memory grows with every version
                    progress(f"{step}, task", len(effects), len(versions))
        return [effects[i] for i in range(len(versions))]

    def cosines(self, versions: Sequence[ExchangedHeads], progress: Progress, step: str) -> Array:
        """Return the cosine of every line to the unchanged model's, (versions, lines).

        The unchanged model runs once on a batch and is recorded; a version then only computes the
        layers from its first changed one on.
        """
        batches = self.batches

        @contextmanager
        def reader(model: LoadedModel) -> Iterator[Callable[[tuple[int, int]], Array]]:
            """Ready one thread's copy of the model; yield what runs a version on a batch."""
            replay = Replay(model)
            embed = model.pooling.embed
            # The recorded batch, what the unchanged layers returned for it, and its embeddings
            recorded_batch = -1
            recorded = Recorded()
            unchanged = Tensor()

            def read(batch_and_version: tuple[int, int]) -> Array:
                nonlocal recorded_batch, recorded, unchanged
                number, i = batch_and_version
                version = versions[i]
                ids, mask = batches[number]
                if number != recorded_batch:
                    with intervene(model) as router, replay.recording() as recorded:
                        unchanged = embed(router.checked(model.forward, ids, mask), mask)
                    recorded_batch = number
                playing = replay.playing(recorded, version.first_row)
                with intervene(model, attention=version) as router, playing:
                    changed = embed(router.checked(model.forward, ids, mask), mask)
                return _cosines(changed, unchanged)

            with prepared(model.network):
                yield read

        runs = list(itertools.product(range(len(batches)), range(len(versions))))
        by_version = list[list[Array]]([] for _ in versions)
        results = side_by_side(self._loaded, runs, reader)
        for n_done, ((_, i), cosines) in enumerate(zip(runs, results, strict=True), start=1):
            by_version[i].append(cosines)
            progress(step, n_done, len(runs))
        return np.array([np.concatenate(cosines_of_batches) for cosines_of_batches in by_version])


def mean_with_interval(values: Array, seed: int) -> Estimate:
    """Return the mean of values with its bootstrap interval; None if there is no value."""
    if not len(values):
        return Estimate(None)
    mean = interval_of(mean_of("x"), {"x": values}, seed=seed)
    return mean if np.isfinite(float(mean)) else Estimate(None)
