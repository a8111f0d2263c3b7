"""The sections of one run, on one model that is loaded and validated once.

:func:`run_sections` calls the function of each section, ``headscope.NAME``. What it is called with
comes from :class:`SectionRun`: the settings that the user gave, the defaults that differ in a
report (``report_defaults()`` of the section's class of options), and what all sections share.
Results of earlier sections come in through the options ``roles`` (what classify found) and
``sections`` (everything).
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

#: Options that are no settings of a section: the run decides them, or they name or make files.
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
#: A model with more heads has those parts left out that run it several times for each head.
MANY_HEADS = 200
#: A model's name or folder, and the options that it is opened with.
Source = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SectionRun:
    """What the sections of one run share."""

    loaded: LoadedModel  # The model of all sections
    settings: Mapping[str, Mapping[str, Any]]  # By section, the arguments that the user gave
    seed: int  # Of every section whose settings have no other
    command: str  # Recorded in the results
    check: bool = True  # Whether the model must be validated
    progress: Progress = silent  # Called with ("section, step", done, total)
    source: Source | None = None  # None for a model that was handed over in memory

    def __post_init__(self) -> None:
        for name, table in self.settings.items():
            check_settings(name, table)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the settings of a section that its function does not have by default."""
        arguments: dict[str, Any] = {"seed": self.seed} if "seed" in _parameters(name) else {}
        return {**arguments, **self._defaults(name), **self.settings.get(name, {})}

    def _defaults(self, name: str) -> dict[str, Any]:
        """Return the defaults of a section that differ in a report of this model."""
        kind = _options(name)
        defaults = dict(kind.report_defaults())
        if self.n_heads > MANY_HEADS:
            defaults |= dict.fromkeys(kind.too_long_in_report, False)
        return defaults

    @property
    def n_heads(self) -> int:
        """Number of heads of the model in all layers."""
        return sum(site.n_heads for site in self.loaded.sites)

    def left_out(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield which parts of a section this model is too large for, and how to have them."""
        for option, what in _options(name).too_long_in_report.items():
            if self.n_heads > MANY_HEADS and option not in self.settings.get(name, {}):
                yield (
                    f"{name}: {what}",
                    f"it would take very long with {self.n_heads} heads; {option} = true under "
                    f"[{name}] in the config file asks for it.",
                )

    def changed(self, name: str) -> dict[str, Any]:
        """Return the settings that differ from a report's defaults, as plain values.

        These are recorded in the report.
        """
        defaults: dict[str, Any] = {
            key: parameter.default for key, parameter in _parameters(name).items()
        }
        defaults |= self._defaults(name)
        changed: dict[str, Any] = {}
        for key, value in self.arguments(name).items():
            if isinstance(value, ThresholdSet):
                changed_thresholds = _changed_thresholds(value)
                if changed_thresholds:
                    changed[key] = changed_thresholds
            elif _plain(value) != _plain(defaults[key]):
                changed[key] = _plain(value)
        return changed

    def shared(self, name: str, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that a section takes from this run and from earlier ``results``."""
        shared = {
            "validate": self.check,
            "progress": progress_of_part(name, self.progress),
            "roles": results.get("classify"),
            "sections": Sections(**results),
            "settings": self.settings,
        }
        if _options(name).widest_dtype:
            shared["dtype"] = widest_dtype(self.loaded.device)
        declared = _parameters(name)
        return {
            key: value for key, value in shared.items() if key in declared and value is not None
        }


def _plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold; a file becomes its name."""
    if hasattr(value, "sha256"):
        return str(value.name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _changed_thresholds(thresholds: ThresholdSet) -> dict[str, Any]:
    """Return the thresholds that are not the documented ones."""
    documented = _plain(type(thresholds)())
    return {name: value for name, value in _plain(thresholds).items() if value != documented[name]}


@dataclass(frozen=True)
class SectionResults:
    """What a run measured."""

    results: Sections
    #: Why a section has no result: this model does not allow it, or its own check failed.
    left_out: dict[str, str]
    failed: tuple[str, ...]  # Sections whose own check failed


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
                left_out |= dict(run.left_out(name))
            except UnsupportedModelError as error:
                left_out[name] = str(error)
            except CheckFailedError as error:
                left_out[name] = str(error)
                failed.append(name)
            release_memory()  # what one section has freed, before the next one grows
    return SectionResults(Sections(**results), left_out, tuple(failed))


def source_of(model: Model, loaded: LoadedModel, options: ModelOptions) -> Source | None:
    """Return how a model can be opened again in another type; None for a model in memory."""
    if not isinstance(model, str | Path):
        return None
    loading = {
        key: value for key, value in options.loading.items() if key not in ("dtype", "needs")
    }
    return str(model), {**loading, "task_head": loaded.task_head}


@contextmanager
def _model_in(dtype: str | None, run: SectionRun) -> Iterator[tuple[Model, Mapping[str, Any]]]:
    """Yield what a section is called with: the model, or its name to be opened in another type.

    With the name come the options of opening it. While the block runs, the weights of the run's own
    model are freed, so that the model is in memory once; then they are read again.
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
    """Return the parameters of a section's function, except the model and options of loading."""
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
