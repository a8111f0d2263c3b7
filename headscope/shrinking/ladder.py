"""The ladder of ``headscope shrink``, rung by rung, until one reaches the target.

1. The whole model in every form (a runtime and a precision), timed and measured.
2. Narrower feed-forward networks in every layer, down to half of their neurons, distilled from the
   whole model's own outputs; where that is not enough, fewer layers too.

Everything is chosen on calibration text, or by times; the evaluation data only judge what was
chosen. With ``max_drop`` alone several models are judged. Their order is settled beforehand, the
easiest first, and the first that loses too much ends the search, so that no correction for several
tests is due (:mod:`headscope.stats.confirm`).

A ``Bench`` holds the whole model and the data, and measures any model in any form. ``WholeModel``
is the first rung, ``Maker`` makes the smaller models. :meth:`Ladder.climb` is the entry point.
"""

from __future__ import annotations

from collections.abc import Sequence

from headscope.core.progress import Progress
from headscope.models.run.loaded import LoadedModel
from headscope.removal.times import Times
from headscope.shrinking.bench import Bench
from headscope.shrinking.layers import longest_stack
from headscope.shrinking.making import Maker
from headscope.shrinking.neurons import rounded_up, width_of
from headscope.shrinking.result import MOVED, MeasuredModel, Target, Training, unsteady
from headscope.shrinking.serving import TORCH, Files, Form
from headscope.shrinking.sizes import Shape, largest_that_reaches
from headscope.shrinking.whole_model import WholeModel

#: The smaller models that are tested for ``max_drop``, the easiest first: their share of the
#: layers, and of the neurons of each layer. A share of 0 stands for one layer.
SHARES = ((1, 3 / 4), (1, 1 / 2), (2 / 3, 1 / 2), (1 / 2, 1 / 2), (1 / 3, 1 / 2), (0, 1 / 2))


