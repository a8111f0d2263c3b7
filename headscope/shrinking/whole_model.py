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
from headscope.shrinking.bench import RUINED, Bench
from headscope.shrinking.elsewhere import as_model
from headscope.shrinking.result import MeasuredModel, Target
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

    def measure(self, runtimes: Sequence[str]) -> None:
        """Measure torch and every form of the runtimes, and choose the teacher."""
        candidates = [form for form in FORMS if form == TORCH or form.runtime in runtimes]
        for i, form in enumerate(candidates):
            self._tell("whole model", i, len(candidates))
            self._measure_form(form)
        usable = [form for form in self.distances if form.runtime in runtimes] or [TORCH]
        self.forms = sorted(usable, key=self._speed, reverse=True)
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
