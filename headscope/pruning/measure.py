"""Heads ranked, removed and repaired, and what is left measured on the evaluation data.

A :class:`Pruner` speaks of units, the heads that can only go together: in most models each head is
one. A pruned model, a ``Repaired``, is the removed units, a gate for each head (0 where it is
removed, what its output is multiplied by elsewhere), and new output maps of layers, if any.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headscope.analyses.classify.result import HeadResult
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.surgery.copies import has_all_weights, remove_heads
from headscope.models.surgery.output_maps import make_permanent, replaced_outputs
from headscope.pruning.methods import rank
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Context, Ranking, Repaired
from headscope.pruning.result import Baseline, Draw, Point
from headscope.pruning.scaling import scale_gates
from headscope.pruning.surgeon import surgeon_of
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import Outputs
from headscope.stats.paired_change import Change
from headscope.tasks.base import Task
from headscope.tasks.units import Head, Units, units_of

#: A head's original name: (layer, head), or (stack, layer, head).
Name = tuple[Any, ...]
#: What tells pruned models apart: removed units, gates as bytes, identities of output maps.
ModelKey = tuple[tuple[int, ...], bytes, tuple[tuple[int, int], ...]]


class PastRun(NamedTuple):
    """A pruned model that was run over the evaluation data."""

    model: Repaired  # As long as it is held, no other can have maps of the same identities
    all_metrics: bool  # Whether it wrote the texts that some metrics need
    outputs: Outputs  # Example by example


class Pruner:
    """Ranks heads, removes and repairs them, and measures what is left against the full model.

    Heads are removed for real before a model is measured, so a point of a curve is the value of
    the very model that is saved; each set of removed heads is run only once.

    Parameters
    ----------
    evaluation, calibration : Task
        What models are measured on, and what heads are chosen on (None: the evaluation data). A
        task is examples with a metric.
    roles : mapping
        What the heads do, by their positions in the loaded model; empty where nobody asked.
    shares : sequence of float
        The fractions of heads that points of curves remove.
    draws : int
        Random sets of heads at each fraction.
    seed : int
        Seed of these sets, of what methods draw, and of bootstraps.
    tell : callable
        Gets the name of a step, and how much of it is done.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        evaluation: Task,
        calibration: Task | None,
        roles: Mapping[Head, HeadResult],
        shares: Sequence[float],
        draws: int,
        seed: int,
        tell: Progress,
    ) -> None:
        # Every model that is cut remembers where it came from, by a checksum of all weights.
        self.loaded = dataclasses.replace(loaded, origin=origin_of(loaded))
        self.evaluation = evaluation
        self.draws = draws
        self.seed = seed
        self.tell = tell

        self.units = units_of(loaded)
        n_units = len(self.units)
        #: How many units points of curves remove.
        self.counts = sorted({int(share * n_units + 0.5) for share in shares})
        partial_counts = [count for count in self.counts if 0 < count < n_units]
        self.context = Context.of_task(
            loaded,
            calibration or evaluation,
            roles=roles,
            largest=max(partial_counts, default=n_units),
            seed=seed,
        )

        #: The unpruned model's outputs, example by example.
        self.full: Outputs = evaluation.outputs(self.loaded, all_metrics=True)
        #: Indices of the examples that are measured on; None for all.
        self.examples: Array | None = None
        self._resamples_of_full = evaluation.resampled(self.full, seed=seed)
        self._past_runs: dict[ModelKey, PastRun] = {}
        #: By id(point), as points cannot be hashed: the point, and its value in every resample.
        self._resamples: dict[int, tuple[Point, Array]] = {}

    def measuring_on(self, examples: Array) -> Pruner:
        """Return the same pruner, measuring on some of the examples only, by their indices.

        It shares the models that were run before.
        """
        narrower = copy.copy(self)
        narrower.examples = examples
        narrower._resamples = {}
        full = select_examples(self.full, examples)
        narrower._resamples_of_full = self.evaluation.resampled(full, seed=self.seed)
        return narrower

    # --- ranking and repairing ----------------------------------------------------------------

    def rankings(self, methods: Sequence[str]) -> dict[str, Ranking]:
        """Rank the units by every method, before anything is measured.

        So a method that cannot be run is refused early.
        """
        rankings = {}
        for i, name in enumerate(methods):
            tell = self._progress_of_method(i, len(methods))
            tell(name, 0, 1)
            rankings[name] = rank(name, dataclasses.replace(self.context, progress=tell))
        return rankings

    def _progress_of_method(self, i: int, n_methods: int) -> Progress:
        """Return what the ``i``-th method tells its progress to: its share in all methods' work."""

        def tell(_: str, done: int, total: int) -> None:
            methods_done = i + done / max(total, 1)
            self.tell("choosing heads", round(1000 * methods_done), 1000 * n_methods)

        return tell

    def repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        """Remove units and repair what is left: gates of heads, and new output maps."""
        some_stay_and_some_go = 0 < len(removed) < len(self.units)
        if kind is Repair.none or not some_stay_and_some_go:
            return Repaired.bare(self.units, removed)
        if kind is Repair.scale:
            gates = scale_gates(self.context, removed)
            return Repaired(tuple(removed), self.units.expand(gates).float())
        return surgeon_of(self.context).refit(removed)

    # --- measuring ----------------------------------------------------------------------------

    def baseline(self) -> Baseline:
        """Describe the unpruned model."""
        full = select_examples(self.full, self.examples)
        value = self.evaluation.interval(full, seed=self.seed)
        return Baseline(value, self.evaluation.metrics(full))

    def point(self, pruned: Repaired) -> Point:
        """Measure one pruned model by every metric, with its change from the full model."""
        task = self.evaluation
        all_outputs = self._run(pruned, all_metrics=True)
        outputs = select_examples(all_outputs, self.examples)
        full = select_examples(self.full, self.examples)
        resamples = task.resampled(outputs, seed=self.seed)

        difference = Estimate(0.0)
        p_value = 1.0
        if all_outputs is not self.full:  # the full model differs from itself by nothing
            change = task.change(
                full,
                outputs,
                seed=self.seed,
                baseline_values=self._resamples_of_full,
                values=resamples,
            )
            difference = change.estimate()
            p_value = change.p_value

        removed_heads = self.units.heads(pruned.removed)
        point = Point(
            fraction=len(removed_heads) / self.n_heads,
            heads_removed=original_names(self.loaded, removed_heads),
            value=task.interval(outputs, seed=self.seed, values=resamples),
            difference=difference,
            p_value=p_value,
            metrics=task.metrics(outputs),
            roles_left=self._roles_without(removed_heads),
            changed=task.changed(outputs),
        )
        self._resamples[id(point)] = (point, resamples)
        return point

    def resamples_of(self, point: Point) -> Array:
        """Return the value of a point in every bootstrap resample of the examples."""
        _, resamples = self._resamples[id(point)]
        return resamples

    def random_point(self, count: int) -> Point:
        """Measure the model without ``count`` units, drawn at random several times.

        Its value is the mean over draws, with the lowest and the highest draw.
        """
        if count in (0, len(self.units)):  # there is nothing to draw
            return self.point(Repaired.bare(self.units, range(count)))
        draws = []
        for seed in range(self.seed, self.seed + self.draws):
            ranking = rank("random", dataclasses.replace(self.context, seed=seed))
            removed = ranking.remove(count)
            outputs = self._run(Repaired.bare(self.units, removed), all_metrics=False)
            value = self.evaluation.value(select_examples(outputs, self.examples))
            names = original_names(self.loaded, self.units.heads(removed))
            draws.append(Draw(seed, names, value))
        values = [draw.value for draw in draws]
        first_removed = draws[0].heads_removed
        return Point(
            fraction=len(first_removed) / self.n_heads,
            heads_removed=first_removed,
            value=Estimate(statistics.fmean(values), min(values), max(values)),
            draws=tuple(draws),
            spread=statistics.stdev(values),
        )

    def change(self, pruned: Repaired) -> Change:
        """Compare one pruned model with the full one."""
        outputs = self._run(pruned, all_metrics=False)
        return self.evaluation.change(
            select_examples(self.full, self.examples),
            select_examples(outputs, self.examples),
            seed=self.seed,
            baseline_values=self._resamples_of_full,
        )

    def forget_all_but(self, pruned: Repaired) -> None:
        """Drop what was measured of all models but this one, and their maps."""
        for key, past_run in list(self._past_runs.items()):
            if past_run.model is not pruned:
                del self._past_runs[key]

    @property
    def n_heads(self) -> int:
        """Heads of the model."""
        return sum(site.n_heads for site in self.loaded.sites)

    def _roles_without(self, removed_heads: Sequence[Head]) -> dict[str, int] | None:
        """Count the heads of each role that stay; None where the model was not classified."""
        roles = self.context.roles
        if not roles:
            return None
        counts: dict[str, int] = {}
        for head, result in roles.items():
            for role in result.roles:
                counts.setdefault(role, 0)
                if head not in removed_heads:
                    counts[role] += 1
        return dict(sorted(counts.items()))

    def _run(self, pruned: Repaired, *, all_metrics: bool) -> Outputs:
        """Run a pruned model over all evaluation data, once: its outputs, example by example.

        Without ``all_metrics`` the model writes no texts for the metrics that need them (BLEU); its
        main metric does without.
        """
        if not pruned.removed:
            return self.full
        task = self.evaluation
        loaded = self.loaded

        # Look the model up among those that were run before.
        map_identities = tuple((layer, id(pruned.maps[layer])) for layer in sorted(pruned.maps))
        key = (pruned.removed, pruned.gates.numpy(force=True).tobytes(), map_identities)
        past_run = self._past_runs.get(key)
        needs_texts = all_metrics and task.writes
        if past_run is not None and (past_run.all_metrics or not needs_texts):
            return past_run.outputs

        # Make it and run it.
        whole_is_gone = len(pruned.removed) == len(self.units)
        if whole_is_gone or not has_all_weights(loaded):  # no model that could be built
            with replaced_outputs(loaded, pruned.maps):
                gates = pruned.gates.to(loaded.device)
                outputs = task.outputs(loaded, gates, all_metrics=all_metrics)
        else:
            compact = compact_model(loaded, self.units, pruned)
            outputs = task.outputs(compact, all_metrics=all_metrics)
        self._past_runs[key] = PastRun(pruned, all_metrics, outputs)
        return outputs


def select_examples(outputs: Outputs, examples: Array | None) -> Outputs:
    """Return the outputs of some examples, by their indices; of all for None."""
    if examples is None:
        return outputs
    return {name: values[examples] for name, values in outputs.items()}


def original_names(loaded: LoadedModel, heads: Sequence[Head]) -> tuple[Name, ...]:
    """Return the original names of heads: (layer, head), or (stack, layer, head).

    The stack is named in models that have more than an encoder.
    """
    names_stacks = loaded.with_all_stacks.stacks != ("encoder",)
    names: list[Name] = []
    for row, index in heads:
        site = loaded.sites[row]
        name = (site.layer, site.head_ids[index])
        names.append((site.stack, *name) if names_stacks else name)
    return tuple(names)


def compact_model(loaded: LoadedModel, units: Units, pruned: Repaired) -> LoadedModel:
    """Make the pruned, repaired model for real; all but attention is shared with ``loaded``."""
    removed_names = original_names(loaded, units.heads(pruned.removed))
    compact = remove_heads(loaded, removed_names, share=True)
    make_permanent(compact, loaded, pruned.gates, pruned.maps)
    return compact
