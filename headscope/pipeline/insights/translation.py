"""What the scoreboard needs of an encoder-decoder model: its sources as text, its stacks pruned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.api import prune
from headscope.data.pairs import as_pairs
from headscope.data.plain import as_plain
from headscope.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.pipeline.progress import Progress
from headscope.pipeline.tasks import select
from headscope.results import PruneResult

#: Every so many-th source is read by the other sections; the task is measured on the others too.
_EVERY = 3
#: What each section calls its text.
_TEXTS = {
    **dict.fromkeys(("classify", "flow"), "corpus"),
    **dict.fromkeys(("rank", "spectrum", "depth", "linear", "symmetric"), "text"),
}

Settings = Mapping[str, Mapping[str, Any]]


def with_sources(settings: Settings, data: str | Path | None) -> dict[str, dict[str, Any]]:
    """Let sections that were given no text of their own read sources of the pairs.

    Parameters
    ----------
    settings : mapping
        Arguments by section.
    data : path or None
        The pairs.

    Raises
    ------
    InputError
        If there are none.
    """
    if data is None:
        raise InputError("The task seq2seq needs pairs of source and target as data.")
    sources = list(dict.fromkeys(as_pairs(data).first[::_EVERY]))
    of_pairs: dict[str, dict[str, Any]] = {
        name: {text: as_plain(sources) if text == "text" else sources}
        for name, text in _TEXTS.items()
    }
    return {name: {**of_pairs.get(name, {}), **settings.get(name, {})} for name in _TEXTS}


def prune_stacks(
    loaded: LoadedModel,
    data: str | Path | None,
    limit: int | None,
    seed: int,
    progress: Progress,
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
