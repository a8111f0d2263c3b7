"""How far a run has come: steps of about one pass over the evaluation data, counted in advance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from headscope.pipeline.progress import Progress
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repair
from headscope.pipeline.tasks import Task

#: Passes over the calibration data that a step of a run is worth, a backward pass counted as two.
#: Methods that are missing here run so long that they have a bar of their own, or take no pass.
_METHOD = {"fisher-joint": 9.0, "fisher": 3.0, "importance-token": 3.0, "importance-example": 3.0}
_REPAIR = {Repair.none: 0.0, Repair.scale: 16.0, Repair.mean: 17.0, Repair.refit: 50.0}


class Steps:
    """Counts steps down and tells a progress function, so that it can say when the run will end.

    Parameters
    ----------
    progress : callable
        Told ("all", passes done, passes in all).
    sizes : mapping of str to float
        For each kind of work, what one piece of it costs: passes over the evaluation data.
    total : float
        What all of it costs.

    Attributes
    ----------
    total : float
        As given.
    """

    def __init__(self, progress: Progress, sizes: Mapping[str, float], total: float) -> None:
        self._progress, self._sizes, self.total = progress, sizes, total
        self._done = 0.0

    def did(self, kind: str) -> None:
        """Note one piece of work; one that is not counted changes nothing."""
        self._done = min(self._done + self._sizes.get(kind, 0.0), self.total)
        self._progress("all", round(self._done), max(1, round(self.total)))

    def finish(self) -> None:
        """Fill the bar where fewer steps were needed than planned."""
        self._done = self.total
        self._progress("all", max(1, round(self.total)), max(1, round(self.total)))


def stages(progress: Progress, parts: Sequence[tuple[str, float]]) -> Iterator[Progress]:
    """Yield what each part of a run in several parts tells, so that all fill one bar.

    Parameters
    ----------
    progress : callable
        Told ("all", passes done, passes in all) of all parts together; what a part tells of single
        methods is told under the part's name.
    parts : sequence of (str, float)
        Name of each part, empty for the first, and what it costs.
    """
    whole = max(1, round(sum(cost for _, cost in parts)))
    before = 0.0
    for name, cost in parts:
        yield partial(_tell, progress, name, round(before), whole)
        before += cost


def _tell(
    progress: Progress, name: str, before: int, whole: int, what: str, done: int, total: int
) -> None:
    if what == "all":
        progress("all", min(before + done, whole), whole)
    else:
        progress(f"{name}, {what}" if name else what, done, total)


def plan(
    options: PruneOptions,
    evaluation: Task,
    calibration: Task | None,
    counts: tuple[int, ...],
    n_units: int,
    progress: Progress,
    *,
    most: int,
) -> Steps:
    """Add up what a run will do.

    ``counts`` are the units that the points of the curves remove, ``most`` is the largest number
    that a search for the right one may try.
    """
    share = len(calibration.rows) / len(evaluation.rows) if calibration is not None else 0.0
    sizes = {name: cost * share for name, cost in _METHOD.items()}
    sizes |= {kind.value: cost * share for kind, cost in _REPAIR.items()}
    sizes |= {"measured": 1.0, "alone": 1.0, "kept alone": share}
    inner = sum(0 < count < n_units for count in counts) or 1
    models = [1 + sizes[kind] for kind in options.repair_kinds]
    total = 0.0
    for name in options.method_names:
        total += inner * options.draws if name == "random" else sizes.get(name, 0.0)
    methods = sum(name != "random" for name in options.method_names)
    if options.max_drop is not None:
        total += _tried(models * methods, most) + max(models) * (1 + options.even)
    else:
        total += methods * inner * sum(models) * (1 + options.even)
    if options.manual:
        total += sum(models)
        total += options.draws if options.keep_roles else 0
    if options.tables:
        total += n_units * (1 + share)
    return Steps(progress, sizes, total)


def _tried(models: Sequence[float], most: int) -> float:
    """Cost of a search up to ``most``: many models of the first kind, a few of the others."""
    first, *others = sorted(models)
    return (most.bit_length() + 1) * first + 3 * sum(others)
