"""How long a run will take: every step that is known to come, priced before it begins.

A step costs passes over the evaluation data, seconds that do not depend on them, or both. Passes
are priced by a short trial before anything else is done. Whatever was done is measured, and what is
left is priced anew by it: a kind of step that was done by its own time, others by the pace so far.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headscope.core.processes import current
from headscope.core.progress import SECONDS, STEPS, Progress
from headscope.data.batches import buckets
from headscope.data.token_rows import padded
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.pruning.options import PruneOptions, Repair
from headscope.pruning.speed import seconds_of_shape, shapes_of
from headscope.stats.confirm import ascending
from headscope.tasks.base import Task
from headscope.tasks.units import Units, units_of

#: Passes over the calibration data that a method or a repair is worth, a backward pass counted as
#: two.
_CALIBRATION_PASSES = {
    "fisher-joint": 9.0,
    "fisher": 3.0,
    "importance-token": 3.0,
    "importance-example": 3.0,
    "confidence": 1.0,
    "fisher-relinearised": 55.0,
    "fisher-mean": 58.0,
    "surgeon": 4.0,  # The first look; sets of more units ask for the others
    "gates": 60.0,
    "topk": 60.0,
    "repair none": 0.0,
    "repair scale": 16.0,
    "repair mean": 17.0,
    "repair refit": 50.0,
    "repair surgeon": 3.0,
}
_CLASSIFIED = 60_000  # Tokens that finding roles on the built-in sample is worth.
#: Writing a folder and opening it, in seconds, and parameters for each second more.
_SAVED, _PARAMETERS = 2.0, 40e6
#: How much longer it takes to write a graph and open it than to trace the model, and to make it
#: small besides.
_EXPORTED, _QUANTIZED = 7.0, 2.0
_CARD = 5.0  # Timing the one input of a card, in seconds.
_RECENT = 5  # Steps of a kind whose mean time is that of the next one.
#: What is said of a step while it runs, where its kind is no name of a method, repair or option.
_DOING = {
    "measured": "measuring a model",
    "compared": "comparing ways to prune",
    "roles": "finding the roles of heads",
}


class Cost(NamedTuple):
    """What one step of a kind takes: passes over the evaluation data, and seconds besides."""

    passes: float = 0.0
    seconds: float = 0.0


class Steps:
    """Tells how many seconds a run has taken and will take, from the steps that are left.

    ``progress`` is told (:data:`~headscope.core.progress.SECONDS`, so far, in all) after every
    step; in all is more than so far until :meth:`finish`. Before that it is told which step of how
    many comes (:data:`~headscope.core.progress.STEPS`).
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._clock = progress, clock
        self._start = self._mark = clock()
        #: What each kind of step costs, by kind.
        self.costs: dict[str, Cost] = {}
        self._parts: list[tuple[str, Counter[str]]] = []
        self._took: dict[str, list[float]] = {}
        self._done = 0  # Steps that have ended
        #: Passes that were timed, and their seconds; the trial counts as one.
        self._passes, self._seconds = 0.0, 0.0
        #: A step that says itself how far it has come: its kind and share.
        self._within: tuple[str, float] | None = None

    def plan(
        self,
        costs: Mapping[str, Cost],
        parts: Sequence[tuple[str, Counter[str]]],
        pass_seconds: float,
    ) -> None:
        """Say what each kind of step costs, and how many come in each named part of the run.

        What is left of a part when the next one begins was not needed. ``pass_seconds`` are those
        of a pass over the evaluation data, as far as is known.
        """
        self.costs.update(costs)
        self._parts = list(parts)
        self._passes, self._seconds = 1.0, pass_seconds
        self._mark = self._clock()
        self._tell()

    def begin(self) -> None:
        """Go on to the next part."""
        del self._parts[:1]
        self._within, self._mark = None, self._clock()
        self._tell()

    def expect(self, steps: Mapping[str, float]) -> None:
        """Say anew what is left of this part."""
        if self._parts:
            self._parts[0] = (self._parts[0][0], Counter(steps))

    def doing(self, kind: str) -> None:
        """Say which kind of step begins."""
        self._say(_DOING.get(kind, kind), 0, 1)

    def did(self, kind: str) -> float:
        """Note the end of a step, which began where the last one ended; returns its seconds."""
        now = self._clock()
        seconds, self._mark, self._within = now - self._mark, now, None
        self._done += 1
        if kind in self.costs:
            passes, fixed = self.costs[kind]
            self._took.setdefault(kind, []).append(seconds)
            if passes > 0:
                self._passes += passes
                self._seconds += max(0.0, seconds - fixed)
            if self._parts and self._parts[0][1][kind] > 0:
                self._parts[0][1][kind] -= 1
        self._tell()
        return seconds

    def __call__(self, what: str, done: int, total: int) -> None:
        """Pass on what a long step tells of itself, and count it by its share."""
        self._say(what, done, total)
        if what in self.costs and 0 < done < total:
            self._within = (what, done / total)
            self._tell()

    def _say(self, what: str, done: int, total: int) -> None:
        name = self._parts[0][0] if self._parts else ""
        self._progress(f"{name}, {what}" if name else what, done, total)

    def left(self) -> float:
        """Return the seconds that are left, as far as is known now."""
        seconds = sum(
            count * self._price(kind) for _, steps in self._parts for kind, count in steps.items()
        )
        if self._within is not None and self._parts:
            kind, share = self._within
            if self._parts[0][1][kind] > 0:
                spent = self._clock() - self._mark
                seconds += spent / share * (1 - share) - self._price(kind)
        return max(seconds, 1.0)

    def finish(self) -> None:
        """Say that nothing is left."""
        so_far = round(self._clock() - self._start)
        self._progress(SECONDS, max(so_far, 1), max(so_far, 1))

    def _price(self, kind: str) -> float:
        if recent := self._took.get(kind, [])[-_RECENT:]:
            return sum(recent) / len(recent)
        cost = self.costs.get(kind, Cost())
        return cost.passes * self._seconds / max(self._passes, 1e-9) + cost.seconds

    def _tell(self) -> None:
        so_far = self._clock() - self._start
        if self._parts:
            rest = sum(steps.total() for _, steps in self._parts)
            self._progress(STEPS, self._done + 1, self._done + max(rest, 1))
            self._progress(SECONDS, int(so_far), max(math.ceil(so_far + self.left()), 2))


