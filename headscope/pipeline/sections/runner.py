"""Runs the sections of a report on one model that is loaded and validated once."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.data.plain import sample_plain
from headscope.errors import InputError, UnsupportedModelError
from headscope.models.casting import cast
from headscope.models.loading import LoadedModel
from headscope.pipeline.classify import classify
from headscope.pipeline.depth import depth
from headscope.pipeline.prune.run import prune
from headscope.pipeline.rank.run import rank
from headscope.pipeline.sections.keys import model_identity, plain, section_key
from headscope.pipeline.sections.previous import Previous
from headscope.pipeline.spectrum.run import spectrum
from headscope.pipeline.validate import validate
from headscope.results import to_json
from headscope.results.thresholds import ThresholdSet

__all__ = ["Progress", "Runner", "own_defaults"]

Progress = Callable[[str, int, int], None]
Settings = Mapping[str, Mapping[str, Any]]

#: The functions behind the sections.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "validate": validate,
    "classify": classify,
    "rank": rank,
    "spectrum": spectrum,
    "depth": depth,
    "prune": prune,
}
#: Sections whose result others make use of.
SOURCES = {"spectrum": ("classify",), "prune": ("classify",)}
#: Arguments that say where results go, or that a report decides for itself.
_NOT_SETTINGS = {
    "model",
    "validate",
    "progress",
    "command",
    "state",
    "resume",
    "options",
    "folder",
    "save",
    "save_dense",
    "benchmark",
    "log",
}


def own_defaults(name: str) -> dict[str, Any]:
    """Return the settings that a report has by default where the command itself has others."""
    if name in ("classify", "spectrum"):
        return {"control": True}
    return {"text": sample_plain()} if name == "rank" else {}


@dataclass
class Runner:
    """One run: what is shared by its sections, and what they have given so far.

    Attributes
    ----------
    loaded : LoadedModel
    settings : mapping
        Arguments by section.
    seed : int
    command : str
    check : bool
        Whether models must be validated.
    progress : callable, optional
    previous : Previous
    found : dict
        Results by section.
    keys : dict of str to str
    reused, left_out
        Sections of the previous run; sections that this model does not allow, and why.
    """

    loaded: LoadedModel
    settings: Settings
    seed: int
    command: str
    check: bool = True
    progress: Progress | None = None
    previous: Previous = field(default_factory=Previous)
    found: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._identity = model_identity(self.loaded)
        for name, table in self.settings.items():
            _check_settings(name, table)

    def section(self, name: str) -> None:
        """Run one section, or take it from the previous run."""
        arguments = self.arguments(name)
        sources = {other: self.keys[other] for other in SOURCES.get(name, ()) if other in self.keys}
        if self.reuse(name, {**arguments, "validated": self.check}, sources):
            return
        try:
            self.found[name] = self._run(name, arguments)
        except UnsupportedModelError as error:
            self.left_out[name] = str(error)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a section that are not its own defaults."""
        seeded = {"seed": self.seed} if name != "validate" else {}
        return {**seeded, **own_defaults(name), **self.settings.get(name, {})}

    def changed(self, name: str) -> dict[str, Any]:
        """Return the arguments that differ from what a report does by default."""
        usual = {**_defaults(name), **own_defaults(name)}
        found = {}
        for key, value in self.arguments(name).items():
            default = type(value)() if isinstance(value, ThresholdSet) else usual.get(key)
            if value != default and plain(value) != plain(default):
                found[key] = _differing(value) if isinstance(value, ThresholdSet) else plain(value)
        return found

    def reuse(self, name: str, settings: Mapping[str, Any], sources: Mapping[str, str]) -> bool:
        """Note the key of a section; take its result from the previous run if that has the key."""
        if self._identity is None:
            return False
        key = section_key(name, self._identity, settings, sources)
        self.keys[name] = key
        result = self.previous.section(name, key, self.command)
        if result is None:
            return False
        self.found[name] = result
        self.reused.append(name)
        return True

    def tell(self, name: str) -> Progress | None:
        """Return the progress function of one section."""
        progress = self.progress
        if progress is None:
            return None
        return lambda what, done, total: progress(f"{name}, {what}", done, total)

    def _run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        keywords = {key: value for key, value in arguments.items() if key != "dtype"}
        if name != "validate":
            keywords |= {"validate": self.check, "progress": self.tell(name)}
        loaded = self.loaded
        if name == "depth":  # what attention alone leaves is below what float32 can show
            loaded = cast(loaded, str(arguments.get("dtype", "float64")))
        with tempfile.TemporaryDirectory(prefix="headscope-") as folder:
            if "classify" in self.found and "roles" not in keywords:
                keywords |= self._roles(name, Path(folder))
            return FUNCTIONS[name](loaded, command=self.command, **keywords)

    def _roles(self, name: str, folder: Path) -> dict[str, Any]:
        """Hand the classification of this run on to the sections that name heads by role."""
        if name not in SOURCES:
            return {}
        path = folder / "classify.json"
        path.write_text(to_json(self.found["classify"]), encoding="utf-8")
        return {"roles": path}


def _differing(thresholds: ThresholdSet) -> dict[str, Any]:
    usual = plain(type(thresholds)())
    return {key: value for key, value in plain(thresholds).items() if value != usual[key]}


def _defaults(name: str) -> dict[str, Any]:
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _check_settings(name: str, table: Mapping[str, Any]) -> None:
    if name not in FUNCTIONS:
        raise InputError(f"There is no section {name!r} to set; known are {', '.join(FUNCTIONS)}.")
    known = set(inspect.signature(FUNCTIONS[name]).parameters) - _NOT_SETTINGS
    if name == "depth":
        known |= {"dtype"}
    for key in table:
        if key not in known:
            raise InputError(
                f"The section {name} has no setting {key!r}; known are {', '.join(sorted(known))}."
            )
