"""Runs the sections of a report on one model that is loaded and validated once.

The function behind a section has its name: ``headscope.NAME``. Its parameters are the section's
settings, and its class of options says what a report has to know of it: ``report_defaults()`` the
settings that differ in a report, ``widest_dtype`` that it computes in the device's widest type,
whatever the others use. Results of other sections come in through the parameters ``roles`` (what
classify found) and ``sections`` (everything).
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

from headscope.core.errors import CheckFailedError, InputError, UnsupportedModelError
from headscope.core.files import before_of, sha256_of, sha256_of_file
from headscope.core.once import keeping
from headscope.core.options import options_of
from headscope.core.progress import Progress, part_of, silent
from headscope.core.roles import registered_roles
from headscope.core.serialise import SCHEMA, from_dict, to_dict
from headscope.core.thresholds import ThresholdSet
from headscope.data.corpus import sample_corpus
from headscope.models.run.devices import widest_dtype
from headscope.models.run.loaded import LoadedModel
from headscope.reports.registry import REPORT, SECTIONS, Sections, function_of, section_of
from headscope.session.options import ModelOptions
from headscope.session.provenance import provenance, versions

#: Parameters that are no settings: a run of sections decides them, or they name or make files.
_NO_SETTINGS = {
    *("model", "validate", "progress", "announce", "command", "settings", "sections"),
    *("state", "resume", "folder", "save"),
}


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
        data = self.document.get(name)
        if self._item("keys", name) != key or not isinstance(data, dict):
            return None
        if self._item("digests", name) != content_digest(data):
            return None
        data["provenance"]["command"] = command
        return from_dict(section_of(name).kind, data)

    def _item(self, table: str, name: str) -> Any:
        items = self.document.get(table)
        return items.get(name) if isinstance(items, dict) else None


def content_digest(section: Any) -> str:
    """Hash a section, but for when and by which command it was made."""
    data = dict(to_dict(section))
    origin = dict(data.get("provenance") or {})
    origin.pop("created", None)
    origin.pop("command", None)
    return _digest({**data, "provenance": origin})


def _digest(values: Any) -> str:
    """Hash plain values, whatever the order of their keys."""
    return sha256_of(json.dumps(to_dict(values), sort_keys=True))


def _plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold, files by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return str(value.name) if hasattr(value, "sha256") else dataclasses.asdict(value)  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _content(value: Any) -> Any:
    """Turn an argument into what its effect depends on: files count by their content."""
    if isinstance(value, Path):
        return [str(value), sha256_of_file(value) if value.is_file() else "none"]
    if hasattr(value, "sha256"):
        return [str(value.name), value.sha256]
    return _plain(value)


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
    #: Which model this is, in which type and under which versions; None if nobody can tell.
    identity: dict[str, Any] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        loaded, identity = self.loaded, None
        if loaded.weights_sha256 is not None:
            # Now, before anything is measured: reading a text leaves its mark on the tokenizer.
            tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
            identity = {
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
        object.__setattr__(self, "identity", identity)
        for name, table in self.settings.items():
            check_settings(name, table)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a section that are not its function's defaults."""
        seeded = {"seed": self.seed} if "seed" in _parameters(name) else {}
        return {**seeded, **_options(name).report_defaults(), **self.settings.get(name, {})}

    def changed(self, name: str) -> dict[str, Any]:
        """Return the arguments that differ from what a report does by default, as plain values."""
        defaults: dict[str, Any] = {key: p.default for key, p in _parameters(name).items()}
        defaults |= _options(name).report_defaults()
        changed: dict[str, Any] = {}
        for key, value in self.arguments(name).items():
            if isinstance(value, ThresholdSet):
                usual = _plain(type(value)())
                table = {k: v for k, v in _plain(value).items() if v != usual[k]}
                changed |= {key: table} if table else {}
            elif value != defaults[key] and _plain(value) != _plain(defaults[key]):
                changed[key] = _plain(value)
        return changed


@dataclass(frozen=True)
class SectionResults:
    """What a run measured."""

    sections: Sections  # The results.
    #: What each result depends on, hashed; empty for a model that cannot be told from others.
    keys: dict[str, str]
    reused: tuple[str, ...]  # Sections that were taken from an earlier run.
    #: Sections that this model does not allow, or whose own check failed, and why.
    left_out: dict[str, str]
    failed: tuple[str, ...]  # Those of them whose own check failed


def run_sections(names: Iterable[str], run: Run) -> SectionResults:
    """Run sections in the order given, or take them from the earlier run."""
    with keeping(run.loaded.network):
        return _run_sections(names, run)


def _run_sections(names: Iterable[str], run: Run) -> SectionResults:
    results: dict[str, Any] = {}
    keys, left_out = dict[str, str](), dict[str, str]()
    reused, failed = list[str](), list[str]()
    for name in names:
        arguments, takes = run.arguments(name), _parameters(name)
        if run.identity is not None:
            settings = {key: _content(v) for key, v in arguments.items()}
            settings["validated"] = run.check
            sources = {other: keys[other] for other in section_of(name).uses if other in results}
            depends = {"on": run.identity, "settings": settings, "sources": sources}
            keys[name] = _digest({"section": name, **depends})
            before = run.previous.section(name, keys[name], run.command)
            # What a registered role measures is a function, which no key can tell of.
            if before is not None and not registered_roles():
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
            shared = {key: v for key, v in shared.items() if key in takes and v is not None}
            results[name] = function_of(name)(
                run.loaded, command=run.command, **{**shared, **arguments}
            )
        except (UnsupportedModelError, CheckFailedError) as error:
            left_out[name] = str(error)
            failed += [name] * isinstance(error, CheckFailedError)
    return SectionResults(Sections(**results), keys, tuple(reused), left_out, tuple(failed))


def _options(name: str) -> type[ModelOptions]:
    """Return a section's class of options."""
    kind: type[ModelOptions] = function_of(name).options
    return kind


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a section's function, but for those of loading."""
    every = inspect.signature(function_of(name)).parameters
    declared = options_of(_options(name))
    return {n: p for n, p in every.items() if n == "model" or not declared[n].marker.loading}


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
