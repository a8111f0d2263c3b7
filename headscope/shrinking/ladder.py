"""The ladder of ``headscope shrink``, rung by rung, until one reaches the target.

1. The whole model in every runtime and precision that there is, timed and measured.
2. Narrower feed-forward networks in every layer, down to half of their neurons, distilled from the
   whole model's own outputs; where that is not enough, fewer layers too.
3. For a size: fewer rows of the vocabulary, too.

What chooses reads calibration text only; the evaluation data judge what was chosen. The layers of a
target in speed follow from times, which no example can flatter. For ``max_drop`` alone models are
tested in an order that is settled beforehand, the easiest first, up to the first that loses too
much (:mod:`headscope.stats.confirm`), so no correction is due.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.files import sha256_of
from headscope.core.memory import give_back
from headscope.core.progress import Progress
from headscope.data.frequencies import COMMON_WORDS
from headscope.models.run.fingerprints import fingerprint
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers
from headscope.models.surgery.vocabulary import cut_vocabulary, plan_vocabulary, tokens_removed
from headscope.shrinking.bench import RUINED, Bench, as_model
from headscope.shrinking.distil import State, distil
from headscope.shrinking.layers import (
    counts_of,
    first_layers,
    layers_of,
    nearest_subsets,
    spread_evenly,
)
from headscope.shrinking.neurons import (
    MULTIPLE,
    TEXTS,
    first_neurons,
    multiple,
    narrowed,
    width_of,
)
from headscope.shrinking.result import MeasuredModel, Target, Training
from headscope.shrinking.serving import FORMS, MIXED, SMALLEST, TORCH, Files, Form

#: Shares of the layers, and of the neurons of each, that models have which are tested for a largest
#: drop, the easiest first.
SHARES = ((1, 3 / 4), (1, 1 / 2), (2 / 3, 1 / 2), (1 / 2, 1 / 2), (1 / 3, 1 / 2), (0, 1 / 2))
NARROWEST = 1 / 2  # Share of the neurons that stay before a whole layer goes
#: How much faster a model becomes at most with half of its neurons: usually two thirds of the work
#: are theirs.
HALF_GAINS = 1.6
OFTEN = 5  # Times that a word is in the text whose pieces the smallest vocabulary keeps
ROUNDING = 1e-5  # A mean loss on calibration text up to which a form is the model itself
TIMED = 16  # Texts that calibrate 8 bits of a model that is only timed
#: A model is trained only if its speed reaches so many times what was asked: one that only just
#: reaches it misses it as often as not when it is timed again.
SPARE = 1.02
#: Sets of layers that are trained briefly beside the evenly spread one, and the share of the
#: minutes that each of them has.
NEAREST = 2
BRIEFLY = 0.1


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a smaller model."""

    base: LoadedModel  # The whole model, or the same with fewer rows of the vocabulary
    layers: int  # Of its longest stack
    width: int  # Neurons of each feed-forward network; 0 where they cannot be taken apart

    @property
    def narrower(self) -> bool:
        """Whether it has fewer neurons than its base."""
        return 0 < self.width < width_of(self.base)


