"""``headscope shrink``: open, climb the ladder, write what was chosen."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from headscope.artefacts.saving import check_target
from headscope.core.errors import (
    ArtefactError,
    InputError,
    InterruptedRunError,
)
from headscope.core.serialise import SCHEMA
from headscope.models.certificate.validation import ValidationSummary
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.shrinking.bench import Bench
from headscope.shrinking.check import check
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.saving import save
from headscope.shrinking.serving import (
    installed_runtimes,
    lacks_vnni,
    need_runtimes,
)
from headscope.shrinking.text import read_all


def run(model: Model, options: ShrinkOptions) -> ShrinkResult:
    """Measure the whole model in every form; go on to smaller ones where a target asks for it."""
    asked = tuple(dict.fromkeys(options.runtimes or ()))
    need_runtimes(asked)
    if options.save is not None:
        check_target(options.save)
    texts = read_all(options)
    whole = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(whole, "shrink")
    if whole.encoder_decoder and options.task != "seq2seq":
        raise InputError(
            f"{whole.name} is an encoder-decoder model; shrink measures what it writes: choose the "
            "task seq2seq, with pairs of source and target."
        )
    validation = require_valid(whole, options.validate)
    task = texts.evaluation_task(whole)
    texts.rows(whole)  # refuses what does not fit before anything is measured
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(whole, task, texts, options, Path(folder))
        if options.check_folder is not None:
            return check(bench, options, lambda **found: _result(bench, validation, **found))
        # No graph holds decoding.
        usual = ("torch",) if whole.encoder_decoder else installed_runtimes()
        ladder = Ladder(bench, options, asked or usual)

        def result_so_far() -> ShrinkResult:
            return _result(
                bench,
                validation,
                models=tuple(ladder.models),
                refused=tuple(ladder.refused),
                chosen=ladder.chosen,
                reached=ladder.reached,
                stopped=ladder.stopped,
            )

        try:
            ladder.climb()
        except KeyboardInterrupt:
            if not ladder.models:
                raise
            ladder.stopped = "The run was interrupted; these were measured before."
            raise InterruptedRunError(result_so_far()) from None
        result = result_so_far()
        if options.save is not None and ladder.best is not None and ladder.reached:
            options.tell("saving", 0, 1)
            result = save(ladder.best, ladder.form, result, bench, options)
            ladder.forget()
        if options.searches and not ladder.reached:
            raise ArtefactError(ladder.stopped, result=result)
        return result


def _result(bench: Bench, validation: ValidationSummary, **found: object) -> ShrinkResult:
    options, texts, task = bench.texts.options, bench.texts, bench.task
    remarks = []
    if (why := bench.degenerate) is not None:
        remarks = [f"The whole model {why}, so no value here means anything."]
    if lacks_vnni():
        remarks.append(
            "This processor has no instructions for products of 8-bit numbers (VNNI): int8 gains "
            "less time here than on one that has them."
        )
    return ShrinkResult(
        schema=SCHEMA,
        provenance=provenance(
            bench.whole, command=options.command, seed=options.seed, data=task.data
        ),
        validation=validation,
        task=task.name,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        examples=task.n_examples,
        data=task.data.name,
        batch_size=options.batch_size,
        threads=torch.get_num_threads(),
        target=options.target,
        max_drop=options.max_drop,
        text=texts.names or (texts.training.name,),
        sentences=len(texts.training),
        dropped=texts.dropped,
        warnings=(*texts.warnings, *task.notes, *remarks),
        **found,  # type: ignore[arg-type]
    )
