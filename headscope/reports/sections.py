"""Runs the sections of a report on one model that is loaded and validated once.

The function behind a section has its name: ``headscope.pipeline.NAME.NAME``. What a report has to
know of it is stated there: its parameters are the section's settings; ``report_defaults()`` beside
it returns the settings that differ in a report; ``WIDEST_DTYPE`` says that it computes in the
device's widest type, whatever the others use. Results of other sections come in through the
parameters ``roles`` (what classify found) and ``sections`` (everything).
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import headscope
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.files import before_of, sha256_of, sha256_of_file
from headscope.core.options import options_of
from headscope.core.serialise import SCHEMA, from_dict, to_dict
from headscope.core.thresholds import ThresholdSet
from headscope.data.corpus import sample_corpus
from headscope.models.loaded import LoadedModel
from headscope.models.loading import widest_dtype
from headscope.reports.registry import SECTIONS, Sections, section_of
from headscope.session.options import ModelOptions
from headscope.session.progress import Progress, part_of, silent
from headscope.session.provenance import provenance, versions

#: Arguments that a run of sections decides for itself, and those that name or make files.
_GIVEN = {"model", "validate", "progress", "announce", "command", "options", "settings", "sections"}
_FILES = {"state", "resume", "folder", "save", "save_dense", "benchmark"}


@dataclass(frozen=True)
class Previous:
    """What an earlier run left: its document, or an empty one."""

    document: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | None) -> Previous:
        """Read the report in a folder; whatever cannot be read counts as not there.

        Where a run was killed while it put its files in place, that is the report before it.
        """
        if folder is None:
            return cls()
        path = folder / REPORT
        try:
            whole = path if path.exists() else before_of(path)
            document = json.loads(whole.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return cls()
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            return cls()
        return cls(document)

    def section(self, name: str, key: str, command: str) -> Any | None:
        """Return the section made under this key, if it is there and as it was written."""
        document = self.document
        if _item(document, "keys", name) != key:
            return None
        data = document.get(name)
        if not isinstance(data, dict) or _item(document, "digests", name) != content_digest(data):
            return None
        data["provenance"]["command"] = command
        return from_dict(section_of(name).kind, data)


def _item(document: Mapping[str, Any], table: str, name: str) -> Any:
    found = document.get(table)
    return found.get(name) if isinstance(found, dict) else None


def content_digest(section: Any) -> str:
    """Hash a section, but for when and by which command it was made."""
    data = dict(to_dict(section))
    made = dict(data.get("provenance") or {})
    made.pop("created", None)
    made.pop("command", None)
    return digest({**data, "provenance": made})


def model_identity(loaded: LoadedModel) -> dict[str, Any] | None:
    """Say which model this is, in which type and under which versions; None if nobody can tell."""
    if loaded.weights_sha256 is None:
        return None
    tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
    return {
        **versions(),
        "model": provenance(loaded, command="", seed=0)["model"],
        "config": loaded.model.config.to_json_string(),
        "tokenizer": "" if tokenizer is None else tokenizer.to_str(),
        "limit": loaded.max_length,
        "embedding": loaded.pooling.identity,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "sample": sample_corpus().sha256,
    }


def section_key(
    name: str, identity: Mapping[str, Any], settings: Mapping[str, Any], sources: Mapping[str, str]
) -> str:
    """Hash what a section's result depends on: the model, its arguments, and its sources' keys.

    Files among the arguments count by their content.
    """
    values = {key: _content(value) for key, value in settings.items()}
    return digest({"section": name, "on": identity, "settings": values, "sources": sources})


def digest(values: Any) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return sha256_of(json.dumps(to_dict(values), sort_keys=True))


def plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold, files by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = getattr(value, "name", None)
        return str(name) if hasattr(value, "sha256") else dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _content(value: Any) -> Any:
    """Turn an argument into what its effect depends on."""
    if isinstance(value, Path):
        return [str(value), sha256_of_file(value) if value.is_file() else "none"]
    if hasattr(value, "sha256"):
        return [str(value.name), value.sha256]
    return plain(value)


@dataclass(frozen=True)
class Run:
    """What the sections of one run share."""

    loaded: LoadedModel  # The model of all sections.
    #: Arguments by section, where they are not the defaults.
    settings: Mapping[str, Mapping[str, Any]]
    seed: int  # Of every section that is not given another.
    command: str  # Recorded in the results.
    check: bool = True  # Whether the model must be validated.
    progress: Progress = silent  # Told ("section, what", done, total).
    previous: Previous = field(default_factory=Previous)  # Results that may be taken over.
    #: Of the model, as :func:`model_identity` tells it.
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
    """What a run found."""

    sections: Sections  # The results.
    #: What each result depends on, hashed; empty for a model that cannot be told from others.
    keys: dict[str, str]
    reused: tuple[str, ...]  # Sections that were taken from an earlier run.
    left_out: dict[str, str]  # Sections that this model does not allow, and why.


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
            shared = {
                "validate": run.check,
                "progress": part_of(name, run.progress),
                "dtype": widest_dtype(run.loaded.device) if _options(name).widest_dtype else None,
                "roles": results.get("classify"),
                "sections": Sections(**results),
                "settings": run.settings,
            }
            takes = _parameters(name)
            given = {
                key: value for key, value in shared.items() if key in takes and value is not None
            }
            function = _function(name)
            results[name] = function(
                run.loaded, command=run.command, **{**given, **run.arguments(name)}
            )
        except UnsupportedModelError as error:
            left_out[name] = str(error)
    return Found(Sections(**results), keys, tuple(reused), left_out)


def _function(name: str) -> Any:
    """Return the function of a section."""
    return getattr(headscope, name)


def _options(name: str) -> type[ModelOptions]:
    """Return the class of what a section can be asked."""
    kind: type[ModelOptions] = _function(name).options
    return kind


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
    """Refuse a section that there is not, and settings that it has not."""
    if name not in SECTIONS:
        raise InputError(f"There is no section {name!r} to set; known are {', '.join(SECTIONS)}.")
    known = sorted(set(_parameters(name)) - _GIVEN - _FILES)
    for key in table:
        if key not in known:
            raise InputError(
                f"The section {name} has no setting {key!r}; known are {', '.join(known)}."
            )


REPORT = "report.json"  # The file that holds every section.
