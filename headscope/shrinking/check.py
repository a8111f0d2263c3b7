"""``headscope shrink MODEL --check FOLDER``: does a saved folder still hold what was promised?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.saved_config import MANIFEST
from headscope.models.load.loading import load
from headscope.shrinking.bench import Bench
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.saving import form_of
from headscope.shrinking.serving import TORCH, Files, need_runtimes
from headscope.shrinking.targets import keeps, reaches, shortfall


def check(
    bench: Bench, options: ShrinkOptions, result: Callable[..., ShrinkResult]
) -> ShrinkResult:
    """Measure a folder, in the form that it was saved for, against the whole model."""
    folder = Path(str(options.check_folder))
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; check takes one that shrink saved.")
    form = form_of(folder)
    need_runtimes([form.runtime])
    whole = bench.whole
    model = load(str(folder.resolve()), dtype=whole.dtype, task_head=whole.task_head)
    if (
        type(model.network).__name__ != type(whole.network).__name__
        and not (folder / MANIFEST).is_file()
    ):
        raise InputError(
            f"{folder} holds a {model.family} model and {whole.name} is a {whole.family}: give the "
            "model that the folder was made of."
        )
    files = Files(model, folder, [], written={form: folder / form.default_file})
    times = bench.times(model, files.served(form))
    models = (
        bench.measured(bench.files_of_whole, TORCH, times.of_whole()),
        bench.measured(files, form, times),
    )
    held = reaches(models[1], options) and keeps(models[1], options)
    return result(
        models=models,
        chosen=1,
        reached=held,
        checked=str(folder),
        stopped="" if held else shortfall(models[1], options, bench.task.metric),
    )
