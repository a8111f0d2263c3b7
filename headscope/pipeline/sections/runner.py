"""Runs the sections of a report on one model that is loaded and validated once.

The function behind a section has its name in :mod:`headscope`, and its options class says what a
report has to know: what can be set, what differs in a report, and whether it computes in the
device's widest type. Results of other sections come in through the parameters ``roles`` (what
classify found) and ``sections`` (everything).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import headscope
from headscope.core.options import options_of
from headscope.errors import InputError, UnsupportedModelError
from headscope.models.loaded import LoadedModel
from headscope.models.loading import widest_dtype
from headscope.pipeline.progress import Progress, part_of, silent
from headscope.pipeline.sections.keys import model_identity, plain, section_key
from headscope.pipeline.sections.previous import Previous
from headscope.results import SECTIONS, Sections, section_of
from headscope.results.thresholds import ThresholdSet
from headscope.session.options import ModelOptions

#: Arguments that a run of sections decides for itself, and those that name or make files.
_GIVEN = {"model", "validate", "progress", "announce", "command", "options", "settings", "sections"}
_FILES = {"state", "resume", "folder", "save", "save_dense", "benchmark"}


@dataclass(frozen=True)
class Run:
    """What the sections of one run share.

    Attributes
    ----------
    loaded : LoadedModel
        The model of all sections.
    settings : mapping of str to mapping
        Arguments by section, where they are not the defaults.
    seed : int
        Of every section that is not given another.
    command : str
        Recorded in the results.
    check : bool
        Whether the model must be validated.
    progress : callable
        Told ("section, what", done, total).
    previous : Previous
        Results that may be taken over.
    identity : dict or None
        Of the model, as :func:`model_identity` tells it.
    """

    loaded: LoadedModel
    settings: Mapping[str, Mapping[str, Any]]
    seed: int
    command: str
    check: bool = True
    progress: Progress = silent
    previous: Previous = field(default_factory=Previous)
    identity: dict[str, Any] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Now, before anything is measured: reading a text leaves its mark on the tokenizer.
        object.__setattr__(self, "identity", model_identity(self.loaded))
        for name, table in self.settings.items():
            check_settings(name, table)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a section that are not its function's defaults."""
        seeded = {"seed": self.seed} if "seed" in _parameters(name) else {}
        return {**seeded, **_report_defaults(name), **self.settings.get(name, {})}

    def changed(self, name: str) -> dict[str, Any]:
        """Return the arguments that differ from what a report does by default, as plain values."""
        usual = {key: p.default for key, p in _parameters(name).items()} | _report_defaults(name)
        found = {}
        for key, value in self.arguments(name).items():
            default = type(value)() if isinstance(value, ThresholdSet) else usual[key]
            if value != default and plain(value) != plain(default):
                found[key] = _differing(value) if isinstance(value, ThresholdSet) else plain(value)
        return found


@dataclass(frozen=True)
class Found:
    """What a run found.

    Attributes
    ----------
    sections : Sections
        The results.
    keys : dict of str to str
        What each result depends on, hashed; empty for a model that cannot be told from others.
    reused : tuple of str
        Sections that were taken from an earlier run.
    left_out : dict of str to str
        Sections that this model does not allow, and why.
    """

    sections: Sections
    keys: dict[str, str]
    reused: tuple[str, ...]
    left_out: dict[str, str]


def run_sections(names: Iterable[str], run: Run) -> Found:
    """Run sections in the order given, or take them from the earlier run."""
    results: dict[str, Any] = {}
    keys, left_out, reused = dict[str, str](), dict[str, str](), list[str]()
    for name in names:
        if run.identity is not None:
            uses = section_of(name).uses
            sources = {other: keys[other] for other in uses if other in results}
            settings = {**run.arguments(name), "validated": run.check}
            keys[name] = section_key(name, run.identity, settings, sources)
            before = run.previous.section(name, keys[name], run.command)
            if before is not None:
                results[name] = before
                reused.append(name)
                continue
        try:
            results[name] = _call(name, run, results)
        except UnsupportedModelError as error:
            left_out[name] = str(error)
    return Found(Sections(**results), keys, tuple(reused), left_out)


def _call(name: str, run: Run, results: Mapping[str, Any]) -> Any:
    """Call the function behind a section with what it takes of this run."""
    shared = {
        "validate": run.check,
        "progress": part_of(name, run.progress),
        "dtype": widest_dtype(run.loaded.device) if _in_widest(name) else None,
        "roles": results.get("classify"),
        "sections": Sections(**results),
        "settings": run.settings,
    }
    takes = _parameters(name)
    given = {key: value for key, value in shared.items() if key in takes and value is not None}
    function = _function(name)
    return function(run.loaded, command=run.command, **{**given, **run.arguments(name)})


def _function(name: str) -> Any:
    """Return the function of a section."""
    return getattr(headscope, name)


def _options(name: str) -> type[ModelOptions]:
    """Return the class of what a section can be asked."""
    kind: type[ModelOptions] = _function(name).options
    return kind


def _in_widest(name: str) -> bool:
    """Say whether a section has a type of its own: the widest of the device."""
    return _options(name).widest_dtype


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    every = inspect.signature(_function(name)).parameters
    declared = options_of(_options(name))
    return {n: p for n, p in every.items() if n == "model" or not declared[n].marker.loading}


def _report_defaults(name: str) -> dict[str, Any]:
    """Return the settings that a report has by default where the function has others."""
    return _options(name).report_defaults()


def _differing(thresholds: ThresholdSet) -> dict[str, Any]:
    usual = plain(type(thresholds)())
    return {key: value for key, value in plain(thresholds).items() if value != usual[key]}


def check_settings(name: str, table: Mapping[str, Any]) -> None:
    """Refuse a section that there is not, and settings that it has not.

    Raises
    ------
    InputError
        With those that there are.
    """
    if name not in SECTIONS:
        raise InputError(f"There is no section {name!r} to set; known are {', '.join(SECTIONS)}.")
    known = sorted(set(_parameters(name)) - _GIVEN - _FILES)
    for key in table:
        if key not in known:
            raise InputError(
                f"The section {name} has no setting {key!r}; known are {', '.join(known)}."
            )
