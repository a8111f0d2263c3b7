"""``headscope shrink``: open, climb the ladder, write what was chosen."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from headscope.artefacts.saving import check_target
from headscope.core.errors import ArtefactError, InputError, InterruptedRunError
from headscope.core.serialise import SCHEMA
from headscope.models.run.head_outputs import gives_one_score
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.shrinking.bench import Bench
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.saving import measured_folder, save
from headscope.shrinking.serving import installed_runtimes, lacks_vnni, need_runtimes
from headscope.shrinking.text import read_all
from headscope.stats.confirm import need_examples


def run(model: Model, options: ShrinkOptions) -> ShrinkResult:
    """Measure the whole model in every form; go on to smaller ones where a target asks for it."""
    task_name = options.task
    seed = options.seed
    tell = options.tell
    folder = options.save
    target = options.target
    max_drop = options.max_drop
    minutes = options.minutes
    runtimes = tuple(dict.fromkeys(options.runtimes or ()))
    makes_smaller = options.searches and options.check_folder is None

    need_runtimes(runtimes)
    if folder is not None:
        check_target(folder)
    loaded = open_for_tasks(model, task=task_name, **options.loading)
    texts = read_all(
        task_name,
        options.data,
        options.text or (),
        options.other_text,
        limit=options.limit,
        seed=seed,
        trains=makes_smaller,
        distils=makes_smaller and minutes > 0,
        calibrates=options.check_folder is None,
        reads_pairs=gives_one_score(loaded),
    )
    need_tokenizer(loaded, "shrink")
    if loaded.encoder_decoder and task_name != "seq2seq":
        raise InputError(
            f"{loaded.name} is an encoder-decoder model; shrink measures what it writes: choose "
            "the task seq2seq, with pairs of source and target."
        )
    validation = require_valid(loaded, options.validate)
    task = texts.evaluation_task(loaded)
    texts.rows(loaded)  # refuses what does not fit before anything is measured
    if max_drop is not None:
        need_examples(task.n_examples, task.data.name)

    with tempfile.TemporaryDirectory() as room:
        bench = Bench(loaded, task, texts, Path(room), batch_size=options.batch_size, seed=seed)
        if max_drop is not None and (why := bench.degenerate) is not None:
            raise InputError(
                f"The whole model {why}: what a smaller one loses says nothing about it, so "
                "max_drop cannot be used; give speed, ms or mb, or data that the model tells apart."
            )

        def result(**measured: Any) -> ShrinkResult:
            remarks = []
            if (why := bench.degenerate) is not None:
                remarks = [f"The whole model {why}, so no value here means anything."]
            remarks += bench.doubts
            if lacks_vnni():
                remarks.append(
                    "This processor has no instructions for products of 8-bit numbers (VNNI): int8 "
                    "gains less time here than on one that has them."
                )
            return ShrinkResult(
                schema=SCHEMA,
                provenance=provenance(loaded, command=options.command, seed=seed, data=task.data),
                validation=validation,
                task=task.name,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                examples=task.n_examples,
                data=task.data.name,
                batch_size=options.batch_size,
                threads=torch.get_num_threads(),
                target=target,
                max_drop=max_drop,
                text=texts.names or (texts.training.name,) * bool(texts.training.name),
                sentences=len(texts.training),
                dropped=texts.dropped,
                warnings=(*texts.warnings, *task.notes, *remarks),
                **measured,
            )

        if options.check_folder is not None:
            checked = Path(options.check_folder)
            models = measured_folder(checked, bench)
            missed = []
            if not models[1].reaches(target):
                missed.append(f"{target} was asked for, and it has {models[1].extent}")
            if not models[1].keeps(max_drop):
                missed.append(
                    f"at most {max_drop:g} of {task.metric} may be lost, and "
                    f"{models[1].excess(task.metric, max_drop)}"
                )
            return result(
                models=models,
                chosen=1,
                reached=not missed,
                checked=str(checked),
                stopped=f"{'; '.join(missed)}." if missed else "",
            )
        # No graph holds decoding.
        usual = ("torch",) if loaded.encoder_decoder else installed_runtimes()
        ladder = Ladder(
            bench,
            runtimes or usual,
            target=target,
            max_drop=max_drop,
            minutes=minutes,
            save=None if folder is None else Path(folder),
            tell=tell,
        )

        def result_so_far() -> ShrinkResult:
            return result(
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
        final = result_so_far()
        if folder is not None and ladder.best is not None and ladder.reached:
            tell("saving", 0, 1)
            final = save(ladder.best, ladder.form, final, bench, Path(folder))
            ladder.forget()
        if options.searches and not ladder.reached:
            raise ArtefactError(ladder.stopped, result=final)
        return final
