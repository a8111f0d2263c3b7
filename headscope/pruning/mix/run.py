"""``headscope prune`` for one budget: costs propose a mix, runs and data with no say confirm it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from headscope.core.errors import InputError
from headscope.core.processes import current
from headscope.data.common_words import COMMON_WORDS, read_words
from headscope.data.examples import Examples
from headscope.models.layers import Layer, layer_words
from headscope.models.loaded import LoadedModel
from headscope.models.vocabulary import cut_vocabulary, plan_vocabulary, tokens_removed
from headscope.pruning.latency import Runtime, measure_table
from headscope.pruning.latency_result import Confirmed, LatencyTable
from headscope.pruning.max_drop import check_enough
from headscope.pruning.mix.bench import Bench
from headscope.pruning.mix.budget import budget_of, check_reachable, missed_sentence
from headscope.pruning.mix.build import build, check_equal
from headscope.pruning.mix.choose import ROUNDS, Choice, Shrinking, distance_to, outputs_of
from headscope.pruning.mix.controls import KINDS, fewer_layers, on_the_way, random_mixes
from headscope.pruning.mix.costs import Costs, Milliseconds, megabytes, multiplications
from headscope.pruning.mix.judge import Measured, megabytes_of
from headscope.pruning.mix.left import heads_gone, layers_left
from headscope.pruning.mix.result import MixLook, MixModel, MixResult, VocabularyLeft
from headscope.pruning.mix.sublayers import HEADS, sublayers
from headscope.pruning.mix.tuned import tuned
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import Baseline, Point
from headscope.pruning.setup import Inputs
from headscope.pruning.steps import Steps
from headscope.pruning.turns import usual_batches
from headscope.tasks.base import Task
from headscope.tasks.encoder_tasks import lines_of

AHEAD = 1.03  # How much faster than asked for the first proposal is
SHARES = tuple(i / 10 for i in range(1, 10))  # Of arithmetic: what max_drop tests, in order
ATTEMPTS = 4  # Proposals until the speed is confirmed
GROW = 1.05  # A mix that is faster by so much than asked for is tried larger
#: By which factor a proposal that is too slow shrinks at most, by whether its time is sure.
SMALLEST_STEP = {True: 0.75, False: 0.93}
MOST_TUNED = 20_000  # Texts that distillation reads at most


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
    with tempfile.TemporaryDirectory() as folder:
        return _Run(inputs, options, steps, Path(folder)).found()


@dataclass
class _Run:
    inputs: Inputs
    options: PruneOptions
    steps: Steps
    graphs: Path  # A folder
    seconds: dict[str, float] = field(default_factory=dict)
    looks: list[MixLook] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole = self.inputs.loaded
        self.units = self.options.unit_names
        self.kinds = tuple(kind for kind in KINDS if kind in self.units)
        self._built: tuple[Sequence[Choice], LoadedModel] | None = None  # The last that was built
        options = self.options
        self.bench = Bench(
            self.inputs, options.runtime, options.batch_size, options.seed, self.graphs
        )
        self.steps.did("measured")

    # --- the order of a run ---------------------------------------------------------------------

    def found(self) -> Found:
        """Cut the vocabulary, choose, confirm the speed, tune, measure, compare."""
        base, vocabulary = self._without_words()
        with self._timed("choosing"):
            self.base = base
            self._price(base)
            self.steps.doing("round")
            choices, gone, precision, speed = self._choose()
        small = self._build(choices)
        tuning = before = None
        if self.options.tune:
            name, measured = "mix before tuning", self._measured(small, precision)
            before = self._model(name, "mix", small, measured, precision)
            self.steps.doing("tuning")
            with self._timed("tuning"):
                share = partial(self._share, "tuning")
                # Log-probabilities are compared piece by piece: both models need the same pieces.
                same = self.whole.task_head == "mlm"
                inputs = replace(self.inputs, loaded=base) if same else self.inputs
                small, tuning = tuned(small, inputs, self.options, self._all_texts, share)
            self.steps.did("tuning")
        measured = self._measured(small, precision)
        mix = self._model("mix", "mix", small, measured, precision)
        models = [self._whole_model(), mix]
        if precision == "int8":  # what is saved has 32 bits
            measured = self._measured(small, "float32")
            models.append(self._model("mix in float32", "mix", small, measured, "float32"))
        if before is not None:
            models.append(before)
        if self.options.controls:
            with self._timed("comparing"):
                models += self._controls(base, choices)
        missed = missed_sentence(self.budget, mix, speed)
        removed = heads_gone(small, self.whole)
        n_heads = sum(site.n_heads for site in self.whole.sites)
        result = MixResult(
            units=self.units,
            budget=self.budget.name,
            wanted=self.budget.wanted,
            reached=not missed,
            missed=missed,
            layers=tuple(layers_left(small, self.whole, neurons="neurons" in self.units)),
            layers_removed=gone,
            vocabulary=vocabulary,
            precision=precision,
            models=tuple(models),
            megabytes=(megabytes_of(self.whole), mix.megabytes),
            speed=speed,
            runtime=self.options.runtime,
            batch_size=self.options.batch_size,
            tuned=tuning,
            zeroed_difference=self.zeroed_difference,
            seconds=self.seconds,
            latency=self.table,
            looks=tuple(self.looks),
        )
        point = self.bench.judge.point(measured, len(removed) / n_heads, removed)
        task = self.bench.task_of(small)
        return Found(
            result, small, self.bench.judge.baseline(), point, task, self.bench.judge.degenerate
        )

    # --- vocabulary -----------------------------------------------------------------------------

    def _without_words(self) -> tuple[LoadedModel, VocabularyLeft | None]:
        """Cut the vocabulary first, where it may go: what stays is settled by text alone."""
        whole, sources = self.whole, self.inputs.sources
        self.calibration = self._calibration
        if "vocabulary" not in self.units:
            return whole, None
        task = self.options.task
        if whole.encoder_decoder and task != "seq2seq":
            raise InputError(
                f"The task {task} runs the encoder of {whole.name} only, and its decoder needs the "
                "vocabulary too; leave vocabulary out of units, or choose the task seq2seq."
            )
        texts, targets = _sides(self._all_texts, task)
        keep = self._kept_words()
        plan = plan_vocabulary(whole, texts, targets=targets, keep=keep, common=COMMON_WORDS)
        base = whole if plan.rows == plan.rows_before else cut_vocabulary(whole, plan)
        self.bench.plan = plan
        lost = tokens_removed(whole, plan, *_sides(sources.data, task))
        self.calibration = sources.calibration_for(base) or self.calibration
        left = VocabularyLeft(
            before=plan.rows_before,
            after=plan.rows,
            words=COMMON_WORDS,
            texts_affected=lost.share_texts or 0.0,
            tokens_affected=lost.share_tokens or 0.0,
        )
        return base, left

    def _kept_words(self) -> list[str]:
        """Read the text whose words stay."""
        path = self.options.keep_vocabulary
        return [] if path is None else read_words(path)

    @property
    def _calibration(self) -> Task:
        task = self.inputs.calibration
        assert task is not None  # a mix is always chosen on calibration data
        return task

    @cached_property
    def _all_texts(self) -> Examples:
        """All calibration text, and not only the share that units are chosen on."""
        text = self.inputs.sources.text
        assert text is not None  # a mix is always chosen on calibration data
        return text.draw(MOST_TUNED, self.options.seed)

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
            batches = usual_batches(self.calibration.rows, base, (options.batch_size,))
            for precision in ("float32", *(["int8"] if "int8" in self.units else [])):
                self.steps.doing("table")
                found[precision] = measure_table(
                    base,
                    batches,
                    runtime=runtime,
                    precision=precision,
                    kinds=self.kinds,
                    folder=self.graphs,
                )
                self.steps.did("table")
            self.table = found["float32"]
            self.costs = Milliseconds(self.table.table, self.table.rest)
            if "int8" in found:
                small = found["int8"]
                self.int8_costs = Milliseconds(small.table, small.rest)
        elif options.target == "mb":
            self.costs = megabytes(base, layers, megabytes_of(base))
            if "int8" in self.units:
                size = self.bench.megabytes(base, "int8")
                self.int8_costs = megabytes(base, layers, size, bytes_per_number=1.0)
        else:
            self.costs = multiplications(base, layers, length)
        counts = [item.n_units for item in layers]
        self.whole_cost = self.costs.total(layers, counts)
        self.budget = budget_of(options, self.whole_cost)
        cheapest = self.int8_costs or self.costs
        check_reachable(self.whole, layers, cheapest, self.budget, self.whole_cost, self.units)

    # --- choosing -------------------------------------------------------------------------------

    def _choose(self) -> tuple[list[Choice], tuple[Layer, ...], str, Confirmed | None]:
        """Propose a mix, confirm its speed, and propose a smaller one where that fails."""
        limit = self.budget.limit / (AHEAD if self.budget.name in ("speed", "ms") else 1.0)
        whole_shape = self.base
        self.base, gone = self._fewer_layers(limit)
        self.shrinking = self._shrinking(self.base, outputs_of(whole_shape, self.calibration))
        if self.budget.name == "max_drop":
            return self._confirmed_drop(), gone, "float32", None
        choices, precision = self._at(limit, ROUNDS)
        if self.budget.name not in ("speed", "ms"):
            return choices, gone, precision, None
        speed = self._confirmed(choices, precision)
        for _ in range(ATTEMPTS - 1):
            room = self._room(speed)
            if speed.reached and room < GROW:
                break
            # Where other programs disturb the runs, a miss says little: small steps then.
            least = SMALLEST_STEP[_sure(speed)]
            limit *= room if speed.reached else max(0.99 * min(room, 1.0), least)
            last = choices, precision, speed
            choices, precision = self._at(limit, 1)
            speed = self._confirmed(choices, precision)
            if last[2].reached:
                if not speed.reached:  # it was right before
                    choices, precision, speed = last
                    self.shrinking.restore(choices)
                break
        return choices, gone, precision, speed

    def _shrinking(self, loaded: LoadedModel, targets: list[Tensor] | None = None) -> Shrinking:
        return Shrinking(
            loaded,
            self.calibration,
            self.kinds,
            self.costs,
            seed=self.options.seed,
            did=lambda: self.steps.did("round"),
            targets=targets,
        )

    def _confirmed(self, choices: Sequence[Choice], precision: str) -> Confirmed:
        self.steps.doing("speed")
        found = self.bench.confirmed(self._build(choices), precision, self.budget)
        self.steps.did("speed")
        return found

    def _confirmed_drop(self) -> list[Choice]:
        """Shrink step by step, in an order settled beforehand, up to the first that is refused."""
        task, bound = self.inputs.evaluation, self.budget.wanted
        examples = check_enough(task, self.inputs.calibration)
        best: list[Choice] | None = None
        for share in SHARES:
            choices = self.shrinking.to(self.whole_cost * (1 - share), rounds=1)
            small = self._build(choices)
            outputs = self.bench.task_of(small).outputs(small)
            self.steps.did("measured")
            found = self.bench.judge.loss(outputs, examples, bound)
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
        near = self.bench.int8_distance(
            self._build(first), self.calibration, self.shrinking.targets
        )
        self.shrinking.costs = whole
        total = whole.total(self.shrinking.layers, self.shrinking.counts)
        least = [0 if item.kind == HEADS else 32 for item in self.shrinking.layers]
        if total > limit >= whole.total(self.shrinking.layers, least):
            second = self.shrinking.to(limit, max(1, rounds // 2))
            if self.shrinking.distance() < near:
                return second, "float32"
        self.shrinking.restore(first)
        return first, "int8"

    def _room(self, speed: Confirmed) -> float:
        """Return by which factor the time may rise; below 1 it has to fall."""
        if self.budget.name == "ms":
            return self.budget.wanted / (speed.ms_high or speed.ms_cut)
        return (speed.low or speed.ratio) / self.budget.wanted

    def _fewer_layers(self, limit: float) -> tuple[LoadedModel, tuple[Layer, ...]]:
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
        found: tuple[LoadedModel, tuple[Layer, ...]] = base, ()
        for model, gone in fewer_layers(base, distance, lambda _: False, lambda: None):
            now = distance(model)
            self.steps.did("round")
            if now >= best:
                break
            best, found = now, (model, gone)
        return found

    def _build(self, choices: Sequence[Choice]) -> LoadedModel:
        """Cut the model for real; it must equal the one with zeros."""
        if self._built is None or self._built[0] is not choices:
            small = build(self.base, choices)
            self.zeroed_difference = check_equal(small, self.shrinking.zeroed, self.calibration)
            self._built = choices, small
        return self._built[1]

    def _measured(self, model: LoadedModel, precision: str) -> Measured:
        self.steps.doing("measured")
        found = self.bench.measured(model, precision)
        self.steps.did("measured")
        return found

    def _share(self, what: str, share: float) -> None:
        self.steps(what, round(1000 * share), 1000)

    # --- what it is compared with ---------------------------------------------------------------

    def _controls(self, base: LoadedModel, choices: Sequence[Choice]) -> Iterator[MixModel]:
        """Yield every model that the mix is compared with, measured."""
        mix, seed = self.shrinking, self.options.seed
        cost = self.costs.total(mix.layers, mix.counts)
        every = mix if base is self.base else self._shrinking(base)
        for c in on_the_way(base, every, cost, self.kinds):
            yield self._compared(c.name, c.model, c.detail, c.curve)
        if self.kinds:
            for c in random_mixes(self.base, mix, choices, seed):
                yield self._compared("random", c.model, "as many units, drawn at random; refitted")
        yield from self._whole_layers(base, cost)
        if base is not self.whole:
            yield self._compared("vocabulary", base, "nothing else removed")
        if "int8" in self.units:
            measured = self._measured(self.whole, "int8")
            yield self._model("int8", "int8", self.whole, measured, "int8")

    def _whole_layers(self, base: LoadedModel, cost: float) -> Iterator[MixModel]:
        def quality(model: LoadedModel) -> float:
            return distance_to(model, self.calibration, self.shrinking.targets)

        def enough(model: LoadedModel) -> bool:
            return self._cost(model) <= cost

        for model, gone in fewer_layers(base, quality, enough, lambda: None):
            names = ", ".join(sorted(map(layer_words, gone)))
            yield self._compared("layers", model, f"without {names}")

    def _compared(
        self, name: str, model: LoadedModel, detail: str, curve: str | None = None
    ) -> MixModel:
        measured = self._measured(model, "float32")
        return self._model(name, curve or name, model, measured, "float32", detail)

    def _whole_model(self) -> MixModel:
        baseline = self.bench.judge.baseline()
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
        return measured.model(
            name,
            curve,
            self._arithmetic(model) / self._arithmetic(self.whole),
            self.bench.megabytes(model, precision),
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

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - start


def _sides(examples: Examples, task: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the texts that a task reads, and those that a decoder is to write."""
    if task == "seq2seq":
        return examples.first, examples.second or ()
    return (lines_of(examples) if task == "mlm" else examples.texts), ()


def _sure(speed: Confirmed) -> bool:
    """Whether the interval of a ratio is narrow."""
    return speed.low is not None and speed.high is not None and speed.high < 1.08 * speed.low
