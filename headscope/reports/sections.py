"""The sections of one run, on one model that is loaded and validated once.

The function behind a section has its name: ``headscope.NAME``. Its options are the section's
settings, and their class says what a report has to know of it: ``report_defaults()`` the settings
that differ in a report, ``widest_dtype`` that it computes in the device's widest type, whatever the
others use. Results of other sections come in through the options ``roles`` (what classify found)
and ``sections`` (everything).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import CheckFailedError, InputError, UnsupportedModelError
from headscope.core.memory import release_memory
from headscope.core.options import ThresholdSet, options_of
from headscope.core.progress import Progress, progress_of_part, silent
from headscope.models.load.loading import load
from headscope.models.run.devices import widest_dtype
from headscope.models.run.fingerprints import unchanging
from headscope.models.run.loaded import LoadedModel
from headscope.reports.registry import Sections
from headscope.session.opening import Model
from headscope.session.options import ModelOptions

#: Parameters that are no settings: a run of sections decides them, or they name or make files.
_NO_SETTINGS = {
    "validate",
    "progress",
    "command",
    "settings",
    "sections",
    "state",
    "resume",
    "folder",
    "save",
}
#: A model's name or folder, and with what options it is opened.
Source = tuple[str, Mapping[str, Any]]


def _plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold, files by their names."""
    if hasattr(value, "sha256"):
        return str(value.name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@dataclass(frozen=True)
class SectionRun:
    """What the sections of one run share."""

    loaded: LoadedModel  # The model of all sections.
    #: Arguments by section, where they are not the defaults.
    settings: Mapping[str, Mapping[str, Any]]
    seed: int  # Of every section that is not given another.
    command: str  # Recorded in the results.
    check: bool = True  # Whether the model must be validated.
    progress: Progress = silent  # Told ("section, what", done, total).
    source: Source | None = None  # None for a model that was handed over in memory

    def __post_init__(self) -> None:
        for name, table in self.settings.items():
            check_settings(name, table)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a section that are not its function's defaults."""
        arguments: dict[str, Any] = {"seed": self.seed} if "seed" in _parameters(name) else {}
        return {**arguments, **_options(name).report_defaults(), **self.settings.get(name, {})}

    def changed(self, name: str) -> dict[str, Any]:
        """Return the arguments that differ from what a report does by default, as plain values."""
        defaults: dict[str, Any] = {
            key: parameter.default for key, parameter in _parameters(name).items()
        }
        defaults |= _options(name).report_defaults()
        changed: dict[str, Any] = {}
        for key, value in self.arguments(name).items():
            if isinstance(value, ThresholdSet):
                difference = _changed_thresholds(value)
                if difference:
                    changed[key] = difference
            elif _plain(value) != _plain(defaults[key]):
                changed[key] = _plain(value)
        return changed

    def shared(self, name: str, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that a section takes of this run, and of sections before it."""
        shared = {
            "validate": self.check,
            "progress": progress_of_part(name, self.progress),
            "roles": results.get("classify"),
            "sections": Sections(**results),
            "settings": self.settings,
        }
        if _options(name).widest_dtype:
            shared["dtype"] = widest_dtype(self.loaded.device)
        taken = _parameters(name)
        return {key: value for key, value in shared.items() if key in taken and value is not None}


def _changed_thresholds(thresholds: ThresholdSet) -> dict[str, Any]:
    """Return the thresholds that are not the documented ones."""
    documented = _plain(type(thresholds)())
    return {name: value for name, value in _plain(thresholds).items() if value != documented[name]}


@dataclass(frozen=True)
class SectionResults:
    """What a run measured."""

    sections: Sections  # The results.
    #: Sections that this model does not allow, or whose own check failed, and why.
    left_out: dict[str, str]
    failed: tuple[str, ...]  # Those of them whose own check failed


def run_sections(names: Iterable[str], run: SectionRun) -> SectionResults:
    """Run sections in the order given; what they have in common is computed once."""
    results: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    failed: list[str] = []
    with unchanging(run.loaded.network):
        for name in names:
            shared = run.shared(name, results)
            arguments = {**shared, **run.arguments(name), "command": run.command}
            try:
                with _model_in(arguments.get("dtype"), run) as (model, loading):
                    results[name] = COMMANDS[name].function(model, **loading, **arguments)
            except UnsupportedModelError as error:
                left_out[name] = str(error)
            except CheckFailedError as error:
                left_out[name] = str(error)
                failed.append(name)
            release_memory()  # what one section has freed, before the next one grows
    return SectionResults(Sections(**results), left_out, tuple(failed))


def source_of(model: Model, loaded: LoadedModel, options: ModelOptions) -> Source | None:
    """Return how a model that was opened by its name can be opened again in another type."""
    if not isinstance(model, str | Path):
        return None
    decided = ("dtype", "needs")  # by whoever opens it
    loading = {key: value for key, value in options.loading.items() if key not in decided}
    return str(model), {**loading, "task_head": loaded.task_head}


@contextmanager
def _model_in(dtype: str | None, run: SectionRun) -> Iterator[tuple[Model, Mapping[str, Any]]]:
    """Give a section the model, or its name and how to open it where it computes in another type.

    The weights of the model are freed meanwhile and read again, so that it is in memory once.
    """
    if dtype in (None, run.loaded.dtype) or run.source is None:
        yield run.loaded, {}
        return
    name, options = run.source
    weights = tuple(run.loaded.network.parameters())
    for weight in weights:
        weight.data = weight.data.new_empty(0)
    try:
        yield name, options
    finally:
        again = load(name, dtype=run.loaded.dtype, **options)
        if again.file != run.loaded.file:
            raise InputError(
                f"The files of {name} have changed since the report began, which measures one "
                "model; run it again."
            )
        for weight, read in zip(weights, again.network.parameters(), strict=True):
            weight.data = read.data


def _options(name: str) -> type[ModelOptions]:
    """Return a section's class of options."""
    kind: type[ModelOptions] = COMMANDS[name].options
    return kind


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a section's function, but for the model and those of loading."""
    parameters = inspect.signature(COMMANDS[name].function).parameters
    return {
        option: parameters[option]
        for option, declared in options_of(_options(name)).items()
        if not declared.marker.loading
    }


def check_settings(name: str, table: Mapping[str, Any]) -> None:
    """Refuse an unknown section, and settings that it does not have."""
    if name not in SECTIONS:
        raise InputError(f"There is no section {name!r} to set; known are {', '.join(SECTIONS)}.")
    settings = sorted(set(_parameters(name)) - _NO_SETTINGS)
    for key in table:
        if key not in settings:
            raise InputError(
                f"The section {name} has no setting {key!r}; known are {', '.join(settings)}."
            )
