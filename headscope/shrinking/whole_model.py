"""The first rung of ``headscope shrink``: the whole model in every form that a runtime serves.

A *form* is a runtime and a precision, such as openvino int8. How far its outputs are from those in
torch is said by two things: the *distance*, a mean loss on calibration text by which forms are
chosen; and the metric on the evaluation data, by which they are judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.removal.times import Times
from headscope.shrinking.bench import RUINED, Bench, timed_fields
from headscope.shrinking.elsewhere import as_model
from headscope.shrinking.result import MOVED, Lead, MeasuredModel, Target, unsteady
from headscope.shrinking.serving import FORMS, TORCH, Form

ROUNDING = 1e-5  # A form whose distance is no larger is exact: the model itself up to rounding


class WholeModel:
    """The whole model in each form that no runtime refused, measured one after the other."""

    def __init__(self, bench: Bench, *, compare_all: bool, tell: Progress) -> None:
        self._bench = bench
        #: Whether every form is compared with torch on text of another kind too; else only forms
        #: for which :meth:`compare_elsewhere` is called
        self._compare_all = compare_all
        self._tell = tell
        self.models: list[MeasuredModel] = []  # In torch first
        self.refused: list[str] = []  # Sentences about forms that are not used
        self.distances: dict[Form, float] = {}  # Mean loss on calibration text
        self.forms: list[Form] = []  # Usable forms of the runtimes asked for, the fastest first
        self.lead: Lead | None = None  # The two fastest, timed in turns

    def measure(self, runtimes: Sequence[str]) -> None:
        """Measure torch and every form of the runtimes, and choose the teacher."""
        candidates = [form for form in FORMS if form == TORCH or form.runtime in runtimes]
        for i, form in enumerate(candidates):
            self._tell("whole model", i, len(candidates))
            self._measure_form(form)
        self._time_disturbed_again()
        usable = [form for form in self.distances if form.runtime in runtimes] or [TORCH]
        self.forms = sorted(usable, key=self._speed, reverse=True)
        self._time_finalists()
        self._choose_teacher()
        self.compare_elsewhere(self.forms[0])

    def _measure_form(self, form: Form) -> None:
        """Open one form, measure it, and close it: together they would take too much memory."""
        bench = self._bench
        files = bench.files_of_whole
        try:
            served = files.served(form)
        except (UnsupportedModelError, InputError) as error:
            self.refused.append(str(error))
            return
        distance = 0.0  # of the model from itself
        if served is not bench.full_model:
            distance = bench.distance(bench.full_model, served)
        if distance <= RUINED:
            exact = distance <= ROUNDING
            model = bench.measured(
                files,
                form,
                bench.times(bench.full_model, served),
                elsewhere=self._compare_all and not exact,
                exact=exact,
            )
            self.models.append(model)
            self.distances[form] = distance
        else:
            self.refused.append(
                f"{form} ruins the model: its outputs are {distance:.2g} from the whole model's on "
                f"calibration text, more than {RUINED:g}."
            )
        files.release()
        del served
        release_memory()

    def _time_disturbed_again(self) -> None:
        """Time forms once more beside which torch was slower than beside another form.

        Something else ran on the machine then, and took more from one of the two than from the
        other.
        """
        if not unsteady(self.models):
            return
        paces = {form: self.model(form).ms_of_whole.value for form in self.distances}
        known = {form: pace for form, pace in paces.items() if pace is not None and form != TORCH}
        disturbed = [form for form in known if known[form] > MOVED * min(known.values())]
        bench = self._bench
        for i, form in enumerate(disturbed):
            self._tell("whole model, timed again", i, len(disturbed))
            served = bench.files_of_whole.served(form)
            self._replace(form, bench.times(bench.full_model, served))
            bench.files_of_whole.release()

    def _time_finalists(self) -> None:
        """Let the two fastest forms take turns with torch and with each other.

        Their order, and their speeds, are those of these rounds.
        """
        finalists = [form for form in self.forms if form != TORCH][:2]
        if len(finalists) < 2:
            return
        self._tell("whole model, the two fastest", 0, 1)
        bench = self._bench
        files = bench.files_of_whole
        together = bench.times_together([files.served(form) for form in finalists])
        files.release()
        release_memory()
        for form, times in zip(finalists, together.times, strict=True):
            self._replace(form, times)
        lead = together.lead(0, 1)
        if lead.value is not None and lead.value < 1:
            finalists.reverse()
            lead = together.lead(1, 0)
        self.lead = Lead(str(finalists[0]), str(finalists[1]), lead)
        slower_forms = [form for form in self.forms if form not in finalists]
        self.forms = [*finalists, *slower_forms]
        if TORCH in slower_forms and self._speed(finalists[0]) < 1:  # torch is faster than both
            self.forms.remove(TORCH)
            self.forms.insert(0, TORCH)

    def _replace(self, form: Form, times: Times) -> None:
        """Put other times in the place of those that were measured of a form."""
        model = self.model(form)
        timed = dataclasses.replace(model, **timed_fields(times))
        self.models[self.models.index(model)] = timed

    def _choose_teacher(self) -> None:
        """Let distillation learn from the fastest float32 form that is exact.

        Its file gives the whole model's own outputs sooner than torch does.
        """
        bench = self._bench
        for form in self.forms:
            if form.precision == "float32" and self.distances[form] <= ROUNDING:
                served = bench.files_of_whole.served(form)
                bench.teacher = as_model(bench.full_model, served)
                bench.files_of_whole.release()
                return

    def compare_elsewhere(self, form: Form) -> None:
        """Compare a form with torch on text of another kind, unless it is exact."""
        model = self.model(form)
        if model.elsewhere or self.distances[form] <= ROUNDING:
            return
        bench = self._bench
        files = bench.files_of_whole
        elsewhere = bench.elsewhere(bench.full_model, files.served(form))
        self.models[self.models.index(model)] = dataclasses.replace(model, elsewhere=elsewhere)
        files.release()

    def model(self, form: Form) -> MeasuredModel:
        """Return what was measured of one form."""
        return next(model for model in self.models if model.form == str(form))

    def _speed(self, form: Form) -> float:
        return self.model(form).speed.value or 0.0

    def smallest(self) -> Form:
        """Return the form that takes fewest megabytes."""
        return min(self.forms, key=lambda form: self.model(form).megabytes)

    def least_lossy_first(self) -> list[Form]:
        """Order all measured forms by their distance on calibration text."""
        return sorted(self.forms, key=self.distances.__getitem__)

    def least_lossy_that_reaches(self, target: Target) -> Form | None:
        """Return the form that reaches a target and loses least; None where none reaches it."""
        for form in self.least_lossy_first():
            if self.model(form).reaches(target):
                return form
        return None