# --- what the steps cost --------------------------------------------------------------------------


def time_a_pass(loaded: LoadedModel, task: Task) -> float:
    """Return about how many seconds one pass over the rows of a task takes: three batches of it."""
    batches = list(buckets(task.rows))
    tried = [batches[i] for i in sorted({0, len(batches) // 2, len(batches) - 1})]
    tokens, seconds = 0, 0.0
    with gated(loaded) as run:
        for i, rows in enumerate([tried[0], *tried]):  # the first fills caches and is not counted
            start = time.monotonic()
            task.outputs_of(run, [padded(rows, loaded.pad_id, loaded.device)])
            if i > 0:
                seconds += time.monotonic() - start
                tokens += sum(map(len, rows))
    return seconds / tokens * sum(map(len, task.rows)) / current().size


def costs_of(
    options: PruneOptions,
    loaded: LoadedModel,
    evaluation: Task,
    calibration: Task | None,
    pass_seconds: float,
    traced: float,
    fidelity: Task | None = None,
) -> dict[str, Cost]:
    """Price every kind of step; tracing the model for an export took ``traced`` seconds."""
    tokens = sum(map(len, evaluation.rows))
    text = sum(map(len, fidelity.rows)) if fidelity is not None else 0
    share = sum(map(len, calibration.rows)) / tokens if calibration is not None else 0.0
    n_heads = sum(site.n_heads for site in loaded.sites)
    written = _SAVED + sum(p.numel() for p in loaded.network.parameters()) / _PARAMETERS
    small = options.quantize is not None
    exported = traced * (_EXPORTED + _QUANTIZED * small)
    calibration_passes = {
        **_CALIBRATION_PASSES,
        "ablation": n_heads,
        "ablation-greedy": n_heads**2 / 2,
        "kept alone": 1.0,
        "compared": 1.0,
    }
    costs = {name: Cost(passes * share) for name, passes in calibration_passes.items()} | {
        "measured": Cost(1.0),
        "alone": Cost(1.0),
        "fidelity": Cost(text / tokens),
        "roles": Cost(_CLASSIFIED / tokens),
        "try save": Cost(seconds=written),
        "save": Cost(2.0, written),
        "try save_dense": Cost(seconds=written),
        "save_dense": Cost(2.0, written),
        "try export": Cost(seconds=exported),
        "export": Cost(1.2 * (1 + small), exported),
        "graph of the full model": Cost(seconds=traced * _EXPORTED),
        "card": Cost(seconds=_CARD),
    }
    for i, (length, size) in enumerate(shapes_of(loaded)):
        one = pass_seconds / tokens * length * size
        graphs = 0 if options.export is None else 2 + small
        costs[f"shape {i}"] = Cost(seconds=seconds_of_shape(one, graphs))
    return costs


# --- what a run of prune will do ------------------------------------------------------------------


def units_at_once(units: Units, options: PruneOptions) -> int:
    """Return how many units go together: one of every layer, or each on its own."""
    return len(set(units.layers.tolist())) if options.even else 1


def counts_of(units: Units, options: PruneOptions) -> tuple[int, ...]:
    """List the units that the points of a curve remove: fractions of them, to the nearest."""
    step = units_at_once(units, options)
    each = len(units) // step
    return tuple(sorted({step * int(share * each + 0.5) for share in options.shares}))


def stacks_pruned_alone(loaded: LoadedModel, options: PruneOptions) -> tuple[str, ...]:
    """List the stacks that are pruned alone besides."""
    joint_only = options.manual or options.max_drop is not None
    return () if len(loaded.stacks) < 2 or joint_only else loaded.stacks


def planned_steps(
    options: PruneOptions, loaded: LoadedModel, *, classify_now: bool
) -> list[tuple[str, Counter[str]]]:
    """List the steps of a run: before it, together, each stack alone (by name), what is kept."""
    before = Counter({"roles": int(classify_now)})
    tried = (o for o, _ in options.folders if not (o == "export" and options.manual))
    before.update(f"try {option}" for option in tried)
    after = Counter(option for option, _ in options.folders)
    if options.keeps and len(options.candidates) > 1 and options.max_drop is None:
        after["compared"] = len(options.candidates)
    if options.benchmark:
        after.update(f"shape {i}" for i in range(len(shapes_of(loaded))))
        after["graph of the full model"] = int(options.export is not None)
    elif options.folders:
        after["card"] = 1
    alone = options.of_one_stack()
    stacks = stacks_pruned_alone(loaded, options)
    return [
        ("", before),
        ("", _running_steps(loaded, options)),
        *((stack, _running_steps(loaded.only(stack), alone)) for stack in stacks),
        ("", after),
    ]


def _running_steps(loaded: LoadedModel, options: PruneOptions) -> Counter[str]:
    """List what a run over curves, a search or named heads does, on a model or one stack of it."""
    units, steps = units_of(loaded), Counter({"measured": 1})  # the unpruned model
    n = len(units)
    steps.update(options.scored)
    inner = sum(0 < count < n for count in counts_of(units, options)) or 1
    if options.max_drop is not None:
        kinds = [kind for _, kind in options.candidates]
        if len(kinds) > 1:  # each is made once and compared; then one of them is tested
            steps.update(kind.step for kind in kinds)
            steps["compared"] += len(kinds)
        models = len(ascending(n // units_at_once(units, options)))
        steps.update({kinds[-1].step: models, "measured": models})
        steps["fidelity"] += models * (options.min_fidelity is not None)
        steps.update(after_search(options, kinds[-1]))
    else:
        models = 1 if options.manual else len(options.scored) * inner * (1 + options.even)
        for kind in options.repair_kinds:
            steps.update({kind.step: models, "measured": models})
        if "random" in options.method_names:
            steps["measured"] += inner * options.draws
        if options.keep_roles:
            steps["measured"] += options.draws
    if options.tables:
        steps.update({"alone": n, "kept alone": n})
    return steps


def after_search(options: PruneOptions, kind: Repair) -> Counter[str]:
    """List what comes once a search has its number: random heads, one more, even layers."""
    steps: Counter[str] = Counter()
    if "random" in options.method_names:
        steps["measured"] += options.draws
    if options.even:
        steps.update({"measured": 1, kind.step: 1})
    return steps
