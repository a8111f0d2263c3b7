"""Heads ranked, removed and repaired, and what is left measured on the evaluation data."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headscope.analyses.classify.result import HeadResult
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.surgery.copies import remove_heads
from headscope.models.surgery.output_maps import make_permanent, replaced_outputs
from headscope.pruning.methods import rank
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Context, Ranking, Repaired, scale_gates
from headscope.pruning.result import Baseline, Draw, Point
from headscope.pruning.surgeon import surgeon_of
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change
from headscope.tasks.base import Task
from headscope.tasks.units import Head, Units, units_of

Name = tuple[Any, ...]  # A head's original name: layer and head, perhaps the stack.


class Pruner:
    """Ranks heads, removes and repairs them, and measures what is left against the full model.

    Heads are removed for real before a model is measured, so a point of a curve is the value of
    the very model that is saved; each set of removed heads is run only once. ``roles`` go by the
    heads' positions in the loaded model, ``shares`` are the fractions of heads that points of
    curves remove.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        evaluation: Task,
        calibration: Task | None,
        roles: Mapping[Head, HeadResult],
        *,
        shares: Sequence[float],
        draws: int,
        labels: bool,
        seed: int,
        tell: Progress,
    ) -> None:
        # Every model that is cut remembers where it came from, by a checksum of all weights.
        self.loaded = dataclasses.replace(loaded, origin=origin_of(loaded))
        self.evaluation = evaluation
        self.units = units_of(loaded)
        self.tell = tell
        n = len(self.units)
        self.counts = sorted({int(share * n + 0.5) for share in shares})  # units that points remove
        self.context = Context.of_task(
            loaded,
            calibration or evaluation,
            roles=roles,
            use_labels=labels,
            largest=max((count for count in self.counts if 0 < count < n), default=n),
            seed=seed,
        )
        # random sets of heads at each count
        self.draws = draws
        self.seed = seed
        #: The unpruned model's outputs, example by example.
        self.full: Outputs = evaluation.outputs(self.loaded, all_metrics=True)
        self.examples: Array | None = None  # those that are measured on; None for all
        self._drawn = evaluation.resampled(self.full, seed=seed)
        #: By model: itself (maps are told apart by identity, so they stay here), whether texts were
        #: written, and what it puts out.
        self._outputs: dict[tuple[Any, ...], tuple[Repaired, bool, Outputs]] = {}
        #: A point's value in every bootstrap resample, by id(point).
        self.resamples: dict[int, Array] = {}

    def on(self, examples: Array) -> Pruner:
        """Return the same that measures on some of the examples only."""
        part = copy.copy(self)
        part.examples = examples
        part.resamples = {}
        part._drawn = self.evaluation.resampled(at(self.full, examples), seed=self.seed)
        return part

    # --- ranking and repairing ----------------------------------------------------------------

    def rankings(self, methods: Sequence[str], normalise: bool | None) -> dict[str, Ranking]:
        """Rank the units by every method, before anything is measured.

        So a method that cannot be run is refused early.
        """
        rankings = {}
        for i, name in enumerate(methods):

            def tell(_: str, done: int, total: int, i: int = i) -> None:
                share = round(1000 * (i + done / max(total, 1)))
                self.tell("choosing heads", share, 1000 * len(methods))

            tell(name, 0, 1)
            context = dataclasses.replace(self.context, progress=tell)
            rankings[name] = rank(name, context, normalise=normalise)
        return rankings

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left."""
        if kind is Repair.none or not 0 < len(removed) < len(self.units):
            return Repaired.bare(self.units, removed)
        if kind is Repair.scale:
            gates = scale_gates(self.context, removed)
            return Repaired(tuple(removed), self.units.expand(gates).float())
        return surgeon_of(self.context).refit(removed)

    # --- measuring ----------------------------------------------------------------------------

    def baseline(self) -> Baseline:
        """Describe the unpruned model."""
        full = at(self.full, self.examples)
        value = self.evaluation.interval(full, seed=self.seed)
        return Baseline(value, self.evaluation.metrics(full))

    def point(
        self,
        made: Repaired,
        *,
        all_metrics: bool = True,
        run: Callable[[LoadedModel], Outputs] | None = None,
    ) -> Point:
        """Measure one pruned model; without ``all_metrics`` those of written texts are left out.

        ``run`` runs it over the evaluation data, where the caller has a faster way.
        """
        outputs = self._run(made, all_metrics, run)
        itself = outputs is self.full  # differs by nothing, whatever the examples
        outputs = at(outputs, self.examples)
        full = at(self.full, self.examples)
        task = self.evaluation
        seed = self.seed
        roles = self.context.roles
        values = task.resampled(outputs, seed=seed)
        change = task.change(full, outputs, seed=seed, drawn=self._drawn, values=values)
        left = Counter({name: 0 for role in roles.values() for name in role.roles})
        removed = self.units.heads(made.removed)
        for head in roles.keys() - set(removed):
            left.update(roles[head].roles)
        point = Point(
            fraction=len(removed) / self.n_heads,
            heads_removed=original_names(self.loaded, removed),
            value=task.interval(outputs, seed=seed, values=values),
            difference=Estimate(0.0) if itself else change.estimate(),
            p_value=1.0 if itself else change.p_value,
            metrics=task.metrics(outputs),
            roles_left=dict(sorted(left.items())) if roles else None,
            changed=task.changed(outputs),
        )
        self.resamples[id(point)] = values
        return point

    def random_point(self, count: int) -> Point:
        """Measure the model without ``count`` units, drawn at random several times.

        The mean, the extremes and the standard deviation over draws.
        """
        if count in (0, len(self.units)):
            return self.point(Repaired.bare(self.units, range(count)))
        draws = []
        for seed in range(self.seed, self.seed + self.draws):
            removed = rank("random", dataclasses.replace(self.context, seed=seed)).remove(count)
            outputs = at(self._run(Repaired.bare(self.units, removed)), self.examples)
            names = original_names(self.loaded, self.units.heads(removed))
            draws.append(Draw(seed, names, self.evaluation.value(outputs)))
        values = [draw.value for draw in draws]
        first = draws[0].heads_removed
        return Point(
            fraction=len(first) / self.n_heads,
            heads_removed=first,
            value=Estimate(statistics.fmean(values), min(values), max(values)),
            draws=tuple(draws),
            spread=statistics.stdev(values),
        )

    def change(self, made: Repaired) -> Change:
        """Compare one pruned model with the full one."""
        full, outputs = (at(each, self.examples) for each in (self.full, self._run(made)))
        return self.evaluation.change(full, outputs, seed=self.seed, drawn=self._drawn)

    def forget_others(self, made: Repaired) -> None:
        """Drop what was measured of all models but this one, and their maps."""
        for key in [key for key, (model, *_) in self._outputs.items() if model is not made]:
            del self._outputs[key]

    @property
    def n_heads(self) -> int:
        """Heads of the model."""
        return sum(site.n_heads for site in self.loaded.sites)

    def _run(
        self,
        made: Repaired,
        all_metrics: bool = False,
        run: Callable[[LoadedModel], Outputs] | None = None,
    ) -> Outputs:
        """Run a pruned model over all evaluation data, once: its outputs, example by example."""
        task = self.evaluation
        loaded = self.loaded
        if not made.removed:
            return self.full
        maps = tuple((layer, id(new)) for layer, new in sorted(made.maps.items()))
        model = (made.removed, made.gates.numpy(force=True).tobytes(), maps)
        _, wrote, outputs = self._outputs.get(model, (made, False, None))
        if outputs is not None and (wrote or not (all_metrics and task.writes)):
            return outputs
        if len(made.removed) == len(self.units):  # no model is left that could be built
            with replaced_outputs(loaded, made.maps):
                gates = made.gates.to(loaded.device)
                outputs = task.outputs(loaded, gates, all_metrics=all_metrics)
        else:
            compact = compact_model(loaded, self.units, made)
            outputs = run(compact) if run else task.outputs(compact, all_metrics=all_metrics)
        self._outputs[model] = made, all_metrics, outputs
        return outputs


def at(outputs: Outputs, examples: Array | None) -> Outputs:
    """Pick examples from outputs; None for all."""
    if examples is None:
        return outputs
    return {name: values[examples] for name, values in outputs.items()}


def original_names(loaded: LoadedModel, heads: Sequence[Head]) -> tuple[Name, ...]:
    """Return the original names of heads: (layer, head), or (stack, layer, head).

    The stack is named in models that have more than an encoder.
    """
    named = (loaded.whole or loaded).stacks != ("encoder",)
    sites = ((loaded.sites[row], head) for row, head in heads)
    return tuple(
        (*((site.stack,) if named else ()), site.layer, site.head_ids[head]) for site, head in sites
    )


def compact_model(loaded: LoadedModel, units: Units, made: Repaired) -> LoadedModel:
    """Make the pruned, repaired model for real; all but attention is shared with ``loaded``."""
    compact = remove_heads(loaded, original_names(loaded, units.heads(made.removed)), share=True)
    make_permanent(compact, loaded, made.gates, made.maps)
    return compact
