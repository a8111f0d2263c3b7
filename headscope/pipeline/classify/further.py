"""What a run of classify adds to the labels where it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.norm_weighted import compare
from headscope.pipeline.classify.passes import Found, Run
from headscope.pipeline.classify.prefix_matching import Repeats
from headscope.pipeline.classify.stack_parts import Parts, found_in
from headscope.results import ClassifyResult, HeadResult
from headscope.session.progress import Progress
from headscope.tasks.making import check_two

if TYPE_CHECKING:
    from headscope.pipeline.classify.causes import CauseSource


def beside_pattern(
    result: ClassifyResult,
    loaded: LoadedModel,
    twin: LoadedModel | None,
    random: Sequence[Found] | None,
    run: Run,
    parts: Parts,
) -> ClassifyResult:
    """Measure the pattern itself too, and say which of its labels are left by norms."""
    by_pattern = dataclasses.replace(run, norm_weighted=False)

    def plain(model: LoadedModel, name: str) -> tuple[HeadResult, ...]:
        items = found_in(model, by_pattern, parts, name)
        return tuple(head for item in items for head in item.heads)

    control = None
    if twin is not None and random is not None:
        weighted = tuple(head for item in random for head in item.heads)
        control = plain(twin, "control by the pattern"), weighted
    found = compare(plain(loaded, "by the pattern"), result.heads, control)
    return replace(result, norms=found)


def with_prefix(
    result: ClassifyResult,
    loaded: LoadedModel,
    twin: LoadedModel | None,
    stacks: Sequence[str],
    seed: int,
) -> ClassifyResult:
    """Add the scores on repeated random tokens, of the stack that sentences run."""
    stack = "encoder" if loaded.encoder_decoder else loaded.stacks[0]
    repeats = Repeats.draw(loaded, seed) if stack in stacks else None
    if repeats is None:
        why = f"only the {stack} reads random tokens" if stack not in stacks else "too few tokens"
        return replace(result, untestable={**result.untestable, "prefix matching": why})
    view = loaded.only(stack)
    scores = repeats.scores(view)
    random = None if twin is None else repeats.scores(twin.only(stack))
    heads = (replace(head, prefix=scores.get(head.name)) for head in result.heads)
    return replace(result, heads=tuple(heads), prefix=repeats.described(view, random))


def open_removal(task: str, data: str | Path | None, limit: int, seed: int) -> CauseSource:
    """Read what the removal of heads is measured on."""
    # prune classifies with this module, so its parts cannot be imported before it is there.
    from headscope.pipeline.classify.causes import CauseSource

    check_two(limit)
    return CauseSource.read(task, data, limit, seed)


def with_causes(
    result: ClassifyResult, loaded: LoadedModel, source: CauseSource, progress: Progress
) -> ClassifyResult:
    """Remove every head alone and add what that does to the output."""
    from headscope.pipeline.classify.causes import find_causes

    found = find_causes(loaded, result.stacks, result.heads, source, progress)
    heads = (replace(head, cause=found.by_head.get(head.name)) for head in result.heads)
    return replace(result, heads=tuple(heads), causes=found.causes)
