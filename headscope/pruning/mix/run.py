"""``headscope prune`` for one budget: costs propose a mix, runs and data with no say confirm it."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.artefacts.onnx_graph import quantize, write_graph
from headscope.artefacts.onnx_session import FLOAT32, INT8, Graph
from headscope.core.errors import InputError
from headscope.core.processes import current
from headscope.data.examples import Examples, read_texts, sample_texts
from headscope.data.token_rows import Row, padded
from headscope.models.feed_forward import feed_forwards
from headscope.models.loaded import LoadedModel
from headscope.models.vocabulary import cut_vocabulary, plan_vocabulary, tokens_removed
from headscope.pruning.confirm_speed import confirm_speed
from headscope.pruning.latency import Runtime, measure_table
from headscope.pruning.latency_result import Confirmed, LatencyTable
from headscope.pruning.max_drop import check_enough
from headscope.pruning.measure import original_names
from headscope.pruning.mix.budget import budget_of, check_reachable
from headscope.pruning.mix.build import build, check_equal
from headscope.pruning.mix.choose import ROUNDS, Choice, Shrinking, distance_to, outputs_of
from headscope.pruning.mix.controls import KINDS, fewer_layers, random_mixes, single_kinds
from headscope.pruning.mix.costs import Costs, Milliseconds, PerUnit, megabytes, multiplications
from headscope.pruning.mix.judge import Judge, Measured, megabytes_of
from headscope.pruning.mix.result import (
    LayerLeft,
    MixLook,
    MixModel,
    MixResult,
    Tuned,
    VocabularyLeft,
)
from headscope.pruning.mix.sublayers import HEADS, sublayers
from headscope.pruning.mix.tune import distil
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import Baseline, Point
from headscope.pruning.setup import Inputs
from headscope.pruning.steps import Steps
from headscope.pruning.turns import BATCH_SIZES, passes, usual_batches
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.tasks.base import Task
from headscope.tasks.calibration import open_calibration
from headscope.tasks.encoder_tasks import Fidelity
from headscope.tasks.making import make_task

AHEAD = 1.03  # How much faster than asked for the first proposal is
SHARES = tuple(i / 10 for i in range(1, 10))  # Of arithmetic: what max_drop tests, in order
ATTEMPTS = 3  # Proposals until the speed is confirmed
MOST_TUNED = 20_000  # Texts that distillation reads at most
WORDS = 10_000  # Common words whose pieces stay in the vocabulary


@dataclass(frozen=True)
class Found:
    """The smaller model, and all that is known of it."""

    result: MixResult
    model: LoadedModel
    baseline: Baseline
    point: Point
    evaluation: Task  # The evaluation data, tokenised by the smaller model's tokenizer
    degenerate: str | None


def find_mix(inputs: Inputs, options: PruneOptions, steps: Steps) -> Found:
    """Find the mix of units that loses least for a budget, and measure it."""
    if current().size > 1:
        raise InputError("A mix of units is found by one process; run prune without torchrun.")
    return _Run(inputs, options, steps).found()


@dataclass
class _Run:
    inputs: Inputs
    options: PruneOptions
    steps: Steps
    seconds: dict[str, float] = field(default_factory=dict)
    looks: list[MixLook] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole = self.inputs.loaded
        self.units = self.options.unit_names
        self.kinds = tuple(kind for kind in KINDS if kind in self.units)
        self.judge = Judge(self.whole, self.inputs.evaluation, self.options.seed)
        self.steps.did("measured")

    # --- the order of a run ---------------------------------------------------------------------

    def found(self) -> Found:
        """Cut the vocabulary, choose, confirm the speed, tune, measure, compare."""
        base, vocabulary = self._without_words()
        with self._timed("choosing"):
            self.base = base
            self._price(base)
            choices, gone, precision, speed = self._choose()
        small = self._build(choices)
        tuned = None
        before = None
        if self.options.tune:
            before = self._measured(small, precision)
            with self._timed("tuning"):
                small, tuned = self._tuned(small)
        measured = self._measured(small, precision)
        mix = self._model("mix", "mix", small, measured, precision)
        models = [self._whole_model(), mix]
        if before is not None:
            name = "mix before tuning"
            models.append(self._model(name, "mix", small, before, precision))
        if self.options.controls:
            with self._timed("comparing"):
                models += self._controls(base, choices)
        reached, missed = self._verdict(mix, speed)
        removed = self._heads_removed(small)
        n_heads = sum(site.n_heads for site in self.whole.sites)
        result = MixResult(
            units=self.units,
            budget=self.budget.name,
            wanted=self.budget.wanted,
            reached=reached,
            missed=missed,
            layers=tuple(self._layers(small)),
            layers_removed=gone,
            vocabulary=vocabulary,
            precision=precision,
            models=tuple(models),
            megabytes=(megabytes_of(self.whole), mix.megabytes),
            speed=speed,
            runtime=self.options.runtime,
            tuned=tuned,
            zeroed_difference=self.zeroed_difference,
            seconds=self.seconds,
            latency=self.table,
            looks=tuple(self.looks),
        )
        point = self.judge.point(measured, len(removed) / n_heads, removed)
        task = self._task_of(small)
        return Found(result, small, self.judge.baseline(), point, task, self.judge.degenerate)

    # --- vocabulary -----------------------------------------------------------------------------

    def _without_words(self) -> tuple[LoadedModel, VocabularyLeft | None]:
        """Cut the vocabulary first, where it may go: what stays is settled by text alone."""
        whole, sources = self.whole, self.inputs.sources
        self.evaluation, self.calibration = self.inputs.evaluation, self._calibration
        if "vocabulary" not in self.units:
            return whole, None
        plan = plan_vocabulary(whole, self._all_texts.texts, keep=self._kept_words(), common=WORDS)
        base = cut_vocabulary(whole, plan)
        lost = tokens_removed(whole, plan, sources.data.texts)
        self.calibration = sources.calibration_for(base) or self.calibration
        self.evaluation = self._task_of(base)
        left = VocabularyLeft(
            before=plan.rows_before,
            after=plan.rows,
            words=WORDS,
            texts_affected=lost.share_texts or 0.0,
            tokens_affected=lost.share_tokens or 0.0,
        )
        return base, left

    def _kept_words(self) -> list[str]:
        """Read the text whose words stay."""
        path = self.options.keep_vocabulary
        if path is None:
            return []
        return list(read_texts(path).texts)

    @property
    def _calibration(self) -> Task:
        task = self.inputs.calibration
        assert task is not None  # a mix is always chosen on calibration data
        return task

    @property
    def _all_texts(self) -> Examples:
        """All calibration text, and not only the share that units are chosen on."""
        options = self.options
        if options.calibration is None:
            assert self.inputs.sources.calibration is not None
            return self.inputs.sources.calibration
        examples, _ = open_calibration(options.task, options.calibration, ())
        return examples.pick(range(min(len(examples), MOST_TUNED)))

    def _task_of(self, model: LoadedModel) -> Task:
        """Return the evaluation data as a smaller model reads them."""
        whole = self.inputs.evaluation
        if model.vocab_size == self.whole.vocab_size:
            return whole
        task = self.inputs.sources.evaluation_for(model)
        if task.n_examples != whole.n_examples:
            raise InputError(
                f"{whole.n_examples - task.n_examples} of the evaluation texts no longer fit the "
                "model once rare words are spelled in more pieces; leave them out of the data, or "
                "keep their words by keep_vocabulary."
            )
        task.distance = whole.distance  # near to the whole model, not to itself
        return task

    # --- what it costs --------------------------------------------------------------------------

    def _price(self, base: LoadedModel) -> None:
        """Measure or count what units cost, and refuse a target that no mix can reach."""
        options, layers = self.options, sublayers(base, self.kinds)
        length = float(np.median([len(row) for row in self.inputs.evaluation.rows]))
        self.length = length
        self.table: LatencyTable | None = None
        self.int8_costs: Costs | None = None
        self.costs: Costs
        if options.target in ("speed", "ms"):
            found: dict[str, LatencyTable] = {}
            runtime: Runtime = "onnxruntime" if options.runtime == "onnxruntime" else "torch"
            batches = usual_batches(self.calibration.rows, base)
            for precision in ("float32", *(["int8"] if "int8" in self.units else [])):
                found[precision] = measure_table(
                    base, batches, runtime=runtime, precision=precision, kinds=self.kinds
                )
                self.steps.did("table")
            self.table = found["float32"]
            self.costs = Milliseconds(self.table.table, self.table.rest)
            if "int8" in found:
                small = found["int8"]
                self.int8_costs = Milliseconds(small.table, small.rest)
        elif options.target == "mb":
            whole = megabytes_of(base)
            self.costs = megabytes(base, layers, whole)
            if "int8" in self.units:
                self.int8_costs = PerUnit(
                    {name: 0.25 * value for name, value in self.costs.unit.items()},
                    0.25 * self.costs.rest,
                )
        else:
            self.costs = multiplications(base, layers, length)
        counts = [item.n_units for item in layers]
        self.whole_cost = self.costs.total(layers, counts)
        self.budget = budget_of(options, self.whole_cost)
        cheapest = self.int8_costs or self.costs
        check_reachable(self.whole, layers, cheapest, self.budget, self.whole_cost, self.units)

    # --- choosing -------------------------------------------------------------------------------

    def _choose(self) -> tuple[list[Choice], tuple[int, ...], str, Confirmed | None]:
        """Propose a mix, confirm its speed, and propose a smaller one where that fails."""
        limit = self.budget.limit / (AHEAD if self.budget.name in ("speed", "ms") else 1.0)
        whole_shape = self.base
        self.base, gone = self._fewer_layers(limit)
        self.shrinking = Shrinking(
            self.base,
            self.calibration,
            self.kinds,
            self.costs,
            seed=self.options.seed,
            did=lambda: self.steps.did("round"),
            targets=outputs_of(whole_shape, self.calibration),
        )
        if self.budget.name == "max_drop":
            return self._confirmed_drop(), gone, "float32", None
        precision, speed, rounds = "float32", None, ROUNDS
        for _ in range(ATTEMPTS):
            choices, precision = self._at(limit, rounds)
            if self.budget.name not in ("speed", "ms"):
                break
            speed = self._confirmed(self._build(choices), precision)
            if speed.reached:
                break
            limit *= self._short(speed) * 0.99
            rounds = 1
        return choices, gone, precision, speed

    def _confirmed_drop(self) -> list[Choice]:
        """Shrink step by step, in an order settled beforehand, up to the first that is refused."""
        task, bound = self.inputs.evaluation, self.budget.wanted
        examples = check_enough(task, self.inputs.calibration)
        best: list[Choice] | None = None
        for share in SHARES:
            choices = self.shrinking.to(self.whole_cost * (1 - share), rounds=1)
            small = self._build(choices)
            outputs = self._task_of(small).outputs(small)
            self.steps.did("measured")
            found = self.judge.loss(outputs, examples, bound)
            left = self._arithmetic(small) / self._arithmetic(self.whole)
            self.looks.append(MixLook(left, found.lost, found.most_lost, found.allowed))
            if not found.allowed:
                break
            best = choices
        if best is None:
            raise InputError(
                f"Even with {SHARES[0]:.0%} of the layers' multiplications gone up to "
                f"{self.looks[0].most_lost:.2f} of {task.metric} may be lost, more than "
                f"{bound:g}; give a larger max_drop, or more examples."
            )
        self.shrinking.restore(best)
        return best

    def _at(self, limit: float, rounds: int) -> tuple[list[Choice], str]:
        """Shrink to a budget, in whole numbers or in 8 bits: whichever stays nearer."""
        if self.int8_costs is None:
            return self.shrinking.to(limit, rounds), "float32"
        whole, small = self.costs, self.int8_costs
        self.shrinking.costs = small
        first = self.shrinking.to(limit, rounds)
        near = self._int8_distance(self._build(first))
        self.shrinking.costs = whole
        total = whole.total(self.shrinking.layers, self.shrinking.counts)
        least = [0 if item.kind == HEADS else 32 for item in self.shrinking.layers]
        if total > limit >= whole.total(self.shrinking.layers, least):
            second = self.shrinking.to(limit, max(1, rounds // 2))
            if self.shrinking.distance() < near:
                return second, "float32"
        self.shrinking.restore(first)
        return first, "int8"

    def _short(self, speed: Confirmed) -> float:
        """Return by which factor the time has to fall."""
        if self.budget.name == "ms":
            return self.budget.wanted / speed.ms_cut
        return (speed.low or speed.ratio) / self.budget.wanted

    def _fewer_layers(self, limit: float) -> tuple[LoadedModel, tuple[int, ...]]:
        """Remove whole layers where they may go, as long as that is nearer than units alone."""
        base = self.base
        if "layers" not in self.units:
            return base, ()
        task = self.calibration

        targets = outputs_of(base, task)

        def distance(model: LoadedModel) -> float:
            shrinking = Shrinking(model, task, self.kinds, self.costs, targets=targets)
            shrinking.to(limit, rounds=1)
            return shrinking.distance()

        best = distance(base)
        found: tuple[LoadedModel, tuple[int, ...]] = base, ()
        for model, gone in fewer_layers(base, distance, lambda _: False, lambda: None):
            now = distance(model)
            self.steps.did("round")
            if now >= best:
                break
            best, found = now, (model, gone)
        return found

    def _build(self, choices: Sequence[Choice]) -> LoadedModel:
        """Cut the model for real; it must equal the one with zeros."""
        small = build(self.base, choices)
        self.zeroed_difference = check_equal(small, self.shrinking.zeroed, self.calibration)
        return small

    # --- what is confirmed ----------------------------------------------------------------------

    @contextmanager
    def _served(self, model: LoadedModel, precision: str) -> Iterator[LoadedModel | Graph]:
        """Yield a model in the form in which it will be served."""
        if self.options.runtime == "torch":
            yield model
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / FLOAT32
            write_graph(model, path, typed=self.inputs.evaluation.rows[0].types is not None)
            if precision == "int8":
                quantize(path, Path(folder) / INT8)
                path = Path(folder) / INT8
            yield Graph(path)

    def _confirmed(self, small: LoadedModel, precision: str) -> Confirmed:
        """Time whole and cut model in turns, on evaluation texts, each with its own tokens."""
        task = self._task_of(small)
        places = usual_places(self.inputs.evaluation.rows)
        sides = [(self.whole, self.inputs.evaluation.rows), (small, task.rows)]
        batches = [
            [padded([rows[i] for i in each], model.pad_id, model.device) for each in places]
            for model, rows in sides
        ]
        with (
            self._served(self.whole, "float32") as whole,
            self._served(small, precision) as cut,
            passes([whole], batches[0]) as [of_whole],
            passes([cut], batches[1]) as [of_cut],
        ):
            found = confirm_speed(
                of_whole,
                of_cut,
                target=self.budget.wanted if self.budget.name == "speed" else None,
                weights=[1 / (len(each) * len(places)) for each in places],
                seed=self.options.seed,
            )
        self.steps.did("speed")
        if self.budget.name == "ms":
            found = dataclasses.replace(found, reached=found.ms_cut <= self.budget.wanted)
        return found

    def _int8_distance(self, small: LoadedModel) -> float:
        """Return how far the 8-bit graph of a model is from the whole one, on calibration text."""
        total, count = 0.0, 0
        with self._served(small, "int8") as graph, torch.no_grad():
            assert isinstance(graph, Graph)
            batches = self.calibration.batches(small)
            for batch, target in zip(batches, self.shrinking.targets, strict=True):
                gap = self.calibration.embed(graph, batch) - target
                total, count = total + float((gap.double() ** 2).sum()), count + len(gap)
        return total / count

    def _measured(self, small: LoadedModel, precision: str) -> Measured:
        """Measure a model on the evaluation data, in 8 bits by its graph."""
        task = self._task_of(small)
        if precision == "int8":
            with self._served(small, "int8") as graph:
                assert isinstance(graph, Graph)
                outputs = task.outputs_of(graph, task.batches(small))
        else:
            outputs = task.outputs(small, all_metrics=True)
        self.steps.did("measured")
        return self.judge.of(outputs)

    def _tuned(self, small: LoadedModel) -> tuple[LoadedModel, Tuned]:
        """Distil, and look at text of another kind too."""
        sources, options = self.inputs.sources, self.options
        name = sources.calibration_task
        name = "fidelity" if name in ("similarity", "retrieval") else name
        examples = self._all_texts
        tasks = tuple(
            make_task(name, examples, model, seed=options.seed + 1) for model in (small, self.whole)
        )
        if len(tasks[0].rows) != len(tasks[1].rows):
            raise InputError(
                "Some calibration texts no longer fit the model once rare words are spelled in "
                "more pieces; leave the longest ones out of the calibration data."
            )
        found = distil(
            small,
            self.whole,
            (tasks[0], tasks[1]),
            options.tune_minutes,
            seed=options.seed,
            tell=lambda share: self.steps("tuning", round(1000 * share), 1000),
        )
        self.steps.did("tuning")
        other = sample_texts() if options.fidelity_text is None else self._other_text()
        before, after = (self._fidelity(model, other) for model in (small, found.model))
        tuned = Tuned(
            text=examples.name,
            sentences=found.sentences,
            minutes=found.minutes,
            allowed=options.tune_minutes,
            steps=found.steps,
            before=found.before,
            after=found.after,
            other_text=other.name,
            other_before=before,
            other_after=after,
        )
        return found.model, tuned

    def _other_text(self) -> Examples:
        text = self.options.fidelity_text
        return text if isinstance(text, Examples) else read_texts(text)

    def _fidelity(self, model: LoadedModel, examples: Examples) -> Estimate:
        """Mean cosine of embeddings to the whole model's, with its interval."""
        if self.whole.encoder_decoder:
            return UNKNOWN
        reference = Fidelity(examples, self.whole)
        task = Fidelity(examples, model)
        if len(task.rows) != len(reference.rows):
            return UNKNOWN
        task.distance = reference.distance
        return task.interval(task.outputs(model), seed=self.options.seed).estimate()

    # --- what it is compared with ---------------------------------------------------------------

    def _controls(self, base: LoadedModel, choices: Sequence[Choice]) -> Iterator[MixModel]:
        """Yield every model that the mix is compared with, measured."""
        task, seed = self.calibration, self.options.seed
        cost = self.costs.total(self.shrinking.layers, self.shrinking.counts)

        def did() -> None:
            self.steps.did("round")

        if len(self.kinds) > 1:
            for c in single_kinds(base, task, self.costs, cost, self.kinds, seed, did):
                yield self._compared(c.name, c.model, c.detail)
        if self.kinds:
            for c in random_mixes(base, task, self.costs, choices, seed):
                yield self._compared("random", c.model, "as many units, drawn at random; refitted")
        if not self.whole.encoder_decoder:
            yield from self._whole_layers(base, cost)
        if base is not self.whole:
            yield self._compared("vocabulary", base, "nothing else removed")
        if "int8" in self.units:
            measured = self._measured(self.whole, "int8")
            yield self._model("int8", "int8", self.whole, measured, "int8")

    def _whole_layers(self, base: LoadedModel, cost: float) -> Iterator[MixModel]:
        task = self.calibration
        targets = outputs_of(base, task)

        def quality(model: LoadedModel) -> float:
            return distance_to(model, task, targets)

        def enough(model: LoadedModel) -> bool:
            return self._cost(model) <= cost

        for model, gone in fewer_layers(base, quality, enough, lambda: None):
            names = ", ".join(f"L{layer}" for layer in sorted(gone))
            yield self._compared("layers", model, f"without {names}")

    def _compared(self, name: str, model: LoadedModel, detail: str) -> MixModel:
        return self._model(name, name, model, self._measured(model, "float32"), "float32", detail)

    def _whole_model(self) -> MixModel:
        baseline = self.judge.baseline()
        return MixModel(
            *("whole", "whole", 1.0, megabytes_of(self.whole), self._ms(self.whole, "float32")),
            *(baseline.value, baseline.ci, 0.0, None),
        )

    def _model(
        self,
        name: str,
        curve: str,
        model: LoadedModel,
        measured: Measured,
        precision: str,
        detail: str = "",
    ) -> MixModel:
        share = 0.25 if precision == "int8" else 1.0
        return measured.model(
            name,
            curve,
            self._arithmetic(model) / self._arithmetic(self.whole),
            share * megabytes_of(model),
            self._ms(model, precision),
            detail,
        )

    def _arithmetic(self, model: LoadedModel) -> float:
        """Count the multiplications of a model's layers; those of what cannot go are left out."""
        layers = sublayers(model, self.kinds or ("heads",))
        costs = multiplications(model, layers, self.length)
        return costs.total(layers, [item.n_units for item in layers])

    def _cost(self, model: LoadedModel) -> float:
        """Return what a model costs, in the unit of the budget."""
        layers = sublayers(model, self.kinds)
        if isinstance(self.costs, Milliseconds):
            return self.costs.total(layers, [item.n_units for item in layers])
        return megabytes_of(model) if self.budget.name == "mb" else self._arithmetic(model)

    def _ms(self, model: LoadedModel, precision: str) -> float | None:
        costs = self.int8_costs if precision == "int8" else self.costs
        if not isinstance(costs, Milliseconds):
            return None
        layers = sublayers(model, self.kinds)
        return costs.total(layers, [item.n_units for item in layers])

    # --- what is said of it ---------------------------------------------------------------------

    def _verdict(self, mix: MixModel, speed: Confirmed | None) -> tuple[bool, str]:
        """Say whether the budget was met, and if not what was the nearest."""
        if speed is not None:
            if speed.reached:
                return True, ""
            fast = f"{speed.ratio:.2f} times as fast"
            if speed.low is not None:
                fast += f" (95%: {speed.low:.2f} to {speed.high:.2f})"
            nearest = fast if self.budget.name == "speed" else f"{speed.ms_cut:.2g} ms a text"
            return False, (
                f"{self.budget.words[0].upper()}{self.budget.words[1:]} was not confirmed in "
                f"{ATTEMPTS} proposals; the nearest is {nearest}. Other programs on this machine "
                "make times uncertain: try again when it is idle, or ask for less."
            )
        if self.budget.name == "mb" and mix.megabytes > self.budget.wanted * 1.001:
            return False, (
                f"The nearest to {self.budget.wanted:g} MB is {mix.megabytes:.1f} MB; ask for "
                "more, or let other units go too."
            )
        return True, ""

    def _layers(self, small: LoadedModel) -> Iterator[LayerLeft]:
        """List what each layer keeps, layers that are gone among them."""
        left = {(site.stack, site.layer): site for site in small.sites}
        before: dict[tuple[str, int], int] = {}
        after: dict[tuple[str, int], int] = {}
        if "neurons" in self.units:
            for found, model in ((before, self.whole), (after, small)):
                for item in feed_forwards(model):
                    for layer in item.layers:
                        key = item.stack, layer
                        found[key] = found.get(key, 0) + item.width
        for site in self.whole.sites:
            key = site.stack, site.layer
            own = left.get(key)
            heads = () if own is None else own.head_ids
            yield LayerLeft(
                *(*key, heads, site.n_heads, after.get(key, 0), before.get(key, 0)),
            )

    def _heads_removed(self, small: LoadedModel) -> tuple[tuple[Any, ...], ...]:
        left = {(site.stack, site.layer): set(site.head_ids) for site in small.sites}
        gone = [
            (site.row, place)
            for site in self.whole.sites
            for place, head in enumerate(site.head_ids)
            if head not in left.get((site.stack, site.layer), ())
        ]
        return original_names(self.whole, gone)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - start


def usual_places(rows: Sequence[Row]) -> list[list[int]]:
    """Return the places of the texts that are timed: of median length, alone and in a batch."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    places = []
    for size in BATCH_SIZES:
        start = max(0, (len(order) - size) // 2)
        places.append(order[start : start + size])
    return places
