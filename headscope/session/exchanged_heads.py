"""Versions of a model in which heads attend by another formula: how little do its outputs change?

A *version* (:class:`~headscope.models.run.formulas.ExchangedHeads`) is what runs in place of the
model's attention: a formula for z, and the heads that follow it. :func:`open_for_exchange` opens a
model and its text for a command; :class:`Effects` runs versions and compares each with the
unchanged model: by the cosines of its embeddings, and by a task if one was asked for.

Runs are spread over threads by ``side_by_side``, which gives each thread a copy of the model: a
``..._runner`` below readies a copy and yields the function that is called there. Layers before the
first changed one are not run again: what they returned in an earlier run is played back. ``Replay``
does so for a single run, ``Rerun`` for every batch of a task.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from headscope.data.long_texts import left_out_notes
from headscope.data.token_rows import Padded
from headscope.data.unshared import lines_without_shared
from headscope.models.run.formulas import ExchangedHeads, HeadInputs
from headscope.models.run.intervene import Run, intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay, Rerun
from headscope.models.run.routing import Router, prepared
from headscope.models.run.side_by_side import side_by_side
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.options import EffectOptions
from headscope.session.pooled_states import bootstrapped_mean, cosines_of
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.session.validate import require_valid
from headscope.stats.effects import Effect, EffectTask
from headscope.stats.estimate import Estimate
from headscope.tasks.base import BatchOutputs, Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.positions import TOKEN_HEADS, one_position

#: Tokens of a batch, padding included. Larger batches would hold more padding, and matrix products
#: of so many tokens run at full speed already.
TOKENS_AT_ONCE = 400


@dataclass(frozen=True)
class Opened:
    """A model whose heads are to be exchanged, ready to be measured."""

    loaded: LoadedModel  # Certified; a view of the one stack that a text runs
    effects: Effects  # Measures its versions
    #: The fields that every result has: provenance, certificate, text, task and left-out stacks.
    common: dict[str, Any]


def open_for_exchange(model: Model, options: EffectOptions, command: str) -> Opened:
    """Open, check and certify a model for a command, and read its text."""
    # Read the text, without the lines that are also among the task's examples: a command may fit
    # a formula on the text, and no example may measure what was fitted on it.
    seed = options.seed
    limit = options.limit
    text = as_plain(options.text).first(limit)
    n_lines_before = text.n_sentences
    examples = None
    if options.task is not None:
        examples = read_examples(options.task, options.data, limit, seed)
        text = lines_without_shared(text, examples)
    measured_text = _spread_evenly(text, options.sentences)

    # Open the model, and certify the stack that a text runs.
    all_stacks = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(all_stacks, command)
    all_stacks.pooling.check()
    if not all_stacks.sites:  # the certificate fails, and its error says why
        require_valid(all_stacks, options.validate)
    loaded = text_stack(all_stacks, command)
    validation = require_valid(loaded, options.validate)

    # Measure the unchanged model, and describe the run.
    task = None
    if options.task is not None and examples is not None:
        task = make_task(options.task, examples, loaded, seed=seed, limit=limit)
    effects = Effects(loaded, measured_text, task, seed)
    common = {
        "schema": SCHEMA,
        "provenance": provenance(
            loaded,
            command=options.command,
            seed=seed,
            data=measured_text,
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
    return Opened(loaded, effects, common)


def _spread_evenly(text: Corpus, n_lines: int) -> Corpus:
    """Return ``n_lines`` lines of a text, at even distances: 2 of 6 are lines 0 and 3."""
    n_lines = min(n_lines, text.n_sentences)
    chosen = {i * text.n_sentences // n_lines for i in range(n_lines)}

    def read() -> Iterator[str]:
        return (line for i, line in enumerate(text.lines()) if i in chosen)

    return dataclasses.replace(text, n_sentences=n_lines, read=read)


def text_stack(loaded: LoadedModel, command: str) -> LoadedModel:
    """Return a view of the stack that reads a text: of an encoder-decoder model, its encoder.

    Its queries and keys are of one sequence, so that scores form a square matrix.
    """
    if loaded.encoder_decoder:
        loaded = loaded.only("encoder")
    if not any(site.n_heads for site in loaded.sites):
        raise UnsupportedModelError(
            f"{loaded.name} has no head that reads a text, so {command} has nothing to measure."
        )
    return loaded


#: The task's value of a version, and its difference from the unchanged model's.
TaskEffect = tuple[float, Estimate]


class Effects:
    """A model, and the lines and the task on which versions are compared with it."""

    def __init__(
        self, loaded: LoadedModel, text: Corpus, task: Task | None = None, seed: int = 0
    ) -> None:
        """Pad the lines, and measure the unchanged model by the task if there is one.

        ``text`` and ``task`` are what versions are compared on.
        """
        self._loaded = loaded
        self._task = task
        self._seed = seed

        # The lines, in batches of (token ids, attention mask), both (lines, pos).
        self.batches: list[tuple[Tensor, Tensor]] = []
        self.first_lines: list[int] = []  # The number of the first line of every batch
        self.lines = 0  # How many were read
        for _, lines in line_batches(loaded, text):
            for batch in buckets(list(lines), TOKENS_AT_ONCE):
                self.batches.append(loaded.pad(batch))
                self.first_lines.append(self.lines)
                self.lines += len(batch)
        self.skipped = text.n_sentences - self.lines  # Too long for the model
        check_measured(text, self.lines)

        # The unchanged model's outputs in the task, by example, and what results say of the task.
        self._baseline = None if task is None else task.outputs(loaded)
        self.task: EffectTask | None = None
        #: What makes values doubtful: of the text, and of the task
        self.warnings = left_out_notes(self.skipped, text.n_sentences, text.name, loaded.max_length)
        if task is not None and self._baseline is not None:
            self.task = EffectTask(
                name=task.name,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                data={"name": task.data.name, "sha256": task.data.sha256, "drawn": task.data.drawn},
                examples=task.n_examples,
                baseline=task.interval(self._baseline, seed=seed),
            )
            self.warnings += (*task.notes, *task.doubts(self._baseline))

    def observe(
        self, see: Callable[[int, HeadInputs, Tensor], None], loaded: LoadedModel | None = None
    ) -> None:
        """Run the unchanged model (or ``loaded``) on the lines, and show what its heads compute.

        ``see`` is called with the number of a batch, the q, k, v of a site (one layer's attention)
        and the z that they give, (lines, n_heads, pos, d_head): once for each batch and site, by
        several threads.
        """
        observed = self._loaded if loaded is None else loaded

        @contextmanager
        def batch_runner(model: LoadedModel) -> Iterator[Callable[[int], None]]:
            def run_batch(number: int) -> None:
                def attend(inputs: HeadInputs) -> Tensor:
                    z = stream_attention(
                        inputs.q,
                        inputs.k,
                        inputs.v,
                        mask=inputs.mask,
                        scale=inputs.scale,
                        softcap=inputs.softcap,
                    )
                    see(number, inputs, z)
                    return z

                ids, mask = self.batches[number]
                with intervene(model, attention=ExchangedHeads(attend)) as router:
                    router.run(partial(model.forward, ids, mask))

            with prepared(model.network):
                yield run_batch

        # Each batch runs as its result, None, is asked for.
        for _ in side_by_side(observed, range(len(self.batches)), batch_runner):
            pass

    def measure(
        self, versions: Sequence[ExchangedHeads], progress: Progress, step: str
    ) -> list[Effect]:
        """Measure versions of the model, each alone; ``step`` names them in the progress."""
        cosines = self.cosines(versions, progress, step)
        task_effects = self.on_task(versions, progress, step)
        return [
            self.effect(cosines_of_version, task_effect)
            for cosines_of_version, task_effect in zip(cosines, task_effects, strict=True)
        ]

    def effect(self, cosines: Array, on_task: TaskEffect | None) -> Effect:
        """Combine the results of :meth:`cosines` and :meth:`on_task` for one version."""
        effect = Effect(bootstrapped_mean(cosines, self._seed))
        if on_task is None:
            return effect
        value, difference = on_task
        return dataclasses.replace(effect, metric=value, difference=difference)

    def on_task(
        self, versions: Sequence[ExchangedHeads], progress: Progress, step: str
    ) -> list[TaskEffect | None]:
        """Measure versions by the task, each alone; None for each where there is no task."""
        loaded = self._loaded
        task = self._task
        if task is None or self._baseline is None:
            return [None] * len(versions)
        effects: dict[int, TaskEffect] = {}  # By the index of the version
        # A head with logits for every token computes them at one only while layers are recorded,
        # as nobody reads them then.
        select = one_position if loaded.task_head in TOKEN_HEADS else None
        rerun = Rerun(loaded, task.batches(loaded), select)

        @contextmanager
        def version_runner(
            model: LoadedModel,
        ) -> Iterator[Callable[[tuple[ExchangedHeads, Padded]], BatchOutputs]]:
            def run_version(version_and_batch: tuple[ExchangedHeads, Padded]) -> BatchOutputs:
                version, batch = version_and_batch
                with intervene(model, attention=version) as router:
                    # Runs the model, and checks that every site was called. mypy asks
                    # here for the arguments of ``model.run``, which only follow in the call.
                    run: Run = partial(router.checked, model.run)  # type: ignore[call-arg]
                    # ``again`` is ``run`` with the recorded layers played back in this copy.
                    return task.read(rerun.again(run, model), batch)

            with prepared(model.network):
                yield run_version

        # Versions that change the same first layer (``first_row``, its place among the model's)
        # share what comes before it.
        for row in sorted({version.first_row for version in versions}):
            rerun.start_at(row)
            indices = [i for i, version in enumerate(versions) if version.first_row == row]
            # All batches of one version, then those of the next: results come in the same order.
            runs = itertools.product([versions[i] for i in indices], rerun.batches)
            # ``alone``: a task whose batches have to be read one after the other has one thread.
            batch_outputs = side_by_side(loaded, runs, version_runner, alone=task.alone)
            with closing(batch_outputs):
                for i in indices:
                    outputs = task.gathered(itertools.islice(batch_outputs, len(rerun.batches)))
                    change = task.change(self._baseline, outputs, seed=self._seed)
                    effects[i] = (change.value, change.estimate())
                    release_memory()  # freed gaps between blocks in use grow with every version
                    progress(f"{step}, task", len(effects), len(versions))
        return [effects[i] for i in range(len(versions))]

    def cosines(self, versions: Sequence[ExchangedHeads], progress: Progress, step: str) -> Array:
        """Return the cosine of every line to the unchanged model's, (versions, lines)."""
        batches = self.batches

        @contextmanager
        def version_runner(model: LoadedModel) -> Iterator[Callable[[_EmbeddingRun], Array]]:
            with prepared(model.network):
                yield _Embedder(model, batches, versions).cosines

        # Batch by batch, so that the versions of a batch share its unchanged run.
        pairs = itertools.product(range(len(batches)), range(len(versions)))
        runs = [_EmbeddingRun(batch, version) for batch, version in pairs]
        by_version = list[list[Array]]([] for _ in versions)
        results = side_by_side(self._loaded, runs, version_runner)
        for n_done, (run, cosines) in enumerate(zip(runs, results, strict=True), start=1):
            by_version[run.version].append(cosines)
            progress(step, n_done, len(runs))
        return np.array([np.concatenate(cosines_of_batches) for cosines_of_batches in by_version])


class _EmbeddingRun(NamedTuple):
    """One version on one batch, by their indices."""

    batch: int
    version: int


class _Unchanged(NamedTuple):
    """The unchanged model's run on one batch."""

    batch: int  # Its index
    layers: Recorded  # What its layers returned
    embeddings: Tensor  # (lines, d_model)


class _Embedder:
    """Runs versions of one model on batches, and compares their embeddings with the unchanged ones.

    A batch's layers before a change are not run again: what they returned is played back.
    """

    def __init__(
        self,
        model: LoadedModel,
        batches: Sequence[tuple[Tensor, Tensor]],
        versions: Sequence[ExchangedHeads],
    ) -> None:
        self._model = model
        self._batches = batches
        self._versions = versions
        self._replay = Replay(model)
        self._unchanged: _Unchanged | None = None  # Of the batch that was run last

    def cosines(self, run: _EmbeddingRun) -> Array:
        """Return the cosine of every line of a batch in one version."""
        unchanged = self._unchanged
        if unchanged is None or unchanged.batch != run.batch:
            unchanged = self._run_unchanged(run.batch)
            self._unchanged = unchanged
        version = self._versions[run.version]
        playing = self._replay.playing(unchanged.layers, version.first_row)
        with intervene(self._model, attention=version) as router, playing:
            changed = self._embed(router, run.batch)
        return cosines_of(changed, unchanged.embeddings)

    def _run_unchanged(self, batch: int) -> _Unchanged:
        """Run the model as it is on a batch, and record its layers."""
        with intervene(self._model) as router, self._replay.recording() as layers:
            embeddings = self._embed(router, batch)
        return _Unchanged(batch, layers, embeddings)

    def _embed(self, router: Router, batch: int) -> Tensor:
        """Return the embeddings of a batch, (lines, d_model); ``router`` checks that all is run."""
        ids, mask = self._batches[batch]
        states = router.checked(self._model.forward, ids, mask)
        return self._model.pooling.embed(states, mask)