class Ladder:
    """What was measured so far, and what was chosen of it."""

    def __init__(
        self,
        bench: Bench,
        runtimes: tuple[str, ...],
        *,
        target: Target | None,
        max_drop: float | None,
        minutes: float,
        save: Path | None,
        tell: Progress,
    ) -> None:
        self.bench = bench
        self.target = target
        self.max_drop = max_drop
        self._minutes = minutes
        self._save = save
        self._tell = tell
        self.models: list[MeasuredModel] = []
        self.refused: list[str] = []
        self.chosen: int | None = None
        self.best: Files | None = None
        self.reached = False
        self.stopped = ""
        self._lost: dict[Form, float] = {}  # Mean loss on calibration text
        self._respelled: dict[int, float] = {}  # By the rows that are left: texts, as a share
        self._low: bool | None = None  # Whether bfloat16 trains faster; None before it was tried
        self._runtimes = runtimes
        #: Forms in which a model is served, the fastest first once the full model is timed.
        self._forms = [
            form
            for form in FORMS
            if form == TORCH or (form.runtime in runtimes and (form != SMALLEST or self._for_size))
        ]

    @property
    def _for_size(self) -> bool:
        return self.target is not None and self.target.name == "mb"

    @property
    def form(self) -> Form:
        """The form of the model that was chosen."""
        assert self.chosen is not None
        return Form(self.models[self.chosen].runtime, self.models[self.chosen].precision)

    def climb(self) -> None:
        """Go up the rungs until one reaches the target."""
        self._whole_model()
        if self.target is None and self.max_drop is None:
            self.stopped = "No target was given, so nothing was removed."
        elif self.target is None:
            self._smallest_that_keeps()
        elif not self._whole_reaches():
            self._smaller()

    def forget(self) -> None:
        """Delete the saved state of training: the model is saved."""
        if (state := self._state(Shape(self.bench.full_model, 0, 0))) is not None:
            state.path.unlink(missing_ok=True)

    # --- the first rung -------------------------------------------------------------------------

    def _whole_model(self) -> None:
        """Measure the whole model in every form that a runtime does not refuse.

        One form is open at a time: together they would take several times the model's memory.
        """
        bench = self.bench
        files = self.bench.files_of_whole
        full_model = self.bench.full_model
        wanted, self._forms = self._forms, []
        for i, form in enumerate(wanted):
            self._tell("whole model", i, len(wanted))
            if form == MIXED and self._int8_misses():
                self.refused.append(
                    f"{form}, since int8 alone is openvino's fastest form and misses the target."
                )
                continue
            try:
                served = files.served(form)
            except (UnsupportedModelError, InputError) as error:
                self.refused.append(str(error))
                continue
            lost = bench.distance(full_model, served)
            if lost <= RUINED:  # by calibration text: the evaluation data choose nothing
                times = bench.times(full_model, served)
                # On text of another kind all forms are compared where nothing is searched for.
                all_of_it = lost > ROUNDING and self.target is None and self.max_drop is None
                measured = bench.measured(
                    files, form, times, elsewhere=all_of_it, exact=lost <= ROUNDING
                )
                self.models.append(measured)
                self._forms.append(form)
                self._lost[form] = lost
            else:
                self.refused.append(
                    f"{form} ruins the model: its outputs are {lost:.2g} from the whole model's on "
                    f"calibration text, more than {RUINED:g}."
                )
            files.release()
            del served
            give_back()
        usable = [form for form in self._forms if form.runtime in self._runtimes]
        self._forms = sorted(usable or [TORCH], key=lambda f: -(self._model(f).speed.value or 0.0))
        exact = [f for f in self._forms if f.precision == "float32" and self._lost[f] <= ROUNDING]
        if exact:  # the same outputs, sooner
            bench.teacher = as_model(full_model, files.served(exact[0]))
            files.release()
        self._compare_elsewhere(self._forms[0])

    def _int8_misses(self) -> bool:
        """Whether int8 is openvino's fastest form and misses the target.

        With fewer maps in 8 bits it would be slower and larger.
        """
        forms = [model for model in self.models if model.runtime == "openvino"]
        fastest = max(forms, key=lambda model: model.speed.value or 0.0, default=None)
        if self.target is None or fastest is None:
            return False
        return fastest.precision == "int8" and not fastest.reaches(self.target)

    def _compare_elsewhere(self, form: Form) -> None:
        """Compare a form of the full model with it on text of another kind, unless it is exact."""
        model = self._model(form)
        files = self.bench.files_of_whole
        if not model.elsewhere and self._lost.get(form, 0.0) > ROUNDING:
            elsewhere = self.bench.elsewhere(self.bench.full_model, files.served(form))
            self.models[self.models.index(model)] = dataclasses.replace(model, elsewhere=elsewhere)
            files.release()

    def _whole_reaches(self) -> bool:
        """Take the form of the whole model that reaches the target and loses least, if any does.

        Calibration text says which that is: it is the only one whose loss is tested, and if that is
        too much, a smaller model would lose more.
        """
        good = [form for form in self._forms if self._model(form).reaches(self.target)]
        if not good:
            return False
        form = min(good, key=lambda form: self._lost[form])
        model = self._choose(form)
        self.reached = model.keeps(self.max_drop)
        self.stopped = f"The whole model in {form} reaches the target, so nothing was removed."
        if not self.reached:
            self.stopped = (
                f"The whole model in {form} reaches the target, but {self._excess(model)}; a "
                "smaller model would lose more: allow more, or give more examples."
            )
        return True

    def _model(self, form: Form) -> MeasuredModel:
        return next(
            m for m in self.models if (m.runtime, m.precision) == (form.runtime, form.precision)
        )

    # --- a smaller model ------------------------------------------------------------------------

    def _smaller(self) -> None:
        """Find how many layers reach the target, train that model, measure it."""
        form = self._forms[0]
        if self._for_size:
            form = min(self._forms, key=lambda form: self._model(form).megabytes)
        if (shape := self._that_reaches(form)) is None:
            return
        if (share := self._respelled.get(shape.base.vocab_size)) is not None:
            self.bench.texts.warnings.append(
                f"{share:.1%} of the texts that are measured on need a piece that the smaller "
                "vocabulary lacks; it is spelled in smaller pieces there."
            )
        files, training = self._trained(shape)
        model = self._measured(files, form, training)
        self.models.append(model)
        self.chosen = len(self.models) - 1
        self.best = files
        self.reached = model.reaches(self.target) and model.keeps(self.max_drop)
        what = model.parts(self.models[0])
        if self.reached:
            self.stopped = f"No form of the whole model reaches the target; {what} in {form} do."
        elif not model.keeps(self.max_drop):
            self.stopped = (
                f"{what} in {form} reach the target, but {self._excess(model)}: allow more, give "
                "more minutes, or more text of the kind that the model will read."
            )
        else:
            hint = " Its training is kept: ask for a little less, and the run goes on from there."
            self.stopped = (
                f"{what} in {form} came nearest to the target and miss it: {model.extent}."
                f"{'' if self._save is None else hint}"
            )

    def _that_reaches(self, form: Form) -> Shape | None:
        """Return the largest shape that reaches the target; None where none does."""
        full_model, *smaller = self._bases()
        counts = self._counts(full_model, form)
        # Rows that the text does not need cost least; half of the layers go before rows of words
        # that are in it.
        *first, last = smaller if len(smaller) == 2 else [full_model, *smaller]
        tried = [(base, n) for base in first for n in counts if 2 * n >= counts[0]]
        tried += [(last, n) for n in counts]
        nearest = ""
        for i, (base, count) in enumerate(tried):
            self._tell("choosing a size", i, len(tried))
            model = first_layers(base, count)
            width = width_of(model)
            narrowest = multiple(NARROWEST * width)
            can = 0 < narrowest < width
            cost, nearest = self._cost(first_neurons(model, narrowest) if can else model, form)
            if cost > self._limit:
                continue
            if not can:
                return Shape(base, count, width)
            # The cost is nearly linear between this width and the full one; the model of the width
            # that this line gives is timed before it is taken.
            of_full, _ = self._cost(model, form)
            if of_full <= self._limit:
                return Shape(base, count, width)
            share = (self._limit - cost) / (of_full - cost)
            wider = narrowest + int(share * (width - narrowest)) // MULTIPLE * MULTIPLE
            while wider > narrowest:
                if self._cost(first_neurons(model, wider), form)[0] <= self._limit:
                    break
                wider = max(narrowest, wider - 2 * MULTIPLE)
            return Shape(base, count, wider)
        self.stopped = (
            f"Nothing reaches the target: the nearest, one layer in {form}, has {nearest}; "
            "ask for less, or allow another runtime."
        )
        return None

    def _counts(self, base: LoadedModel, form: Form) -> list[int]:
        """List the numbers of layers to try, most first, without those that are surely too slow."""
        counts = counts_of(base)
        target = self.target
        counts = [max(map(len, layers_of(base).values())), *counts]
        if target is None or target.name != "speed":
            return counts
        speed = self._model(form).speed.value or 1.0
        return [
            count for count in counts if speed * HALF_GAINS * counts[0] / count >= target.value
        ] or counts[-1:]

    def _bases(self) -> Iterator[LoadedModel]:
        """Yield the whole model and, for a size, those with ever smaller vocabularies."""
        full_model = self.bench.full_model
        texts = self.bench.texts
        yield full_model
        if not self._for_size or not texts.plain or full_model.task_head in ("mlm", "seq2seq"):
            return
        lines = texts.training.texts
        words = Counter(re.findall(r"\w+", " ".join(lines)))
        often = " ".join(word for word, count in words.items() if count >= OFTEN)
        for sources, common in ((lines, COMMON_WORDS), ([often], COMMON_WORDS // 2)):
            plan = plan_vocabulary(full_model, sources, common=common)
            if plan.rows < plan.rows_before:
                base = cut_vocabulary(full_model, plan)
                removed = tokens_removed(full_model, plan, texts.evaluation.texts)
                self._respelled[base.vocab_size] = removed.share_texts or 0.0
                yield base

    @property
    def _limit(self) -> float:
        """What :meth:`_cost` may be: MB, milliseconds, or a share of the whole model's time."""
        assert self.target is not None
        value = self.target.value
        return {"mb": value, "ms": value / SPARE, "speed": 1 / (SPARE * value)}[self.target.name]

    def _cost(self, model: LoadedModel, form: Form) -> tuple[float, str]:
        """Return what a model of this size, not yet trained, costs, and say it in words.

        Of an interval the worse end counts; an unknown cost is infinite.
        """
        assert self.target is not None
        files = self.bench.files(model, texts=TIMED)
        served = files.served(form)
        size = files.megabytes(form)
        if self._for_size:
            cost = size
            words = f"{size:.1f} MB"
        else:
            speed, ms, _ = self.bench.times(model, served)
            if self.target.name == "ms":
                cost = ms.high or math.inf
                words = f"{ms.value:.2f} ms a text"
            else:
                cost = 1 / (speed.low or 1e-9)
                words = f"{speed.value:.2f} times the speed"
        files.close()
        return cost, words

    def _trained(self, shape: Shape) -> tuple[Files, Training | None]:
        """Choose which layers and neurons stay, and distil what is left."""
        bench = self.bench
        minutes = self._minutes
        base = shape.base
        fewer = bool(spread_evenly(base, shape.layers))
        if not fewer and not shape.narrower and bench.distance(base, base) <= ROUNDING:
            return bench.files(base), None  # only rows that no text needs are removed
        bench.files_of_whole.release()  # what runtimes hold is not needed while training
        give_back()
        state = self._state(shape)
        held = None if state is None else state.read()
        removed = ()
        spent = 0.0
        if held is not None:  # an interrupted run had chosen already
            removed = tuple(held["removed"])
            spent = float(held["spent"])
            model = remove_layers(base, removed)
        else:
            sets = self._sets(base, shape.layers) if fewer else [()]
            removed = sets[0]
            model = remove_layers(base, sets[0])
            if minutes > 0 and len(sets) > 1:
                each = BRIEFLY * minutes
                spent = BRIEFLY * minutes * len(sets)
                tried = (
                    (*self._distilled(remove_layers(base, removed), each, each * i), removed)
                    for i, removed in enumerate(sets)
                )
                model, _, removed = min(tried, key=lambda item: item[1].after)
        if shape.narrower:
            self._tell("choosing neurons", 0, 1)
            rows = bench.texts.rows(model)
            drawn = random.Random(bench.seed).sample(rows, min(TEXTS, len(rows)))
            model = narrowed(model, shape.width, drawn)
        if minutes == 0:
            return bench.files(model), None
        if state is not None:
            state = dataclasses.replace(state, removed=removed, spent=spent)
        model, training = self._distilled(model, minutes - spent, spent, state)
        return bench.files(model), dataclasses.replace(training, minutes=spent + training.minutes)

    def _sets(self, base: LoadedModel, count: int) -> list[tuple[Any, ...]]:
        """List candidate sets of layers to remove: the nearest first, and the evenly spread one."""

        def distance(model: LoadedModel) -> float:
            return self.bench.distance(model, model, most=128)

        sets = nearest_subsets(
            base, count, distance, lambda i, n: self._tell("choosing layers", i, n)
        )
        even = set(spread_evenly(base, count))
        return [*sets[:NEAREST], *(gone for gone in sets[NEAREST:] if set(gone) == even)]

    def _distilled(
        self, small: LoadedModel, minutes: float, spent: float, state: State | None = None
    ) -> tuple[LoadedModel, Training]:
        """Train for some of the minutes; ``spent`` are those used before."""
        bench = self.bench

        def tell(share: float) -> None:
            done = (spent + share * minutes) / self._minutes
            self._tell("distilling", round(1000 * done), 1000)

        model, training = distil(
            small,
            bench.teacher,
            (bench.texts.rows(small), bench.texts.rows(bench.full_model)),
            minutes,
            seed=bench.seed,
            state=state,
            known=bench.known,
            low=self._low,
            tell=tell,
        )
        self._low = training.arithmetic == "bfloat16"
        return model, training

    def _state(self, shape: Shape) -> State | None:
        """Return the file in which training is saved, next to the folder that is to be saved."""
        if (folder := self._save) is None:
            return None
        texts = self.bench.texts
        what = (
            self.bench.full_model.name,
            fingerprint(self.bench.full_model.network),
            shape.base.vocab_size,
            shape.layers,
            shape.width,
            texts.training.sha256,
            len(texts.training),
            self._minutes,
            self.bench.seed,
        )
        return State(folder.with_name(f".{folder.name}.training"), sha256_of(repr(what)))

    def _measured(self, files: Files, form: Form, training: Training | None) -> MeasuredModel:
        self._tell("smaller model", 0, 1)
        served = files.served(form)
        target = self.target
        times = self.bench.times(files.model, served)
        if target is not None and target.missed_by_interval(times.speed, times.ms):
            times = self.bench.times(files.model, served, longer=2)
        return self.bench.measured(files, form, times, training)

    # --- the smallest model within max_drop -----------------------------------------------------

    def _smallest_that_keeps(self) -> None:
        """Test forms of the whole model, then ever smaller models, each up to the first refusal.

        Calibration text has put the forms in order, the least lossy first.
        """
        confirmed: list[Form] = []
        refused: MeasuredModel | None = None
        for form in sorted(self._forms, key=lambda f: self._lost[f]):
            if not self._model(form).keeps(self.max_drop):
                refused = self._model(form)
                break
            confirmed.append(form)
        form = next((f for f in self._forms if f in confirmed), TORCH)
        self._choose(form)
        if refused is not None and form != self._forms[0]:
            self.stopped = (
                f"The whole model in {refused.form}: {self._excess(refused)}, so it stays whole, "
                f"in {form}."
            )
            return
        self.stopped = f"The whole model in {form} keeps to it."
        full_model = self.bench.full_model
        longest = max(map(len, layers_of(full_model).values()))
        width = width_of(full_model)
        shapes = [
            Shape(
                full_model,
                max(1, round(share * longest)),
                min(width, multiple(neurons * width)),
            )
            for share, neurons in SHARES
        ]
        sizes = {(s.layers, s.width): s for s in shapes if s.layers < longest or s.narrower}
        for shape in sizes.values():
            files, training = self._trained(shape)
            model = self._measured(files, form, training)
            self.models.append(model)
            if not model.keeps(self.max_drop):
                parts = model.parts(self.models[0])
                self.stopped = f"{parts}: {self._excess(model)}, so less was not tried."
                files.close()
                return
            self.best = files
            self.chosen = len(self.models) - 1
            self.stopped = "The smallest model that is tried keeps to it."

    def _excess(self, model: MeasuredModel) -> str:
        return model.excess(self.bench.task.metric, self.max_drop)

    def _choose(self, form: Form) -> MeasuredModel:
        """Take the whole model in one form."""
        self._compare_elsewhere(form)
        model = self._model(form)
        self.chosen = self.models.index(model)
        self.best = self.bench.files_of_whole
        self.reached = True
        return model