class Ladder:
    """Climbs the rungs; holds what was measured so far, and what was chosen of it."""

    def __init__(
        self,
        bench: Bench,
        runtimes: Sequence[str],
        *,
        target: Target | None,
        max_drop: float | None,
        minutes: float,
        tell: Progress,
    ) -> None:
        self._bench = bench
        self._runtimes = runtimes
        self._target = target
        self._max_drop = max_drop
        self._tell = tell
        searches = target is not None or max_drop is not None
        self.whole = WholeModel(bench, compare_all=not searches, tell=tell)
        self._maker = Maker(bench, minutes, tell)
        self._smaller: list[MeasuredModel] = []
        self.best: MeasuredModel | None = None  # The model that was chosen
        self.files: Files | None = None  # Its files
        self.reached = False  # Whether the chosen model reaches the target and keeps to max_drop
        self.stopped = ""  # At which rung the search ended, and why: a sentence

    @property
    def models(self) -> tuple[MeasuredModel, ...]:
        """Every model that was measured; the first is the whole one in torch."""
        return (*self.whole.models, *self._smaller)

    @property
    def chosen(self) -> int | None:
        """Index of the chosen model in :attr:`models`."""
        return None if self.best is None else self.models.index(self.best)

    @property
    def form(self) -> Form:
        """The form of the model that was chosen."""
        assert self.best is not None
        return Form(self.best.runtime, self.best.precision)

    def climb(self) -> None:
        """Go up the rungs until one reaches the target."""
        self.whole.measure(self._runtimes)
        if self._target is not None:
            self._reach(self._target)
            self._need_steady_pace(self._target)
        elif self._max_drop is not None:
            self._keep_to_the_drop()
        else:
            self.stopped = "No target was given, so nothing was removed."

    # --- a target in speed, milliseconds or megabytes -------------------------------------------

    def _reach(self, target: Target) -> None:
        """Take a form of the whole model that reaches the target, or make a smaller model."""
        form = self.whole.least_lossy_that_reaches(target)
        if form is not None:
            self._take_whole_that_reaches(form)
        else:
            self._make_smaller(target)

    def _need_steady_pace(self, target: Target) -> None:
        """Take back that a target in time is reached where the machine did not keep its pace."""
        why = unsteady(self.models)
        if self.reached and target.name != "mb" and why:
            self.reached = False
            self.stopped = (
                f"{self.stopped.removesuffix('.')}; but {why}. Run it again when nothing else runs."
            )

    def _take_whole_that_reaches(self, form: Form) -> None:
        """Choose the whole model in one form, and test what it loses.

        No other form is tested: it loses least of those that reach the target. If that is too much,
        a smaller model would lose more.
        """
        model = self._take_whole(form)
        self.reached = model.keeps(self._max_drop)
        if self.reached:
            self.stopped = f"The whole model in {form} reaches the target, so nothing was removed."
        else:
            self.stopped = (
                f"The whole model in {form} reaches the target, but {self._excess(model)}; a "
                "smaller model would lose more: allow more, or give more examples."
            )

    def _make_smaller(self, target: Target) -> None:
        """Find the largest model that reaches the target, train it, and measure it."""
        # the size
        form = self.whole.smallest() if target.name == "mb" else self.whole.forms[0]
        shape, smallest_cost = largest_that_reaches(
            self._bench,
            form,
            target,
            speed=self.whole.model(form).speed.value or 1.0,
            tell=self._tell,
        )
        if shape is None:
            self.stopped = (
                f"Nothing reaches the target: the nearest, one layer in {form}, has "
                f"{smallest_cost}; ask for less, or allow another runtime."
            )
            return

        # the model of this size
        files, training = self._maker.make(shape)
        model = self._measured(files, form, training)
        self._take_smaller(model, files)

        # whether it is what was asked for
        reaches = model.reaches(target)
        keeps = model.keeps(self._max_drop)
        self.reached = reaches and keeps
        size = model.size(self.models[0])
        if self.reached:
            self.stopped = f"No form of the whole model reaches the target; {size} in {form} do."
        elif not keeps:
            self.stopped = (
                f"{size} in {form} reach the target, but {self._excess(model)}: allow more, give "
                "more minutes, or more text of the kind that the model will read."
            )
        else:
            self.stopped = (
                f"{size} in {form} came nearest to the target and miss it: {model.extent}."
            )

    def _measured(self, files: Files, form: Form, training: Training | None) -> MeasuredModel:
        """Measure a smaller model.

        It is timed anew, for longer, if its median reaches the target but not its interval, or if
        something else slowed torch beside it.
        """
        self._tell("smaller model", 0, 1)
        served = files.served(form)
        times = self._bench.times(files.model, served)
        target = self._target
        missed = target is not None and target.missed_by_interval(times.speed, times.ms)
        if missed or self._is_disturbed(times):
            times = self._bench.times(files.model, served, longer=2)
        model = self._bench.measured(files, form, times, training)
        self._smaller.append(model)
        return model

    def _is_disturbed(self, times: Times) -> bool:
        """Whether torch took longer beside a model than beside any form of the whole one."""
        paces = [model.ms_of_whole.value for model in self.whole.models if not model.is_whole]
        known = [pace for pace in paces if pace is not None]
        pace = times.ms_of_whole.value
        return bool(known) and pace is not None and pace > MOVED * min(known)

    # --- the smallest model within max_drop -----------------------------------------------------

    def _keep_to_the_drop(self) -> None:
        """Test forms of the whole model, then ever smaller models, each up to the first refusal.

        Calibration text has put the forms in order, the least lossy first.
        """
        # forms of the whole model
        confirmed: list[Form] = []
        refused: MeasuredModel | None = None
        for form in self.whole.least_lossy_first():
            model = self.whole.model(form)
            if not model.keeps(self._max_drop):
                refused = model
                break
            confirmed.append(form)
        fastest_first = [form for form in self.whole.forms if form in confirmed]
        form = fastest_first[0] if fastest_first else TORCH
        self._take_whole(form)
        self.reached = True

        # smaller models in that form, unless a faster one was refused
        if refused is not None and form != self.whole.forms[0]:
            self.stopped = (
                f"The whole model in {refused.form}: {self._excess(refused)}, so it stays whole, "
                f"in {form}."
            )
            return
        self.stopped = f"The whole model in {form} keeps to it."
        self._shrink_within_the_drop(form)

    def _shrink_within_the_drop(self, form: Form) -> None:
        """Make ever smaller models, up to the first that may lose too much."""
        for shape in _smaller_shapes(self._bench.full_model):
            files, training = self._maker.make(shape)
            model = self._measured(files, form, training)
            if not model.keeps(self._max_drop):
                size = model.size(self.models[0])
                self.stopped = f"{size}: {self._excess(model)}, so less was not tried."
                files.close()
                return
            self._take_smaller(model, files)
            self.stopped = "The smallest model that is tried keeps to it."

    # --- what is chosen -------------------------------------------------------------------------

    def _take_whole(self, form: Form) -> MeasuredModel:
        """Choose the whole model in one form."""
        self.whole.compare_elsewhere(form)
        self.best = self.whole.model(form)
        self.files = self._bench.files_of_whole
        return self.best

    def _take_smaller(self, model: MeasuredModel, files: Files) -> None:
        """Choose a smaller model, and the files that it is served from; the last one's go."""
        if self.files is not None and self.files is not self._bench.files_of_whole:
            self.files.close()
        self.best = model
        self.files = files

    def _excess(self, model: MeasuredModel) -> str:
        return model.excess(self._bench.task.metric, self._max_drop)


def _smaller_shapes(full_model: LoadedModel) -> list[Shape]:
    """List the sizes of :data:`SHARES` that are smaller than the whole model, each once."""
    all_layers = longest_stack(full_model)
    full_width = width_of(full_model)
    shapes: list[Shape] = []
    for share_of_layers, share_of_neurons in SHARES:
        layers = max(1, round(share_of_layers * all_layers))
        width = min(full_width, rounded_up(share_of_neurons * full_width))
        shape = Shape(layers, width)
        if shape != Shape(all_layers, full_width) and shape not in shapes:
            shapes.append(shape)
    return shapes
